# SPDX-License-Identifier: Apache-2.0
"""What to send for one child, decided from its intent, the live object and the last answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

from flexinfer.apply.immutable import carry_immutable, learn
from flexinfer.apply.intent import check_entries, clean, digest, values_at
from flexinfer.apply.memory import Answer
from flexinfer.apply.ownership import with_owner
from flexinfer.apply.request import identify
from flexinfer.kinds.immutable import Policy, immutable_fields
from flexinfer.kinds.structure import shape_of, structure_of

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


@dataclass(frozen=True)  # no slots: what is asked for is worked out once, and mostly never
class Child:
    """Be one request to apply; `said` is the digest of what the caller gave."""

    kind: Kind
    key: NamespacedName
    owner: Object | None
    said: bytes
    given: Tree

    @cached_property
    def intent(self) -> Tree:
        """Return the complete intent, checked."""
        intent = clean(self.given)
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
    def id(self) -> Identity:
        """Return what tells it from every other object."""
        return self.kind.resource, self.key

    @property
    def owner_id(self) -> Identity:
        """Return what it is forgotten with: its owner, or itself when it has none."""
        return self.id if self.owner is None else (self.owner.resource, self.owner.key)

    @property
    def owner_uid(self) -> str:
        """Return the UID of its owner, empty when it has none."""
        return "" if self.owner is None else self.owner.metadata.uid

    def __str__(self) -> str:
        return f"{self.kind.resource.kind} {self.key}"


class Plan(NamedTuple):
    """Be what to send, and digests of it and of what the live object holds at its paths."""

    body: Tree
    drift: tuple[str, ...]
    learned: tuple[ImmutableField, ...]
    sent: bytes
    values: bytes


def child_of(kind: Kind, intent: Tree, owner: Object | None) -> Child:
    """Take an intent; what is wrong with its entries is found when they are needed."""
    return Child(kind, identify(kind.resource, intent), owner, digest(intent), intent)


def plan_for(child: Child, live: StoredObject | None, last: Answer | None) -> Plan:
    """Settle the immutable fields; *live* is None for an object that is to be created."""
    learned = _learned(child, last)
    tree = None if live is None else live.tree(child.kind.resource)
    body, drift = carry_immutable(child.intent, tree, (*child.kind.rules, *learned))
    values = digest(values_at(body, tree or {}, child.kind.shape))
    sent = child.asked if body is child.intent else digest(body)
    return Plan(body, drift, learned, sent, values)


def _learned(child: Child, last: Answer | None) -> tuple[ImmutableField, ...]:
    """Return what refusals taught; the last one counts only for another intent than its own.

    The refused intent itself stays refused: it does not take effect in part by being repeated.
    """
    if last is None:
        return ()
    if not last.refused or last.asked == child.asked:
        return last.learned
    return (*last.learned, *learn(last.refused, (*child.kind.rules, *last.learned)))


def answer_to(child: Child, plan: Plan, answer: StoredObject) -> Answer:
    """Remember the answer to what was planned."""
    values = values_at(plan.body, answer.tree(child.kind.resource), child.kind.shape)
    return Answer(
        owner=child.owner_uid,
        uid=answer.meta.uid,
        resource_version=answer.meta.resource_version,
        said=child.said,
        asked=child.asked,
        sent=plan.sent,
        values=digest(values),
        drift=plan.drift,
        learned=plan.learned,
    )


def refusal_of(child: Child, plan: Plan, live: StoredObject, paths: tuple[str, ...]) -> Answer:
    """Remember that the server would not change *paths* of the object as it is."""
    return Answer(
        owner=child.owner_uid,
        uid=live.meta.uid,
        resource_version=live.meta.resource_version,
        said=child.said,
        asked=child.asked,
        sent=plan.sent,
        values=plan.values,
        refused=paths,
        learned=plan.learned,
    )
