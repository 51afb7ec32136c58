# SPDX-License-Identifier: Apache-2.0
"""Waits between tries: never shorter than asked, never all alike, never without bound."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.client.retry import NEVER, RetryPolicy, parse_retry_after
from flexinfer.errors import ConflictError, ServerError, ThrottledError


@given(asked=st.floats(0.001, 3600), status=st.sampled_from([429, 503]))
def test_a_wait_is_at_least_what_was_asked_and_at_most_a_quarter_more(
    asked: float, status: int
) -> None:
    wait = RetryPolicy().wait(ServerError("", status=status, retry_after=asked), attempt=1)
    assert wait is not None
    assert asked <= wait <= asked * 1.25


@given(attempt=st.integers(1, 4))
def test_our_own_backoff_doubles_to_its_ceiling(attempt: int) -> None:
    policy = RetryPolicy(first_wait=1, longest_wait=3)
    wait = policy.wait(ThrottledError(""), attempt=attempt)
    assert wait is not None
    ceiling = min(3, 2 ** (attempt - 1))
    assert ceiling / 2 <= wait <= ceiling


def test_waits_of_many_are_spread() -> None:
    error = ThrottledError("", retry_after=3)
    assert len({RetryPolicy().wait(error, attempt=1) for _ in range(50)}) > 40


def test_other_failures_are_not_tried_again() -> None:
    assert RetryPolicy().wait(ConflictError(""), attempt=1) is None
    assert RetryPolicy().wait(ServerError("", retry_after=1), attempt=1) is None
    assert RetryPolicy().wait(ServerError("", status=503), attempt=1) is None
    assert NEVER.wait(ThrottledError(""), attempt=1) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0), ("3", 3), (" 7 ", 7), ("99999", 3600), ("9" * 400, 3600)],
)
def test_retry_after_in_seconds(value: str, seconds: float) -> None:
    assert parse_retry_after({"retry-after": value}) == seconds


@pytest.mark.parametrize("value", ["", "-1", "1.5", "soon", "\u00b2", "Fri, 99 Jan 2038 00:00:00"])
def test_a_retry_after_that_means_nothing_is_none(value: str) -> None:
    assert parse_retry_after({"retry-after": value}) is None
    assert parse_retry_after({}) is None


def test_a_date_is_compared_with_our_clock_when_the_answer_has_no_date() -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    seconds = parse_retry_after({"retry-after": then})
    assert seconds is not None
    assert 90 < seconds <= 100


@pytest.mark.parametrize(
    ("then", "seconds"),
    [
        ("Fri, 01 Jan 2038 00:00:09 GMT", 9),
        ("Fri, 01 Jan 2038 00:00:09 -0000", 9),
        ("Fri, 01 Jan 2038 01:00:09 +0100", 9),
        ("Thu, 31 Dec 2037 00:00:00 GMT", 0),
        ("Sun, 03 Jan 2038 00:00:00 GMT", 3600),
    ],
)
def test_a_date_is_compared_with_the_date_of_the_answer(then: str, seconds: float) -> None:
    headers = {"retry-after": then, "date": "Fri, 01 Jan 2038 00:00:00 GMT"}
    assert parse_retry_after(headers) == seconds
