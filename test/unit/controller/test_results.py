# SPDX-License-Identifier: Apache-2.0
"""What follows a reconcile that returns: nothing more, or another run after a delay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.reconcile import Request, Result

if TYPE_CHECKING:
    from test.unit.controller.conftest import Bench, Scripted

A, B = Request("ns", "a"), Request("ns", "b")


async def test_success_forgets_the_failures(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    bench = new_bench(scripted(Result()))
    await bench.run_once()
    assert bench.queue.forgotten == [A]
    assert bench.queue.asked == []
    assert bench.results() == {"success": 1, "error": 0, "requeue": 0, "requeue_after": 0}


async def test_requeue_after_comes_up_to_a_tenth_later(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    bench = new_bench(scripted(Result(requeue_after=30)))
    await bench.run_once(priority=7)
    assert bench.queue.forgotten == [A]
    assert bench.only_retry() == ("after", A, 31.5, 7)
    assert bench.results() == {"success": 0, "error": 0, "requeue": 0, "requeue_after": 1}


@given(st.floats(min_value=0, max_value=1e9), st.floats(min_value=0, max_value=1))
def test_the_jitter_never_shortens_and_stays_within_a_tenth(
    new_bench: type[Bench], scripted: type[Scripted], delay: float, draw: float
) -> None:
    controller = new_bench(scripted(), jitter=lambda: draw).controller
    assert delay <= controller._spread(delay) <= delay * 1.1 * (1 + 1e-9)


@pytest.mark.parametrize("delay", [0.0, -1.0, -math.inf])
async def test_a_delay_that_is_not_positive_is_immediate(
    new_bench: type[Bench], scripted: type[Scripted], delay: float
) -> None:
    reconciler = scripted(Result(requeue_after=delay), Result())
    bench = new_bench(reconciler)
    bench.queue.add(A)
    await bench.run_until(reconciler.ran.is_set)
    assert reconciler.seen == [A, A]


@pytest.mark.parametrize("delay", [1e12, math.inf, 10**400])
async def test_an_absurd_delay_waits_long_and_does_no_harm(
    new_bench: type[Bench], scripted: type[Scripted], delay: float
) -> None:
    bench = new_bench(scripted(Result(requeue_after=delay)))
    await bench.run_once()
    assert bench.results()["requeue_after"] == 1
    assert bench.results()["error"] == 0


async def test_nan_is_an_error_of_that_key_only(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    reconciler = scripted(Result(requeue_after=math.nan), Result())
    bench = new_bench(reconciler)
    bench.queue.add(A)
    bench.queue.add(B)
    with structlog.testing.capture_logs() as logs:
        await bench.run_until(lambda: reconciler.seen.count(A) == 2)
    assert reconciler.seen == [A, B, A]
    assert bench.results() == {"success": 2, "error": 1, "requeue": 0, "requeue_after": 0}
    assert any("requeue_after is NaN" in line.get("error", "") for line in logs)
