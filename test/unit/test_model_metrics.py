# SPDX-License-Identifier: Apache-2.0
"""What the Model controller's metrics say of Models that come, change and go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.model_status import ModelStatus
from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model.metrics import LIMIT, ModelMetrics, Start
from flexinfer.errors import ConfigurationError
from flexinfer.meta.resource import NamespacedName
from flexinfer.metrics import Registry

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CHAT, OTHER = NamespacedName("prod", "chat"), NamespacedName("prod", "other")
NOTHING = ModelStatus()
START = Start("vllm")


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def condition(type_: str, since: float, reason: str, *, holds: bool) -> Tree:
    return {
        "type": type_,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": "",
        "lastTransitionTime": at(since),
    }


def status(phase: Phase, since: float = 0, *, reason: str = "R", **more: object) -> ModelStatus:
    """A status whose Ready has been as it is *since* seconds after noon."""
    ready = condition("Ready", since, reason, holds=phase is Phase.READY)
    cached = condition("Cached", since, "CacheNotReady", holds=False)
    return ModelStatus.model_validate({"phase": phase, "conditions": [ready, cached], **more})


def group(state: str, by: str = "", when: float = 0, name: str = "g") -> Tree:
    entry: Tree = {"groupName": name, "state": state}
    if by:
        entry |= {"preemptedBy": by, "preemptedAt": at(when)}
    return {"sharedGroup": entry}


class Scrape:
    """What a scrape holds, without zeros unless asked for, and without buckets."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __call__(self, family: str, *labels: str, zeros: bool = False) -> dict[str, float]:
        return {
            " ".join(sample.labels[name] for name in labels): sample.value
            for metric in self._registry.collect()
            for sample in metric.samples
            if sample.name == f"flexinfer_{family}" and (zeros or sample.value)
        }

    def lines(self) -> int:
        return sum(len(metric.samples) for metric in self._registry.collect())


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def metrics(registry: Registry) -> ModelMetrics:
    return ModelMetrics(registry=registry)


@pytest.fixture
def scrape(registry: Registry) -> Scrape:
    return Scrape(registry)


def test_exactly_one_phase_is_1(metrics: ModelMetrics, scrape: Scrape) -> None:
    metrics.observe(CHAT, NOTHING, status(Phase.IDLE), START)
    metrics.observe(CHAT, status(Phase.IDLE), status(Phase.LOADING), START)
    labels = ("model", "namespace", "phase")
    assert scrape("model_phase", *labels) == {"chat prod Loading": 1}
    assert len(scrape("model_phase", *labels, zeros=True)) == len(Phase)


def test_a_change_of_the_phase_counts_and_nothing_else_does(
    metrics: ModelMetrics, scrape: Scrape
) -> None:
    loading = status(Phase.LOADING, reason="StartingBackend")
    ready = status(Phase.READY, reason="BackendReady")
    for previous, new in ((NOTHING, loading), (loading, loading), (loading, ready)):
        metrics.observe(CHAT, previous, new, START)
    metrics.observe(CHAT, NOTHING, NOTHING, START)
    labels = ("model", "namespace", "from", "to", "reason")
    assert scrape("model_transitions_total", *labels) == {
        "chat prod  Loading StartingBackend": 1,
        "chat prod Loading Ready BackendReady": 1,
    }


def test_a_manager_that_starts_anew_shows_the_phase_and_counts_nothing(
    metrics: ModelMetrics, scrape: Scrape
) -> None:
    ready = status(Phase.READY, 60)
    metrics.observe(CHAT, ready, ready, Start("vllm", at(0), at(0)))
    assert scrape("model_phase", "phase") == {"Ready": 1}
    assert scrape("model_transitions_total", "to") == {}
    assert scrape("model_cold_start_duration_seconds_count", "model") == {}
    assert scrape("model_ready_latency_seconds_count", "model") == {}


def test_a_cold_start_lasts_from_the_new_pod_until_ready(
    metrics: ModelMetrics, scrape: Scrape
) -> None:
    cache = {"strategy": "SharedPVC", "ready": True}
    idle, ready = status(Phase.LOADING, -3600), status(Phase.READY, 42, cache=cache)
    metrics.observe(CHAT, idle, ready, Start("vllm", at(2)))
    labels = ("model", "namespace", "backend", "cache_strategy")
    sums = scrape("model_cold_start_duration_seconds_sum", *labels)
    assert sums == {"chat prod vllm SharedPVC": 40}
    latencies = scrape("model_ready_latency_seconds_sum", "model", "namespace", "backend")
    assert latencies == {"chat prod vllm": 40}
    assert scrape("model_swap_duration_seconds_sum", "group") == {}


