# SPDX-License-Identifier: Apache-2.0
"""The workers: one name each at a time, and how they end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio

from flexinfer.reconcile import Request, Result

if TYPE_CHECKING:
    from test.unit.controller.conftest import Bench, Scripted

A, B = Request("ns", "a"), Request("ns", "b")


async def test_a_cancellation_that_escapes_a_reconciler_ends_no_worker(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    reconciler = scripted(asyncio.CancelledError(), Result())
    bench = new_bench(reconciler)
    bench.queue.add(A)
    await bench.run_until(lambda: bench.results()["success"] == 1)
    assert reconciler.seen == [A, A]
    assert bench.results()["error"] == 1


async def test_no_name_is_reconciled_twice_at_once(new_bench: type[Bench]) -> None:
    class Overlap:
        def __init__(self) -> None:
            self.inside: set[Request] = set()
            self.most = 0
            self.runs = 0

        async def reconcile(self, request: Request) -> Result:
            assert request not in self.inside
            self.inside.add(request)
            self.most = max(self.most, len(self.inside))
            await anyio.sleep(0.001)
            self.inside.remove(request)
            self.runs += 1
            return Result(requeue_after=0)

    reconciler = Overlap()
    bench = new_bench(reconciler, workers=4)
    keys = [Request("ns", str(number)) for number in range(6)]
    for key in keys:
        bench.queue.add(key)
    await bench.run_until(lambda: reconciler.runs > 100)
    assert reconciler.most == 4
    assert bench.results()["error"] == 0


async def test_the_stop_waits_for_the_running_reconcile_and_drops_the_queue(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    release = anyio.Event()

    async def slow() -> Result:
        await release.wait()
        return Result()

    reconciler = scripted(slow)
    bench = new_bench(reconciler)
    bench.queue.add(A)
    bench.queue.add(B)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(bench.controller.run)
            await reconciler.ran.wait()
            assert bench.metric("active_workers") == 1
            bench.controller.shut_down()
            await anyio.wait_all_tasks_blocked()
            release.set()
    assert reconciler.seen == [A]
    assert bench.results()["success"] == 1
    assert bench.controller.cut_off == []
    assert bench.metric("active_workers") == 0


async def test_cancelling_ends_the_running_reconcile_and_names_it(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    reconciler = scripted(anyio.sleep_forever)  # type: ignore[arg-type] # it never returns
    bench = new_bench(reconciler)
    bench.queue.add(A)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(bench.controller.run)
            await reconciler.ran.wait()
            bench.controller.shut_down()
            group.cancel_scope.cancel()
    assert bench.controller.cut_off == [A]
    assert bench.results()["error"] == 0
    assert bench.metric("active_workers") == 0


async def test_a_second_run_takes_up_what_the_first_was_cancelled_at_and_what_came_since(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    reconciler = scripted(anyio.sleep_forever)  # type: ignore[arg-type] # it never returns
    bench = new_bench(reconciler)
    bench.queue.add(A)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(bench.controller.run)
            await reconciler.ran.wait()
            group.cancel_scope.cancel()
    for _ in range(100):
        bench.queue.add(B)
    assert len(bench.queue) == 2
    await bench.run_until(lambda: len(reconciler.seen) == 3)
    assert reconciler.seen == [A, A, B]
    assert bench.controller.cut_off == []
    assert bench.results()["success"] == 2
    assert bench.metric("active_workers") == 0
