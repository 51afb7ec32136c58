# SPDX-License-Identifier: Apache-2.0
"""What stopped a rollout, how it reads, and when the Model is looked at again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from api.flexinfer.v1alpha2.model_status import CacheStatus
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model.cache_state import CacheState
from controllers.model.rollout import REFUSALS, Rollout
from controllers.model.verdict import Problem
from flexinfer.errors import (
    BadRequestError,
    Cause,
    ForbiddenError,
    InvalidError,
    NotOursError,
    ServerError,
    TerminalError,
)
from flexinfer.reconcile import Result

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ENDING = ForbiddenError("ends", causes=[Cause("NamespaceTerminating", "", "")])


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def retrying(at: datetime | None) -> CacheState:
    return CacheState(
        is_cached=False,
        reason=Reason.CACHE_NOT_READY,
        message="failed",
        may_start=False,
        status=CacheStatus(),
        retry_at=at,
    )


@pytest.mark.parametrize(
    ("error", "reason", "wait"),
    [
        (NotOursError("theirs"), Reason.NOT_OURS, 10.0),
        (TerminalError("fixed"), Reason.FIELD_IMMUTABLE, None),
        (InvalidError("wrong"), Reason.APPLY_FAILED, 300.0),
        (BadRequestError("unreadable"), Reason.APPLY_FAILED, 300.0),
        (ForbiddenError("no right"), Reason.APPLY_FAILED, None),
        (ServerError("failed calling webhook"), Reason.APPLY_FAILED, None),
    ],
)
def test_what_stopped_a_rollout_is_told_and_tried_again(
    error: Exception, reason: Reason, wait: float | None
) -> None:
    rollout = Rollout(error=error)
    passing = isinstance(error, ServerError)
    assert rollout.problem == Problem(reason, str(error), is_passing=passing)
    assert isinstance(error, REFUSALS)
    if wait is None:
        with pytest.raises(type(error)):
            rollout.look_again(NOW, later(1))
    else:
        assert rollout.look_again(NOW) == Result(requeue_after=wait)


def test_a_refusal_is_told_in_the_servers_words_without_the_request() -> None:
    said = 'Deployment.apps "m" is invalid: spec.replicas: Invalid value: -1'
    error = InvalidError(f"PATCH /apis/apps/v1/deployments/m: {said}", said=said)
    assert Rollout(error=error).problem == Problem(Reason.APPLY_FAILED, said)


def test_a_rollout_without_an_error_has_no_problem_and_waits_for_nothing() -> None:
    assert Rollout().problem is None
    assert Rollout().look_again(NOW) == Rollout().look_again(NOW, None) == Result()
    assert Rollout(cache=retrying(None)).look_again(NOW) == Result()


@pytest.mark.parametrize(
    ("retry", "moments", "wait"),
    [
        (None, (later(40), later(30)), 30.0),
        (later(20), (later(30), None), 20.0),
        (later(-20), (later(30), NOW), 30.0),
        (NOW, (later(-1),), None),
    ],
)
def test_the_next_moment_at_which_something_changes_by_itself_counts(
    retry: datetime | None, moments: tuple[datetime | None, ...], wait: float | None
) -> None:
    rollout = Rollout(cache=retrying(retry))
    assert rollout.look_again(NOW, *moments) == Result(requeue_after=wait)


@pytest.mark.parametrize(("moment", "wait"), [(3, 3.0), (30, 10.0)])
def test_a_refused_child_keeps_no_other_change_waiting(moment: float, wait: float) -> None:
    rollout = Rollout(error=NotOursError("theirs"))
    assert rollout.look_again(NOW, later(moment)) == Result(requeue_after=wait)


def test_in_a_namespace_that_ends_there_is_nothing_to_wait_for() -> None:
    assert Rollout(error=ENDING).look_again(NOW, later(1)) == Result()
    other = ForbiddenError("quota", causes=[Cause("Other", "", "")])
    with pytest.raises(ForbiddenError):
        Rollout(error=other).look_again(NOW)
