# SPDX-License-Identifier: Apache-2.0
"""Bring all objects of one kind that an owner has to a set of intents, the rest deleted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flexinfer import log
from flexinfer.apply.memory import Outcome
from flexinfer.errors import ApiError, ConfigurationError, NotOursError, TerminalError
from flexinfer.meta.resource import NamespacedName
from flexinfer.meta.selector import Selector

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from flexinfer.apply.applier import Applier
    from flexinfer.apply.live import LiveClient
    from flexinfer.meta.envelope import Tree
    from flexinfer.meta.object import Object

__all__ = ["AppliedChildren", "apply_children"]

_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChildren:
    """Report what became of a set of children.

    `written` are those whose `Outcome` is not `UNCHANGED`: made, made anew, or changed, by us or
    at the same moment by somebody else. `deleted` are those that were not wanted any more;
    `leaving` are those that were deleted before and are still there, because a finalizer holds
    them. `drift` names the immutable fields of each child where it is not what its intent asked
    for. `not_ours` are the errors about names that belong to somebody else, in the order of the
    intents. Each says which object it is and whose.
    """

    written: tuple[NamespacedName, ...] = ()
    deleted: tuple[NamespacedName, ...] = ()
    leaving: tuple[NamespacedName, ...] = ()
    drift: Mapping[NamespacedName, tuple[str, ...]] = field(default_factory=dict)
    not_ours: tuple[NotOursError, ...] = ()


async def apply_children(
    client: LiveClient,
    applier: Applier,
    kind: type[Object],
    intents: Iterable[Tree],
    *,
    owner: Object,
    label: str,
) -> AppliedChildren:
    """Apply each of *intents*, and delete what else of *kind* the *owner* has; none deletes all.

    `apiVersion` and `kind` may be left out of an intent. *label* is put on each child with the
    owner's UID as its value; what carries it and is controlled by *owner* is found again by it.
    Nothing else is ever deleted, and each only if it still is the object that was looked at.

    One intent that cannot be applied does not keep the others from it: NotOursError is reported,
    and the first ApiError or TerminalError is raised once everything else is done. Raises
    ConfigurationError for two intents of one name, and TransportError at once.
    """
    written: list[NamespacedName] = []
    drift: dict[NamespacedName, tuple[str, ...]] = {}
    not_ours: list[NotOursError] = []
    failures: list[ApiError | TerminalError] = []
    wanted = _labelled(kind, intents, label, owner.metadata.uid)
    for key, intent in wanted.items():
        try:
            applied = await applier.apply(kind.resource, intent, owner=owner)
        except NotOursError as error:
            not_ours.append(error)
        except (ApiError, TerminalError) as error:
            failures.append(error)
        else:
            if applied.outcome is not Outcome.UNCHANGED:
                written.append(key)
            if applied.drift:
                drift[key] = applied.drift
    deleted, leaving = await _prune(client, kind, wanted.keys(), owner=owner, label=label)
    for failure in failures[1:]:
        _log.warning("more children could not be applied", error=str(failure))
    if failures:
        raise failures[0]
    return AppliedChildren(
        written=tuple(written),
        deleted=tuple(deleted),
        leaving=tuple(leaving),
        drift=drift,
        not_ours=tuple(not_ours),
    )


def _labelled(
    kind: type[Object], intents: Iterable[Tree], label: str, uid: str
) -> dict[NamespacedName, Tree]:
    resource = kind.resource
    head: Tree = {"apiVersion": resource.api_version, "kind": resource.kind}
    wanted: dict[NamespacedName, Tree] = {}
    for intent in intents:
        metadata = intent.get("metadata") or {}
        labels = {**(metadata.get("labels") or {}), label: uid}
        key = NamespacedName(metadata.get("namespace", ""), metadata.get("name", ""))
        if key in wanted:
            raise ConfigurationError(f"two intents are for {resource.kind} {key}: give one")
        wanted[key] = head | intent | {"metadata": metadata | {"labels": labels}}
    return wanted


async def _prune(
    client: LiveClient,
    kind: type[Object],
    keep: Collection[NamespacedName],
    *,
    owner: Object,
    label: str,
) -> tuple[Sequence[NamespacedName], Sequence[NamespacedName]]:
    """Delete what is not to be kept; return what was deleted now, and what was before."""
    uid = owner.metadata.uid
    deleted, leaving = [], []
    for found in await client.list(kind, labels=Selector.from_labels({label: uid})):
        controller = found.metadata.controller
        is_ours = controller is not None and controller.uid == uid
        if found.key in keep or not is_ours:
            continue
        if found.metadata.deletion_timestamp is not None:
            leaving.append(found.key)
            continue
        await client.delete(kind.resource, found.key, uid=found.metadata.uid)
        deleted.append(found.key)
    return deleted, leaving
