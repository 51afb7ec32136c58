# SPDX-License-Identifier: Apache-2.0
"""Which events a change of a Model's status is worth. Pure.

What happened is told from two statuses, so a manager that starts anew tells nothing twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from api.flexinfer.v1alpha2.reasons import ConditionType, Reason
from controllers.model.cache_state import job_failed
from controllers.model.decision import Blocked
from flexinfer.conditions import find
from flexinfer.meta.condition import ConditionStatus
from flexinfer.recorder import EventType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from api.flexinfer.v1alpha2.model_status import ModelStatus
    from controllers.model.verdict import Observed

_BLOCKED: dict[str, str] = {
    Reason.NO_MATCHING_NODES: "GPUDetectionFailed",
    Reason.AMBIGUOUS_GPU_VENDOR: "GPUDetectionFailed",
    Reason.VRAM_INSUFFICIENT: "VRAMInsufficient",
}
_INVALID = "ValidationFailed"


class Notice(NamedTuple):
    """Be an event about a Model."""

    type: EventType
    reason: str
    action: str
    note: str


def notices(previous: ModelStatus, new: ModelStatus, observed: Observed) -> Iterator[Notice]:
    """Yield the events of a status that went from *previous* to *new*."""
    standing = observed.demand and observed.demand.standing
    if standing and standing.lost_to:
        text = f"{standing.lost_to} takes the GPUs of group {standing.status.group_name}"
        yield Notice(EventType.NORMAL, "Preempted", "Preempt", text)
    yield from _failure(previous, new)
    yield from _placement(previous, new)
    if new.cache and job_failed(previous, new):
        yield Notice(EventType.WARNING, "CacheFailed", "Cache", new.cache.message or "")
    if isinstance(observed.decision, Blocked) or observed.decision.trouble is not None:
        return  # told once nodes fit
    if new.observed_generation != previous.observed_generation or not _is_schedulable(previous):
        for caveat in observed.decision.warnings:
            yield Notice(EventType.WARNING, caveat.reason, "Place", caveat.text)


def _is_schedulable(status: ModelStatus) -> bool:
    found = find(status.conditions, ConditionType.SCHEDULABLE)
    return found is not None and found.status is ConditionStatus.TRUE


def _failure(previous: ModelStatus, new: ModelStatus) -> Iterator[Notice]:
    """Tell why a Model could not start in its turn: its status will soon speak of other things."""
    before, now = previous.shared_group, new.shared_group
    ready = find(new.conditions, ConditionType.READY)
    if now is None or now.failed_at is None or ready is None:
        return
    if before is None or before.failed_at != now.failed_at:
        yield Notice(EventType.WARNING, "StartFailed", "Start", ready.message)


def _placement(previous: ModelStatus, new: ModelStatus) -> Iterator[Notice]:
    before, now = (find(s.conditions, ConditionType.SCHEDULABLE) for s in (previous, new))
    if now is None or now.status is ConditionStatus.TRUE:
        return
    if before is None or (before.status, before.reason) != (now.status, now.reason):
        reason = _BLOCKED.get(now.reason, _INVALID)
        yield Notice(EventType.WARNING, reason, "Place", now.message)
