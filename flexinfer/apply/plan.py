# SPDX-License-Identifier: Apache-2.0
"""What to send for one child, decided from its intent, the live object and the last answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

from flexinfer.apply.immutable import carry_immutable, learn
from flexinfer.apply.intent import check_entries, clean_from, digest, digest_of, values_at
from flexinfer.apply.memory import Answer
from flexinfer.apply.ownership import with_owner
from flexinfer.apply.request import identify
from flexinfer.kinds.immutable import Policy, immutable_fields
from flexinfer.kinds.structure import shape_of, structure_of
from flexinfer.meta.envelope import encode_sorted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flexinfer.kinds.immutable import ImmutableField
    from flexinfer.kinds.structure import Shape, Structure
    from flexinfer.meta.envelope import StoredObject, Tree
    from flexinfer.meta.object import Object
    from flexinfer.meta.resource import NamespacedName, Resource

Identity = tuple["Resource", "NamespacedName"]


@dataclass(frozen=True, slots=True)
class Kind:
    """Be what is known of one kind: its immutable fields, and how it merges."""

    resource: Resource
    rules: tuple[ImmutableField, ...]
    shape: Shape

    @classmethod
    def of(
        cls,
        resource: Resource,
        *,
        rules: Sequence[ImmutableField] = (),
        structure: Structure | None = None,
    ) -> Self:
        """Put together what `kinds` knows and what *rules* and *structure* add."""
        merged = structure_of(resource) | (structure or {})
        return cls(resource, (*immutable_fields(resource), *rules), shape_of(merged))

    @property
    def is_recreated(self) -> bool:
        """Tell whether some change of this kind is made by deleting the object."""
        return any(rule.policy is Policy.RECREATE for rule in self.rules)


class Child:
    """Be one request to apply; what is asked for is worked out once, and mostly never.

    `given` is what the caller gave, written down, and `said` its digest. `id` tells it from every
    other object; it is forgotten with `owner_id`: its owner's, or its own when it has none.
    """

    def __init__(self, kind: Kind, intent: Tree, owner: Object | None) -> None:
        self.kind = kind
        self.key = identify(kind.resource, intent)
        self.owner = owner
        self.id: Identity = (kind.resource, self.key)
        self.owner_id: Identity = self.id if owner is None else (owner.resource, owner.key)
        self.given = encode_sorted(intent)
        self.said = digest_of(self.given)

    @cached_property
    def intent(self) -> Tree:
        """Return the complete intent, checked."""
        intent = clean_from(self.given)
        if self.owner is not None:
            intent = with_owner(intent, self.owner, self.key)
        check_entries(intent, self.kind.shape)
        return intent

    def check(self) -> None:
        """Raise for an intent that cannot be completed, as `intent` does."""
        _ = self.intent

    @cached_property
    def asked(self) -> bytes:
        """Return the digest of the complete intent."""
        return digest(self.intent)

    @property
    def owner_uid(self) -> str:
        """Return the UID of its owner, empty when it has none."""
        return "" if self.owner is None else self.owner.metadata.uid

    def __str__(self) -> str:
        return f"{self.kind.resource.kind} {self.key}"


class Plan(NamedTuple):
    """Be what to send, and a digest of it."""

    body: Tree
    drift: tuple[str, ...]
    learned: tuple[ImmutableField, ...]
    sent: bytes


def plan_for(child: Child, live: StoredObject | None, last: Answer | None) -> Plan:
    """Settle the immutable fields; *live* is None for an object that is to be created."""
    learned = _learned(child, last)
    tree = None if live is None else live.tree(child.kind.resource)
    body, drift = carry_immutable(child.intent, tree, (*child.kind.rules, *learned))
    sent = child.asked if body is child.intent else digest(body)
    return Plan(body, drift, learned, sent)


def _learned(child: Child, last: Answer | None) -> tuple[ImmutableField, ...]:
    """Return what refusals taught; the last one counts only for another intent than its own.

    The refused intent itself stays refused: it does not take effect in part by being repeated.
    """
    if last is None:
        return ()
    if not last.refused or last.asked == child.asked:
        return last.learned
    return (*last.learned, *learn(last.refused, (*child.kind.rules, *last.learned)))


def is_answered(child: Child, plan: Plan, live: StoredObject, last: Answer) -> bool:
    """Tell whether *last* answered the very same, and *live* still holds what it was answered.

    Only the paths of what was sent count: they may have been changed by others since.
    """
    if last.sent != plan.sent:
        return False
    return _held(child, plan, live) == _held(child, plan, last.live)


def _held(child: Child, plan: Plan, live: StoredObject) -> bytes:
    tree = live.tree(child.kind.resource)
    return encode_sorted(values_at(plan.body, tree, child.kind.shape))


def answer_to(
    child: Child, plan: Plan, live: StoredObject, *, refused: tuple[str, ...] = ()
) -> Answer:
    """Remember what the server made of the plan, or the paths that it would not change."""
    return Answer(
        live=live,
        said=child.said,
        asked=child.asked,
        sent=plan.sent,
        owner=child.owner_uid,
        drift=() if refused else plan.drift,
        refused=refused,
        learned=plan.learned,
    )
