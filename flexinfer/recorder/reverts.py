# SPDX-License-Identifier: Apache-2.0
"""Say in an event whose change was taken back, so that nobody has to guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.recorder.recorder import EventType
from flexinfer.recorder.reference import ObjectReference

if TYPE_CHECKING:
    from flexinfer.apply import Claim, Reverted, RevertObserver
    from flexinfer.recorder.recorder import EventRecorder

__all__ = ["REASON", "announce"]

REASON = "ForeignChangeReverted"
_SHOWN = 5  # paths of one manager; the note is short


def announce(recorder: EventRecorder) -> RevertObserver:
    """Return what an `Applier` is to call: it records an event on the owner of the child.

    The event is about the child itself when that was applied without an owner. The child is
    `related`, so each child has an event of its own.
    """

    def observe(change: Reverted) -> None:
        child = ObjectReference.to(change.resource, change.meta)
        recorder.emit(
            child if change.owner is None else change.owner,
            type=EventType.WARNING,
            reason=REASON,
            action="Apply",
            note=_note(change),
            related=child,
        )

    return observe


def _note(change: Reverted) -> str:
    what = f"{change.resource.kind} {_name(change)}"
    if not change.claims:
        return f"{what}: took back the change of a manager that left no trace"
    return f"{what}: took back " + "; ".join(_phrase(claim) for claim in change.claims)


def _name(change: Reverted) -> str:
    """Return the child's name, with its namespace where that is not the owner's."""
    meta, owner = change.meta, change.owner
    is_beside = owner is None or owner.metadata.namespace == meta.namespace
    return meta.name if is_beside else str(meta.key)


def _phrase(claim: Claim) -> str:
    shown = ", ".join(claim.paths[:_SHOWN])
    if len(claim.paths) > _SHOWN:
        shown += f" and {len(claim.paths) - _SHOWN} more"
    if not claim.manager:
        return f"{shown}, removed by a manager that left no trace"
    through = f" through {claim.subresource}" if claim.subresource else ""
    return f"{shown}, set by {claim.manager} ({claim.operation}{through})"