def test_a_pod_that_recovers_is_no_cold_start(metrics: ModelMetrics, scrape: Scrape) -> None:
    crashed, ready = status(Phase.FAILED, 100), status(Phase.READY, 130)
    metrics.observe(CHAT, crashed, ready, Start("vllm", at(0)))
    assert scrape("model_cold_start_duration_seconds_count", "model") == {}
    assert scrape("model_ready_latency_seconds_sum", "model") == {"chat": 30}


def test_nothing_is_measured_without_a_pod_or_a_time_before(
    metrics: ModelMetrics, scrape: Scrape
) -> None:
    idle, ready = status(Phase.IDLE), status(Phase.READY, 9)
    metrics.observe(CHAT, idle, ready, START)
    metrics.observe(CHAT, NOTHING, ready, Start("vllm", at(1)))
    metrics.observe(CHAT, ready, NOTHING, Start("vllm", at(1)))
    metrics.observe(CHAT, idle, status(Phase.LOADING), Start("vllm", at(1)))
    assert scrape("model_ready_latency_seconds_count", "model") == {}


def test_a_swap_lasts_from_the_other_models_end_until_ready(
    metrics: ModelMetrics, scrape: Scrape
) -> None:
    waiting = status(Phase.LOADING, -100, **group("Queued"))
    ready = status(Phase.READY, 50, **group("Active"))
    metrics.observe(CHAT, waiting, ready, Start("vllm", at(10), at(5)))
    labels = ("model", "namespace", "backend", "group")
    assert scrape("model_swap_duration_seconds_sum", *labels) == {"chat prod vllm g": 45}
    crashed = status(Phase.FAILED, 100, **group("Active"))
    metrics.observe(
        CHAT, crashed, status(Phase.READY, 120, **group("Active")), Start("vllm", at(10), at(5))
    )
    assert scrape("model_swap_duration_seconds_count", "group") == {"g": 1}


def test_the_state_in_a_group_is_shown_while_there_is_a_group(
    metrics: ModelMetrics, scrape: Scrape
) -> None:
    labels = ("group", "model", "namespace", "state")
    queued, active = status(Phase.IDLE, **group("Queued")), status(Phase.IDLE, **group("Active"))
    metrics.observe(CHAT, NOTHING, queued, START)
    metrics.observe(CHAT, queued, active, START)
    shown = scrape("sharedgroup_state", *labels, zeros=True)
    assert shown == {"g chat prod Active": 1, "g chat prod Queued": 0}
    elsewhere = status(Phase.IDLE, **group("Parked", name="h"))
    metrics.observe(CHAT, active, elsewhere, START)
    assert scrape("sharedgroup_state", *labels) == {"h chat prod Parked": 1}
    metrics.observe(CHAT, elsewhere, status(Phase.IDLE), START)
    assert scrape("sharedgroup_state", *labels, zeros=True) == {}


def test_a_preemption_counts_once_and_goes_with_either_model(
    metrics: ModelMetrics, scrape: Scrape
) -> None:
    labels = ("group", "namespace", "from", "to")
    ready = status(Phase.READY, **group("Active"))
    lost = status(Phase.PREEMPTED, 9, **group("Queued", "other", 9))
    metrics.observe(CHAT, ready, lost, START)
    metrics.observe(CHAT, lost, lost, START)
    assert scrape("sharedgroup_preemptions_total", *labels) == {"g prod chat other": 1}
    again = status(Phase.PREEMPTED, 9, **group("Queued", "other", 99))
    metrics.observe(CHAT, lost, again, START)
    metrics.observe(CHAT, status(Phase.READY), again, START)
    assert scrape("sharedgroup_preemptions_total", *labels) == {"g prod chat other": 3}
    metrics.forget(OTHER)
    assert scrape("sharedgroup_preemptions_total", *labels) == {}


