# SPDX-License-Identifier: Apache-2.0
"""When a Model is awake, and when it is idle."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.model_spec import ServerlessSpec
from api.flexinfer.v1alpha2.model_status import ModelStatus
from controllers.model.activity import Activity, Use, activity, idle_timeout, use_of
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import meta_from
from flexinfer.meta.resource import NamespacedName

KEY = NamespacedName("prod", "chat")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
IDLE, STARTUP = 300.0, 600.0
EARLIEST = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
LATEST = datetime.max.replace(tzinfo=timezone(timedelta(hours=-10)))


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def naive(time: datetime) -> datetime:
    return time.replace(tzinfo=None)


def serverless(**fields: object) -> ServerlessSpec:
    return ServerlessSpec.model_validate(fields)


def decide(
    spec: ServerlessSpec | None = None, use: Use | None = None, *, at: datetime = NOW
) -> Activity:
    return activity(KEY, spec, use or Use(), idle_seconds=IDLE, startup_seconds=STARTUP, now=at)


@pytest.mark.parametrize(
    ("spec", "last_active", "replicas"),
    [
        (None, None, 0),
        (serverless(), None, 0),
        (serverless(), ago(10), 1),
        (serverless(), ago(301), 0),
        (serverless(minReplicas=1), None, 1),
        (serverless(minReplicas=1), ago(301), 1),
        (serverless(minReplicas=3), ago(10), 3),
        (serverless(enabled=False), None, 1),
        (serverless(enabled=False, minReplicas=2), ago(301), 2),
    ],
)
def test_desired_replicas_serverless(
    spec: ServerlessSpec | None, last_active: datetime | None, replicas: int
) -> None:
    assert decide(spec, Use(last_active=last_active)).replicas == replicas


def test_get_idle_timeout() -> None:
    assert idle_timeout(None, 300) == 300
    assert idle_timeout(serverless(), 600) == 600
    assert idle_timeout(serverless(idleTimeout="90s"), 600) == 90
    assert idle_timeout(serverless(idleTimeout="0s"), 600) == 0


def test_the_idle_timeout_counts_from_the_last_request_or_from_ready() -> None:
    use = Use(last_active=ago(200))
    assert decide(use=use) == Activity(replicas=1, until=ago(200 - IDLE))
    assert decide(use=replace(use, ready_since=ago(250))).until == ago(200 - IDLE)
    assert decide(use=replace(use, ready_since=ago(50))).until == ago(50 - IDLE)
    assert decide(serverless(idleTimeout="1h"), use).until == ago(200 - 3600)


def test_with_an_idle_timeout_of_0_a_model_that_was_woken_stays_awake() -> None:
    spec = serverless(idleTimeout="0s")
    assert decide(spec).replicas == 0
    assert decide(spec, Use(last_active=ago(10**9))) == Activity(replicas=1)


def test_what_loads_is_not_stopped_within_its_startup_budget() -> None:
    use = Use(last_active=ago(500), loading_since=ago(490))
    assert decide(use=use) == Activity(replicas=1, until=ago(490 - STARTUP))
    assert decide(use=use, at=ago(490 - STARTUP)).replicas == 0


def test_the_cold_start_timeout_counts_when_it_is_longer() -> None:
    use = Use(last_active=ago(500), loading_since=ago(490))
    assert decide(serverless(coldStartTimeout="20m"), use).until == ago(490 - 1200)


def test_a_step_that_began_within_the_budget_may_take_it_again() -> None:
    use = Use(last_active=ago(1000), loading_since=ago(1000), progress_at=ago(410))
    assert decide(use=use).until == ago(410 - STARTUP)
    late = replace(use, last_active=ago(1100), loading_since=ago(1100))
    assert decide(use=late).until == ago(1100 - 2 * STARTUP)
    earlier = replace(use, last_active=ago(590), loading_since=ago(590), progress_at=ago(9000))
    assert decide(use=earlier).until == ago(590 - STARTUP)


@pytest.mark.parametrize("name", ["ready_since", "loading_since"])
def test_a_backend_that_starts_again_and_again_does_not_stay_for_ever(name: str) -> None:
    use = Use(last_active=ago(2 * IDLE + 2 * STARTUP), **{name: ago(1)})
    assert decide(use=use).replicas == 0


def test_ready_tells_why_nothing_runs_and_how_to_wake_it() -> None:
    cure = (
        "wake it with `flexinfer wake chat -n prod` or "
        "`kubectl annotate mdl/chat -n prod flexinfer.ai/activate=now --overwrite`"
    )
    assert decide().because == f"No replica is wanted: it was not asked for yet; {cure}"
    idle = decide(use=Use(last_active=ago(301)))
    assert idle.because == (
        "No replica is wanted: it was asked for last at 2026-01-02T02:59:04Z, and its idle "
        f"timeout is 5m0s; {cure}"
    )
    later = decide(use=Use(last_active=ago(301)), at=NOW + timedelta(days=1))
    assert later == idle


@pytest.mark.parametrize(
    ("odd", "replicas"),
    [
        (NOW + timedelta(days=400), 1),
        (LATEST, 1),
        (naive(LATEST), 1),
        (EARLIEST, 0),
        (naive(EARLIEST), 0),
        (naive(ago(10)), 1),
        (naive(ago(301)), 0),
    ],
)
def test_odd_times_are_taken_for_what_they_can_be(odd: datetime, replicas: int) -> None:
    found = decide(use=Use(last_active=odd))
    assert found.replicas == replicas
    assert found.until is None or NOW < found.until <= NOW + timedelta(seconds=IDLE)


def test_the_longest_timeouts_that_there_are_break_no_date() -> None:
    longest = "2540400h"
    spec = serverless(idleTimeout=longest, coldStartTimeout=longest)
    use = Use(last_active=NOW, ready_since=NOW, loading_since=NOW, progress_at=NOW)
    assert decide(spec, use).replicas == 1


# What somebody may have written.
anytime = st.one_of(
    st.none(),
    st.sampled_from([EARLIEST, LATEST, naive(EARLIEST), naive(LATEST)]),
    st.datetimes(),
    st.integers(-10_000, 10_000).map(ago),
)
uses = st.builds(
    Use, last_active=anytime, ready_since=anytime, loading_since=anytime, progress_at=anytime
)
durations = st.sampled_from(["0s", "1s", "90s", "5m", "2540400h"])
specs = st.one_of(
    st.none(),
    st.builds(
        serverless,
        enabled=st.booleans(),
        minReplicas=st.integers(0, 3),
        idleTimeout=st.one_of(st.none(), durations),
        coldStartTimeout=durations,
    ),
)


@given(specs, uses)
def test_the_next_look_is_in_the_future_and_until_then_the_answer_stays(
    spec: ServerlessSpec | None, use: Use
) -> None:
    found = decide(spec, use)
    assert bool(found.because) == (found.replicas == 0)
    if found.until is None:
        return
    assert found.until > NOW
    for share in (0.0, 0.3, 0.999):
        assert decide(spec, use, at=NOW + (found.until - NOW) * share).replicas == found.replicas


# What can be true: nothing of it lies in the future.
past = st.one_of(st.none(), st.integers(0, 10_000).map(ago))
facts = st.builds(Use, last_active=past, ready_since=past, loading_since=past, progress_at=past)


@given(specs, facts, st.integers(0, 100_000))
def test_as_time_goes_by_a_model_falls_idle_and_never_wakes_by_itself(
    spec: ServerlessSpec | None, use: Use, seconds: int
) -> None:
    later = NOW + timedelta(seconds=seconds)
    now, then = decide(spec, use), decide(spec, use, at=later)
    assert then.replicas <= now.replicas
    if now.until is not None:
        assert then.replicas == (now.replicas if later < now.until else 0)
    else:
        assert then == now


@given(specs, facts, st.integers(0, 10_000))
def test_a_later_request_never_leaves_less(
    spec: ServerlessSpec | None, use: Use, seconds: int
) -> None:
    asked_later = replace(use, last_active=ago(seconds))
    if use.last_active is not None and use.last_active > ago(seconds):
        use, asked_later = asked_later, use
    assert decide(spec, asked_later).replicas >= decide(spec, use).replicas


@given(facts.filter(lambda use: use.last_active is not None))
def test_no_pod_keeps_a_model_longer_than_two_starts_and_two_idle_timeouts(use: Use) -> None:
    assert use.last_active is not None
    end = use.last_active + timedelta(seconds=2 * IDLE + 2 * STARTUP)
    assert decide(use=use, at=max(end, NOW)).replicas == 0


def status(ready: str, **more: Any) -> ModelStatus:
    condition = {
        "type": "Ready",
        "status": ready,
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return ModelStatus.model_validate({"conditions": [condition], **more})


@pytest.mark.parametrize("odd", ["2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "soon", {}])
def test_a_signal_that_is_no_time_is_none_and_spoils_nothing_else(odd: object) -> None:
    read = status("True", lastActiveTime=odd)
    assert read.last_active_time is None
    assert len(read.conditions) == 1


def pod(created: str | None) -> Pod:
    return Pod(metadata=meta_from({"name": "p", "creationTimestamp": created}))


def test_what_is_known_of_the_use_comes_from_the_status_and_the_newest_pod() -> None:
    asked, step = "2026-01-01T01:00:00Z", "2026-01-01T01:30:00Z"
    pods = [pod("2026-01-01T01:00:01Z"), pod("2026-01-01T01:20:00Z")]
    day = datetime(2026, 1, 1, tzinfo=UTC)
    ready = use_of(status("True", lastActiveTime=asked), pods)
    assert ready == Use(last_active=day.replace(hour=1), ready_since=day)
    loading = use_of(status("False", lastActiveTime=asked, loadingProgressAt=step), pods)
    assert loading == Use(
        last_active=day.replace(hour=1),
        loading_since=day.replace(hour=1, minute=20),
        progress_at=day.replace(hour=1, minute=30),
    )
    assert use_of(ModelStatus(), ()) == use_of(ModelStatus(), [pod("soon")]) == Use()
    assert use_of(ModelStatus(), [pod(None)]) == Use()
