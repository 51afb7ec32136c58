# SPDX-License-Identifier: Apache-2.0
"""Which events a change of the status is worth, each of them once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_status import CacheStatus, ModelStatus, SharedGroupStatus
from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model import status
from controllers.model.cache_state import CacheState
from controllers.model.decision import Blocked, Plan, Reading, decide, read
from controllers.model.demand import Demand
from controllers.model.member import GroupState
from controllers.model.notices import Notice, notices
from controllers.model.standing import Standing
from controllers.model.verdict import Observed
from flexinfer.meta.envelope import meta_from
from flexinfer.recorder import EventType
from internal.gpu.caveat import Caveat, CaveatReason

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SPEC: Tree = {"backend": "llamacpp", "source": "HF://o/m", "config": {"ggufFile": "m.gguf"}}
NO_NODES = Blocked(reason=Reason.NO_MATCHING_NODES, message="no node")
TIGHT = Caveat(CaveatReason.VRAM_PRESSURE, "tight")


def plan() -> Plan:
    of = Model.model_validate(
        {"metadata": meta_from({"name": "m", "namespace": "ns"}), "spec": SPEC}
    )
    reading = read(of)
    assert isinstance(reading, Reading)
    found = decide(of, reading, (), {})
    assert isinstance(found, Plan)
    return replace(found, warnings=(TIGHT,))


def blocked(reason: Reason) -> Observed:
    return Observed(decision=Blocked(reason=reason, message="because"))


def cache(phase: str, message: str | None = "HF_TOKEN is missing") -> CacheState:
    return CacheState(
        is_cached=False,
        reason=Reason.CACHE_NOT_READY,
        message="",
        may_start=False,
        status=CacheStatus(job_phase=phase, message=message),
    )


def tell(*seen: Observed, generation: int = 3) -> list[Notice]:
    """Return the events of the last of *seen*, whose statuses followed one another."""
    previous, found = ModelStatus(), list[Notice]()
    for number, observed in enumerate(seen, 1):
        current = generation if number == len(seen) else 3
        meta = meta_from({"name": "m", "namespace": "ns", "generation": current})
        now = NOW + timedelta(seconds=number)
        new = status.compute(meta, previous, observed, now=now)
        found = list(notices(previous, new, observed))
        previous = new
    return found


def warning(reason: str, action: str, note: str) -> Notice:
    return Notice(EventType.WARNING, reason, action, note)


VRAM = warning("VRAMPressure", "Place", "tight")


@pytest.mark.parametrize(
    ("reason", "event"),
    [
        (Reason.NO_MATCHING_NODES, "GPUDetectionFailed"),
        (Reason.AMBIGUOUS_GPU_VENDOR, "GPUDetectionFailed"),
        (Reason.VRAM_INSUFFICIENT, "VRAMInsufficient"),
        (Reason.BACKEND_UNSUPPORTED, "ValidationFailed"),
        (Reason.INVALID_SPEC, "ValidationFailed"),
    ],
)
def test_why_nothing_can_be_placed_is_told_once(reason: Reason, event: str) -> None:
    seen = blocked(reason)
    assert tell(seen) == [warning(event, "Place", "because")]
    assert tell(seen, seen) == []
    assert tell(seen, seen, generation=4) == []
    assert tell(Observed(decision=plan()), seen) == [warning(event, "Place", "because")]


def test_another_reason_is_news() -> None:
    found = tell(blocked(Reason.NO_MATCHING_NODES), blocked(Reason.VRAM_INSUFFICIENT))
    assert [notice.reason for notice in found] == ["VRAMInsufficient"]


def test_a_warning_is_told_once_a_spec() -> None:
    seen = Observed(decision=plan())
    assert tell(seen) == [VRAM]
    assert tell(seen, seen) == []
    assert tell(seen, seen, generation=4) == [VRAM]


def test_a_warning_is_told_also_when_its_nodes_came_after_the_model() -> None:
    assert tell(Observed(decision=NO_NODES), Observed(decision=plan())) == [VRAM]


def test_a_cordon_under_what_serves_is_told_and_its_warnings_wait_for_nodes() -> None:
    kept = Observed(decision=replace(plan(), trouble=NO_NODES))
    serves = Observed(decision=plan())
    cordoned = warning("GPUDetectionFailed", "Place", "no node")
    assert tell(serves, kept) == [cordoned]
    assert tell(serves, kept, kept, generation=4) == []
    assert tell(serves, kept, serves) == [VRAM]


def test_a_job_that_failed_for_good_is_told_once() -> None:
    running, failed = (Observed(decision=NO_NODES, cache=cache(p)) for p in ("Running", "Failed"))
    gone = warning("CacheFailed", "Cache", "HF_TOKEN is missing")
    before = Observed(decision=NO_NODES)
    assert gone in tell(failed)
    assert tell(before, failed) == tell(before, running, failed) == [gone]
    assert tell(failed, failed) == tell(failed, running) == []
    silent = Observed(decision=NO_NODES, cache=cache("Failed", None))
    assert tell(before, silent) == [gone._replace(note="")]


def test_who_takes_the_gpus_is_told_to_the_loser() -> None:
    shared = SharedGroupStatus(group_name="g", state=GroupState.PREEMPTED, preempted_by="b")

    def stands(lost_to: str) -> Observed:
        standing = Standing(status=shared, lost_to=lost_to)
        return Observed(decision=plan(), demand=Demand(replicas=0, wanted=0, standing=standing))

    told = Notice(EventType.NORMAL, "Preempted", "Preempt", "b takes the GPUs of group g")
    assert tell(Observed(decision=plan()), stands("b")) == [told]
    assert tell(stands("b"), stands("")) == []
    alone = Observed(decision=plan(), demand=Demand(replicas=0, wanted=0, idle="nobody asked"))
    assert tell(stands(""), alone) == []