def test_a_job_that_fails_counts_once_a_failure(metrics: ModelMetrics, scrape: Scrape) -> None:
    def job(phase: str) -> ModelStatus:
        return status(Phase.PENDING, cache={"jobPhase": phase})

    steps = [NOTHING, *map(job, ("Running", "Failed", "Failed", "Running", "Failed"))]
    for previous, new in pairwise(steps):
        metrics.observe(CHAT, previous, new, START)
    failures = scrape("model_cache_failures_total", "model", "namespace", "reason")
    assert failures == {"chat prod CacheNotReady": 2}


def test_the_series_go_with_the_model(metrics: ModelMetrics, scrape: Scrape) -> None:
    empty = scrape.lines()
    idle = status(Phase.IDLE, -9, **group("Queued", "other"), cache={"jobPhase": "Failed"})
    metrics.observe(CHAT, NOTHING, idle, START)
    metrics.observe(CHAT, idle, status(Phase.READY, 9), Start("vllm", at(1), at(0)))
    assert scrape.lines() > empty
    metrics.forget(CHAT)
    metrics.forget(CHAT)
    metrics.forget(OTHER)
    assert scrape.lines() == empty


def test_models_beyond_the_limit_share_series_that_count_them(
    registry: Registry, scrape: Scrape
) -> None:
    metrics = ModelMetrics(registry=registry, limit=1)
    metrics.observe(CHAT, NOTHING, status(Phase.IDLE), START)
    others = [NamespacedName("prod", f"other-{n}") for n in range(3)]
    loading = status(Phase.LOADING, **group("Queued", "chat"))
    ready = status(Phase.READY, 8, **group("Active"))
    for key in others:
        metrics.observe(key, NOTHING, loading, START)
    metrics.observe(others[0], loading, ready, Start("vllm", at(1), at(1)))
    phases = scrape("model_phase", "model", "namespace", "phase")
    assert phases == {
        "chat prod Idle": 1,
        "_overflow _overflow Loading": 2,
        "_overflow _overflow Ready": 1,
    }
    states = scrape("sharedgroup_state", "group", "model", "state")
    assert states == {"_overflow _overflow Queued": 2, "_overflow _overflow Active": 1}
    preemptions = scrape("sharedgroup_preemptions_total", "group", "namespace", "from", "to")
    assert preemptions == {"_overflow _overflow _overflow chat": 3}
    assert scrape("model_swap_duration_seconds_sum", "model", "group") == {"_overflow _overflow": 7}
    before = scrape("model_transitions_total", "model", "to")
    for key in others:
        metrics.forget(key)
    assert scrape("model_phase", "model", "phase") == {"chat Idle": 1}
    assert scrape("model_transitions_total", "model", "to") == before
    metrics.forget(CHAT)
    metrics.observe(others[0], NOTHING, loading, START)
    assert "other-0 Loading" in scrape("model_phase", "model", "phase")


def test_the_limit_is_2000_models(registry: Registry, scrape: Scrape) -> None:
    metrics = ModelMetrics(registry=registry)
    for number in range(LIMIT + 1):
        metrics.observe(NamespacedName("ns", f"m{number}"), NOTHING, status(Phase.IDLE), START)
    shown = scrape("model_phase", "model")
    assert len(shown) == 2001
    assert shown["_overflow"] == 1


def test_a_limit_below_0_is_refused(registry: Registry) -> None:
    with pytest.raises(ConfigurationError, match="limit"):
        ModelMetrics(registry=registry, limit=-1)


keys = st.sampled_from([NamespacedName("prod", name) for name in "abc"])
shown = st.sampled_from([*Phase, None])


@given(st.lists(st.tuples(keys, shown), max_size=20), st.integers(0, 3))
def test_the_phases_add_up_to_the_models_that_there_are(
    steps: list[tuple[NamespacedName, Phase | None]], limit: int
) -> None:
    registry = Registry()
    metrics, scrape = ModelMetrics(registry=registry, limit=limit), Scrape(registry)
    live: dict[NamespacedName, Phase] = {}
    for key, phase in steps:
        if phase is None:
            metrics.forget(key)
            live.pop(key, None)
        else:
            metrics.observe(key, NOTHING, status(phase), START)
            live[key] = phase
    totals = dict.fromkeys(Phase, 0.0)
    for where, value in scrape("model_phase", "model", "phase").items():
        totals[Phase(where.split()[1])] += value
    assert totals == {phase: list(live.values()).count(phase) for phase in Phase}
    assert scrape("model_phase", "model").keys() - {"_overflow"} <= {key.name for key in live}
