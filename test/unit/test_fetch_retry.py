# SPDX-License-Identifier: Apache-2.0
"""How long the fetcher bears with a hub, and what it tells meanwhile; time is made up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internal.fetch.errors import FetchError, TransientError
from internal.fetch.progress import Progress
from internal.fetch.retry import LIMIT, Patience, retry_after

if TYPE_CHECKING:
    from collections.abc import Mapping


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def patience(clock: Clock, *, share: float = 1.0, limit: float = LIMIT) -> Patience:
    return Patience(limit=limit, clock=clock, sleep=clock.sleep, random_share=lambda: share)


def test_pauses_double_up_to_the_longest() -> None:
    clock = Clock()
    bearing = patience(clock)
    for _ in range(7):
        bearing.pause(TransientError("busy"))
    assert clock.slept == [1, 2, 4, 8, 16, 30, 30]


def test_the_limit_ends_the_run_and_says_so() -> None:
    clock = Clock()
    bearing = patience(clock)

    def busy() -> None:
        raise TransientError("hub answers 503 for config.json")

    with pytest.raises(
        FetchError, match=r"hub answers 503 for config\.json; given up after 1"
    ) as end:
        bearing.attempt(busy)
    assert not isinstance(end.value, TransientError)
    assert 1000 + LIMIT - 30 <= clock.now <= 1000 + LIMIT


def test_the_hubs_own_wish_is_heeded() -> None:
    clock = Clock()
    patience(clock, share=0.0).pause(TransientError("busy", retry_after=20))
    assert clock.slept == [20.5]


def test_a_wish_beyond_the_limit_is_left_to_the_next_run() -> None:
    clock = Clock()
    with pytest.raises(FetchError, match=r"asks for 3600 s; given up after 0 s"):
        patience(clock).pause(TransientError("busy", retry_after=3600))
    assert clock.slept == []


@pytest.mark.parametrize(("count", "next_pause"), [(1 << 20, 1), ((1 << 20) - 1, 4)])
def test_only_worthwhile_progress_begins_anew(count: int, next_pause: float) -> None:
    clock = Clock()
    bearing = patience(clock)
    bearing.pause(TransientError("cut"))
    bearing.pause(TransientError("cut"))
    bearing.progressed(count)
    bearing.pause(TransientError("cut"))
    assert clock.slept[-1] == next_pause


def test_what_succeeds_in_the_end_is_returned() -> None:
    clock = Clock()
    answers: list[int | TransientError] = [TransientError("a"), TransientError("b"), 7]

    def work() -> int:
        answer = answers.pop(0)
        if isinstance(answer, TransientError):
            raise answer
        return answer

    bearing = patience(clock)
    assert bearing.attempt(work) == 7
    bearing.pause(TransientError("c"))
    assert clock.slept == [1, 2, 1]


@given(st.floats(0, 1), st.integers(0, 400), st.none() | st.floats(0, 170))
def test_no_run_of_pauses_is_longer_than_the_limit(
    share: float, limit: int, wish: float | None
) -> None:
    clock = Clock()
    bearing = patience(clock, share=share, limit=limit)

    def busy() -> None:
        raise TransientError("busy", retry_after=wish)

    with pytest.raises(FetchError):
        bearing.attempt(busy)
    assert sum(clock.slept) <= limit + 1e-6
    assert all(pause >= (wish or 0) + 0.5 for pause in clock.slept)


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({}, None),
        ({"Retry-After": "12"}, 12.0),
        ({"Retry-After": "Fri, 02 Jan 2026 03:05:05 GMT"}, 60.0),
        ({"Retry-After": "Fri, 02 Jan 2026 03:00:00 GMT"}, 0.0),
        ({"Retry-After": "Fri, 02 Jan 2026 03:05:05"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "²"}, None),
        ({"RateLimit": '"api";r=0;t=55'}, 55.0),
        ({"RateLimit": '"api";r=9;t=55'}, None),
        ({"RateLimit": '"api";r=0;t=55', "Retry-After": "3"}, 3.0),
    ],
)
def test_the_pause_is_read_however_it_is_said(
    headers: Mapping[str, str], pause: float | None
) -> None:
    assert retry_after(headers, now=NOW) == pause


def test_progress_is_told_every_few_seconds() -> None:
    clock, lines = Clock(), list[str]()
    progress = Progress("fetched", 100, done=10, write=lines.append, clock=clock)
    progress.advance(20)
    clock.now += 4.9
    progress.advance(20)
    assert lines == []
    clock.now += 0.1
    progress.advance(-5)
    progress.advance(1)
    assert lines == ["fetched 45 of 100 bytes"]
    progress.say()
    assert lines[1:] == ["fetched 46 of 100 bytes"]
