# SPDX-License-Identifier: Apache-2.0
"""The pure parts of the pod runner: expansion, paths, messages, back-off and statuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import ConfigurationError
from flexinfer.meta.envelope import meta_from
from hack.podrunner import status, termination
from hack.podrunner.backoff import Backoff
from hack.podrunner.environment import expand
from hack.podrunner.launch import Launch
from hack.podrunner.pod import (
    ContainerState,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
    Running,
    Terminated,
)
from hack.podrunner.record import PodRecord
from hack.podrunner.starter import RunnerOptions
from hack.podrunner.volumes import Mounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flexinfer.meta.envelope import Tree

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
EXACT = Backoff(jitter=lambda: 0.0)


def pod(
    *codes: int | None, policy: str = "Never", going: bool = False, **known: object
) -> tuple[Pod, PodRecord]:
    """A pod whose containers ended with *codes*, or run where there is none."""
    containers = [{"name": f"c{n}", "image": "flexinfer.local/x"} for n in range(len(codes))]
    found = Pod.model_validate(
        {"spec": {"nodeName": "n", "restartPolicy": policy, "containers": containers}}
    )
    meta: Tree = {"name": "p", "namespace": "ns", "uid": "u"}
    if going:
        meta["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    found = found.model_copy(
        update={"metadata": meta_from(meta), "status": PodStatus.model_validate(known)}
    )
    record = PodRecord.of(found)
    for container, code in zip(record.containers.values(), codes, strict=True):
        container.begin(container.name, LAUNCH, clock=0.0)
        if code is not None:
            container.end(code, backoff=EXACT, clock=1.0)
    return found, record


LAUNCH = Launch(
    argv=("true",),
    environment={},
    folder=Path("/nonexistent"),
    log=Path("/nonexistent/log"),
    message=Path("/nonexistent/message"),
    port=None,
)


# Expansion


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)/x", "1/x"),
        ("$(B)", "$(B)"),
        ("$$(A)", "$(A)"),
        ("echo $$", "echo $"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$()", "$()"),
        ("$(A", "$(A"),
    ],
)
def test_references_are_expanded_as_the_kubelet_does(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1"}) == expanded


@given(st.text(st.characters(exclude_characters="$")))
def test_text_without_a_dollar_stays_as_it_is(text: str) -> None:
    assert expand(text, {"": "x", "A": "y"}) == text


# Paths


MOUNTS = Mounts().beside("/models", Path("/here/m")).beside("/models/deep/", Path("/here/d"))


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("/models", "/here/m"),
        ("/models/", "/here/m/"),
        ("/models/a/b", "/here/m/a/b"),
        ("/models/deep/a", "/here/d/a"),
        ("/modelsX", "/modelsX"),
        ("models/a", "models/a"),
        ("pvc://models/a", "pvc://models/a"),
        ("--to=/models/a", "--to=/here/m/a"),
        ("to=/models/a", "to=/models/a"),
        ("--to=/elsewhere", "--to=/elsewhere"),
    ],
)
def test_a_path_in_a_mount_becomes_a_path_of_this_machine(text: str, local: str) -> None:
    assert MOUNTS.local_argument(text) == local


def test_a_value_is_rewritten_only_as_a_whole() -> None:
    assert MOUNTS.local("--to=/models/a") == "--to=/models/a"
    assert MOUNTS.folder("/elsewhere") is None


# Termination messages


def test_the_message_is_what_was_written_however_it_ended(tmp_path: Path) -> None:
    written, log = tmp_path / "message", tmp_path / "log"
    written.write_text("x" * 5000)
    log.write_text("noise\n")
    assert termination.message(written, log, since=0, falls_back=True) == "x" * 4096


@given(st.lists(st.text(st.characters(codec="ascii", categories=("L", "N"))), max_size=200))
def test_the_end_of_the_log_is_bounded_in_lines_and_bytes(
    tmp_path_factory: pytest.TempPathFactory, lines: Sequence[str]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = folder / "log"
    content = "".join(f"{line}\n" for line in lines)
    log.write_text(content)
    text = termination.message(folder / "none", log, since=0, falls_back=True)
    assert content.endswith(text)
    assert len(text) <= 2048
    assert text.count("\n") <= 80
    assert len(text) == min(len(content), 2048) or text.count("\n") == 80


def test_the_log_of_an_earlier_run_is_no_message_of_this_one(tmp_path: Path) -> None:
    written, log = tmp_path / "message", tmp_path / "log"
    written.write_text("")
    log.write_text("of the first run\nof the second\n")
    since = len("of the first run\n")
    assert termination.message(written, log, since=since, falls_back=True) == "of the second\n"
    assert termination.message(written, log, since=since, falls_back=False) == ""
    assert termination.message(tmp_path, tmp_path / "none", since=0, falls_back=True) == ""


# Back-off


def test_the_wait_begins_with_none_doubles_and_has_an_end() -> None:
    waits = [EXACT.wait(crashes) for crashes in range(10)]
    assert waits == [0, 0, 10, 20, 40, 80, 160, 300, 300, 300]
    assert EXACT.wait(10_000) == 300


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_jitter_adds_a_tenth_at_most(crashes: int, jitter: float) -> None:
    wait = Backoff(jitter=lambda: jitter).wait(crashes)
    assert EXACT.wait(crashes) <= wait <= 1.1 * EXACT.wait(crashes)


@pytest.mark.parametrize(
    ("first", "most"), [(0, 1), (2, 1), (1, float("inf")), (float("nan"), float("nan"))]
)
def test_an_impossible_backoff_is_refused(first: float, most: float) -> None:
    with pytest.raises(ConfigurationError, match="backoff"):
        Backoff(first=first, most=most)


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="processes"):
        RunnerOptions(processes=0)
    with pytest.raises(ConfigurationError, match="retry"):
        RunnerOptions(retry=0)


def test_a_long_run_makes_the_next_end_the_first_again() -> None:
    _, record = pod(1)
    (container,) = record.containers.values()
    container.begin("again", LAUNCH, clock=1.0)
    container.end(1, backoff=EXACT, clock=2.0)
    assert (container.crashes, container.due, container.restarts) == (2, 12.0, 1)
    container.begin("again", LAUNCH, clock=12.0)
    container.end(1, backoff=EXACT, clock=12.0 + 601)
    assert (container.crashes, container.due, container.restarts) == (1, 613.0, 2)


# Phases and conditions


@pytest.mark.parametrize(
    ("codes", "policy", "going", "phase"),
    [
        ((None,), "Never", False, "Running"),
        ((0,), "Never", False, "Succeeded"),
        ((0, 1), "Never", False, "Failed"),
        ((0, None), "Never", False, "Running"),
        ((0,), "OnFailure", False, "Succeeded"),
        ((1,), "OnFailure", False, "Running"),
        ((0,), "Always", False, "Running"),
        ((0,), "Always", True, "Succeeded"),
        ((143,), "Always", True, "Failed"),
        ((None,), "Always", True, "Running"),
    ],
)
def test_the_phase_follows_ends_policy_and_deletion(
    codes: tuple[int | None, ...], policy: str, *, going: bool, phase: str
) -> None:
    found, record = pod(*codes, policy=policy, going=going)
    assert status.phase(found, list(record.containers.values())) == phase


def test_a_pod_that_never_started_is_pending_and_failed_once_deleted() -> None:
    for going, phase in ((False, "Pending"), (True, "Failed")):
        found, _ = pod(0, going=going)
        fresh = list(PodRecord.of(found).containers.values())
        assert status.phase(found, fresh) == phase


def test_a_finished_pod_keeps_its_phase() -> None:
    found, record = pod(0, phase="Failed")
    assert status.phase(found, list(record.containers.values())) == "Failed"


@pytest.mark.parametrize(
    ("codes", "ready", "reason"),
    [
        ((None,), "False", "ContainersNotReady"),
        ((0,), "False", "PodCompleted"),
        ((1,), "False", "PodFailed"),
    ],
)
def test_readiness_says_why_not(codes: tuple[int | None, ...], ready: str, reason: str) -> None:
    found, record = pod(*codes)
    conditions = {c["type"]: c for c in status.intent(found, record, at=AT)["conditions"]}
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == (ready, reason)
    assert conditions["ContainersReady"]["reason"] == reason


def test_a_condition_moves_its_time_only_when_it_turns() -> None:
    before = AT - timedelta(hours=1)
    kept = PodCondition(type="Initialized", status="True", last_transition_time=before)
    turned = PodCondition(type="Ready", status="False", last_transition_time=before)
    found, record = pod(None, conditions=(kept, turned))
    (container,) = record.containers.values()
    container.ready = True
    conditions = {c["type"]: c for c in status.intent(found, record, at=AT)["conditions"]}
    assert conditions["Initialized"]["lastTransitionTime"] == "2026-01-31T11:00:00Z"
    assert conditions["Ready"]["lastTransitionTime"] == "2026-01-31T12:00:00Z"


def test_what_ran_under_another_runner_is_lost_and_what_ended_is_not() -> None:
    ran = ContainerStatus(
        name="c0", restart_count=2, state=ContainerState(running=Running(started_at=AT))
    )
    ended = ContainerStatus(
        name="c1", state=ContainerState(terminated=Terminated(exit_code=3, reason="Error"))
    )
    found, _ = pod(None, None, container_statuses=(ran, ended))
    first, second = PodRecord.of(found).containers.values()
    assert first.ended is not None
    assert (first.ended.exit_code, first.ended.reason) == (137, "ContainerStatusUnknown")
    assert (first.ended.started_at, first.restarts) == (AT, 2)
    assert second.ended == ended.state.terminated
