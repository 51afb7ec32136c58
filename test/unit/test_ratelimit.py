# SPDX-License-Identifier: Apache-2.0
"""Delays of the rate limiters, on a clock of the test's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import ConfigurationError
from flexinfer.workqueue import ExponentialBackoff, MaxOf, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from flexinfer.workqueue import RateLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_backoff_doubles_from_5_ms_to_1000_s() -> None:
    limiter = ExponentialBackoff[str](jitter=0)
    delays = [limiter.when("a") for _ in range(20)]
    assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
    assert delays[17] == pytest.approx(655.36)
    assert delays[18:] == [1000.0, 1000.0]
    assert limiter.requeues("a") == 20


def test_backoff_is_kept_for_each_key_and_dropped_by_forget() -> None:
    limiter = ExponentialBackoff[str](jitter=0)
    limiter.when("a")
    limiter.when("a")
    assert limiter.when("b") == 0.005
    limiter.forget("a")
    limiter.forget("never seen")
    assert limiter.requeues("a") == 0
    assert limiter.when("a") == 0.005
    limiter.forget("a")
    limiter.forget("b")
    assert not limiter._failures


@given(
    failures=st.integers(0, 10**400),
    base=st.floats(1e-300, 1e3),
    stretch=st.floats(1, 1e6),
    jitter=st.floats(0, 0.99),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_backoff_stays_within_its_bounds_however_often_a_key_fails(
    failures: int, base: float, stretch: float, jitter: float, draw: float
) -> None:
    maximum = base * stretch
    limiter = ExponentialBackoff[str](
        base=base, maximum=maximum, jitter=jitter, random=lambda: draw
    )
    limiter._failures["a"] = failures
    nominal = base * 2.0 ** min(failures, 60)
    delay = limiter.when("a")
    assert delay <= maximum
    assert delay == pytest.approx(min(nominal, maximum) * (1 - jitter * draw))


def test_the_default_jitter_spreads_keys_that_failed_together() -> None:
    limiter = ExponentialBackoff[int]()
    delays = {limiter.when(key) for key in range(100)}
    assert len(delays) > 90
    assert all(0.0025 <= delay <= 0.005 for delay in delays)


def test_bucket_lets_a_burst_through_and_then_reserves() -> None:
    clock = Clock()
    bucket = TokenBucket[str](qps=2, burst=3, clock=clock)
    assert [bucket.when("a") for _ in range(6)] == [0, 0, 0, 0.5, 1.0, 1.5]
    clock.now += 1.5
    assert bucket.when("b") == 0.5
    clock.now += 3600
    assert [bucket.when("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_bucket_does_not_tell_keys_apart() -> None:
    bucket = TokenBucket[str](qps=1, burst=1, clock=Clock())
    bucket.when("a")
    bucket.forget("a")
    assert bucket.requeues("a") == 0
    assert bucket.when("b") == 1


def test_the_longest_delay_wins_and_every_limiter_is_charged() -> None:
    backoff = ExponentialBackoff[str](base=1, maximum=8, jitter=0)
    bucket = TokenBucket[str](qps=0.25, burst=1, clock=Clock())
    both: RateLimiter[str] = MaxOf(backoff, bucket)
    assert [both.when("a") for _ in range(5)] == [1, 4, 8, 12, 16]
    assert both.requeues("a") == 5
    both.forget("a")
    assert backoff.requeues("a") == both.requeues("a") == 0
    assert both.when("a") == 20


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: ExponentialBackoff(base=0), "base"),
        (lambda: ExponentialBackoff(base=-1), "base"),
        (lambda: ExponentialBackoff(base=2, maximum=1), "maximum"),
        (lambda: ExponentialBackoff(maximum=math.inf), "maximum"),
        (lambda: ExponentialBackoff(base=math.nan), "base"),
        (lambda: ExponentialBackoff(jitter=1), "jitter"),
        (lambda: ExponentialBackoff(jitter=-0.1), "jitter"),
        (lambda: TokenBucket(qps=0), "qps"),
        (lambda: TokenBucket(qps=math.nan), "qps"),
        (lambda: TokenBucket(qps=math.inf), "qps"),
        (lambda: TokenBucket(burst=0), "burst"),
        (MaxOf, "MaxOf"),
    ],
)
def test_impossible_settings_are_refused_by_name(make: Callable[[], object], setting: str) -> None:
    with pytest.raises(ConfigurationError, match=setting):
        make()
