# SPDX-License-Identifier: Apache-2.0
"""A Job for the weights that failed for good: who says why, and when it is tried again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.model_status import CacheStatus, ModelStatus
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model import names
from controllers.model.cache_run import retry_delay
from controllers.model.cache_state import job_failed
from hack.modelcases import NOW
from hack.modelcases.weights import HUB, annotation, claim, failed, look, made_for, model, pod

if TYPE_CHECKING:
    from flexinfer.kinds.pod import Pod


def test_point_23_a_job_failed_for_good_says_why_and_when_it_is_tried_again() -> None:
    of = model(HUB)
    job = made_for(of, failed())
    found = look(of, claim=claim(), jobs=(job,), pods=(pod("Failed", "x\nset a token"),))
    due = datetime(2026, 1, 2, 3, 4, tzinfo=UTC) + retry_delay(1, "j1")
    assert (found.is_cached, found.is_failed, found.may_start) == (False, True, False)
    assert found.reason is Reason.CACHE_NOT_READY
    assert found.message == (
        f"Job m-cache-prefetch failed: set a token; it is tried again at {due:%Y-%m-%dT%H:%M:%SZ}"
    )
    assert (found.status.job_phase, found.status.message) == ("Failed", "set a token")
    assert (found.job, found.obsolete, found.retry_at) == (None, (), due)


@pytest.mark.parametrize(
    ("pods", "reason", "words"),
    [
        ((), "BackoffLimitExceeded", "the Job says BackoffLimitExceeded"),
        ((pod("Failed", "old"),), "DeadlineExceeded", "the Job says DeadlineExceeded"),
        ((pod("Failed", "said"),), "PodFailurePolicy", "said"),
    ],
)
def test_who_says_why(pods: tuple[Pod, ...], reason: str, words: str) -> None:
    of = model(HUB)
    found = look(of, claim=claim(), jobs=(made_for(of, failed(reason)),), pods=pods)
    assert found.status.message == words


def test_a_failed_job_is_made_anew_when_it_is_time() -> None:
    of, pods = model(HUB), (pod("Failed", "set a token"),)
    now = NOW + timedelta(minutes=2)
    found = look(of, claim=claim(), jobs=(made_for(of, failed()),), pods=pods, now=now)
    assert annotation(found, names.CACHE_TRY_ANNOTATION) == "2"
    assert annotation(found, names.CACHE_ERROR_ANNOTATION) == "set a token"
    assert found.message.endswith("set a token; it is tried again now")
    assert (found.is_failed, found.retry_at) == (True, None)
    made = found.job or {}
    annotations = made["metadata"]["annotations"]
    running = look(of, claim=claim(), jobs=(made_for(of, uid="j2", annotations=annotations),))
    assert running.message == (
        "Job m-cache-prefetch has not started yet; it is try 2, the one before failed with: "
        "set a token"
    )
    assert (running.is_failed, running.job) == (False, None)


@pytest.mark.parametrize(("said", "tries"), [("7", "8"), ("0", "2"), ("-3", "2"), ("x", "2")])
def test_tries_are_counted_on_the_job(said: str, tries: str) -> None:
    of = model(HUB)
    job = made_for(of, failed(), annotations={names.CACHE_TRY_ANNOTATION: said})
    found = look(of, claim=claim(), jobs=(job,), now=NOW + timedelta(hours=1))
    assert annotation(found, names.CACHE_TRY_ANNOTATION) == tries


@given(st.integers(1, 10_000), st.text(max_size=36))
def test_tries_are_spaced_from_one_minute_to_half_an_hour(tries: int, uid: str) -> None:
    delay = retry_delay(tries, uid)
    assert timedelta(minutes=1) <= delay <= timedelta(minutes=36)
    assert retry_delay(tries + 1, uid) >= delay
    assert delay <= 1.2 * timedelta(minutes=1) * 2 ** min(tries - 1, 9)
    assert retry_delay(6 + tries, uid) >= timedelta(minutes=30)


def test_a_change_of_the_spec_tries_again_at_once() -> None:
    job = made_for(model(HUB), failed(), annotations={names.CACHE_TRY_ANNOTATION: "5"})
    for cache, words in (
        ({"tokenSecretRef": {"name": "s"}}, "tried again now"),
        ({"revision": "v2"}, "about to start"),
    ):
        found = look(model(HUB, cache), claim=claim(), jobs=(job,))
        assert annotation(found, names.CACHE_TRY_ANNOTATION) == "1"
        assert annotation(found, names.CACHE_ERROR_ANNOTATION) == ""
        assert words in found.message


@pytest.mark.parametrize("at", ["", "nonsense"])
def test_a_failure_without_a_time_is_as_old_as_its_job(at: str) -> None:
    of = model(HUB)
    young = made_for(of, failed(at=at), creationTimestamp="2026-01-02T03:04:00")
    assert look(of, claim=claim(), jobs=(young,)).job is None
    old = made_for(of, failed(at=at), creationTimestamp="2026-01-01T00:00:00Z")
    assert look(of, claim=claim(), jobs=(old,)).job is not None
    ageless = made_for(of, failed(at=at))
    assert look(of, claim=claim(), jobs=(ageless,)).retry_at is not None


@pytest.mark.parametrize(
    ("before", "now", "is_told"),
    [
        (None, "Failed", True),
        ("Running", "Failed", True),
        ("Failed", "Failed", False),
        ("Failed", "Pending", False),
        ("Running", None, False),
    ],
)
def test_a_job_fails_once_between_two_statuses(
    before: str | None, now: str | None, *, is_told: bool
) -> None:
    old, new = (
        ModelStatus(cache=CacheStatus(job_phase=phase) if phase else None)
        for phase in (before, now)
    )
    assert job_failed(old, new) is is_told
