# SPDX-License-Identifier: Apache-2.0
"""Reconciles that take too long: cancelled, counted, tried again, and in nobody's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import structlog

from flexinfer.reconcile import Request, Result

if TYPE_CHECKING:
    from test.unit.controller.conftest import Bench, Scripted

A = Request("ns", "a")


async def test_a_reconcile_that_takes_too_long_is_cancelled_counted_and_retried(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    cancelled = []

    async def stuck() -> Result:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(True)
            raise
        return Result()

    bench = new_bench(scripted(stuck), reconcile_timeout=0.01)
    with structlog.testing.capture_logs() as logs:
        await bench.run_once()
    assert cancelled == [True]
    assert bench.metric("reconcile_timeouts_total") == 1
    assert bench.queue.asked[0][0] == "limited"
    (failure,) = [line for line in logs if line["log_level"] == "error"]
    assert "took longer than 0.01 s" in failure["error"]


async def test_an_overdue_run_takes_nothing_from_the_next_one(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    left = []

    async def looks() -> Result:
        left.append(anyio.current_effective_deadline() - anyio.current_time())
        return Result()

    async def stuck() -> Result:
        await anyio.sleep_forever()
        return Result()

    bench = new_bench(scripted(stuck, looks, looks), reconcile_timeout=0.2)
    for name in ("a", "b", "c"):
        bench.queue.add(Request("ns", name))
    # Not the number of successes: the overdue name soon has its own, by its retry.
    await bench.run_until(lambda: len(left) == 2)
    assert bench.metric("reconcile_timeouts_total") == 1
    assert min(left) > 0.2 / 5


async def test_an_overdue_run_that_ends_in_several_errors_is_one_failure(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    async def breaks() -> Result:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class() as cancelled:
            raise BaseExceptionGroup("both", [cancelled, ValueError("and this")]) from None
        return Result()

    bench = new_bench(scripted(breaks, Result()), reconcile_timeout=0.02)
    bench.queue.add(A)
    await bench.run_until(lambda: bench.results()["success"] == 1)
    assert bench.metric("reconcile_timeouts_total") == 1
    assert bench.results()["error"] == 1


async def test_the_reconcilers_own_timeout_is_not_ours(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    bench = new_bench(scripted(TimeoutError("a call of its own")))
    await bench.run_once()
    assert bench.metric("reconcile_timeouts_total") == 0
    assert bench.results()["error"] == 1


async def test_a_stuck_name_does_not_hold_up_others(new_bench: type[Bench]) -> None:
    class OneStuck:
        def __init__(self) -> None:
            self.good = 0

        async def reconcile(self, request: Request) -> Result:
            if request == A:
                await anyio.sleep_forever()
            self.good += 1
            return Result()

    reconciler = OneStuck()
    bench = new_bench(reconciler, reconcile_timeout=0.02)
    bench.queue.add(A)
    for number in range(10):
        bench.queue.add(Request("ns", f"good-{number}"))
    await bench.run_until(lambda: reconciler.good == 10)
