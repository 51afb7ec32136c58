# SPDX-License-Identifier: Apache-2.0
"""What workers see of the queue: waiting, waking, cancelling, stopping."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.workqueue import QueueShutDown, TokenBucket, WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

    from flexinfer.envtest.clock import ManualClock
    from test.unit.workqueue.conftest import MakeQueue


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jump to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready and scheduled:
            self.now = max(self.now, scheduled[0].when())
        super()._run_once()  # type: ignore[misc] # the seam that asyncio has, though unnamed


def run_virtually(main: Callable[[VirtualLoop], Coroutine[object, object, None]]) -> None:
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop))


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


async def test_a_waiting_getter_is_woken_by_an_add(make_queue: MakeQueue) -> None:
    queue = make_queue()
    taken: list[Hashable] = []

    async def worker() -> None:
        key, _ = await queue.get()
        taken.append(key)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker)
        tasks.start_soon(worker)
        await settle()
        queue.add("a")
        await settle()
        assert taken == ["a"]
        queue.add("b")
    assert taken == ["a", "b"]


async def test_a_waiting_getter_is_woken_when_a_dirty_key_is_done(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.add("a")
    await queue.get()
    queue.add("a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.get)
        await settle()
        queue.done("a")


async def test_a_cancelled_getter_takes_no_key(make_queue: MakeQueue) -> None:
    queue = make_queue()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.get)
        await settle()
        tasks.cancel_scope.cancel()
    assert not queue._waiters
    queue.add("a")
    assert await queue.drain() == ["a"]


async def test_a_getter_cancelled_after_its_wake_up_passes_it_on(make_queue: MakeQueue) -> None:
    queue = make_queue()
    async with asyncio.TaskGroup() as tasks:
        first, second = tasks.create_task(queue.get()), tasks.create_task(queue.get())
        await settle()
        queue.add("a")
        first.cancel()
    assert first.cancelled()
    assert second.result() == ("a", 0)
    assert queue._woken == 0


async def test_an_add_right_after_a_cancellation_wakes_the_next_getter(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue()
    async with asyncio.TaskGroup() as tasks:
        first, second = tasks.create_task(queue.get()), tasks.create_task(queue.get())
        await settle()
        first.cancel()
        queue.add("a")
    assert first.cancelled()
    assert second.result() == ("a", 0)
    assert queue._woken == 0


async def test_a_getter_that_finds_its_key_taken_waits_on(make_queue: MakeQueue) -> None:
    queue = make_queue()
    async with asyncio.TaskGroup() as tasks:
        sleeper = tasks.create_task(queue.get())
        await settle()
        queue.add("a")
        assert await queue.get() == ("a", 0)  # without a pause, ahead of the one that was woken
        await settle()
        assert not sleeper.done()
        queue.add("b")
    assert sleeper.result() == ("b", 0)


async def test_no_key_is_lost_to_random_cancellations(make_queue: MakeQueue) -> None:
    dice = random.Random(20)  # noqa: S311 - dice for a test, the same at each run
    queue = make_queue()
    taken: Counter[Hashable] = Counter()

    async def worker() -> None:
        key, _ = await queue.get()
        taken[key] += 1
        queue.done(key)

    async with asyncio.TaskGroup() as tasks:
        alive: list[asyncio.Task[None]] = []
        for number in range(5000):
            alive = [task for task in alive if not task.done()]
            alive.extend(tasks.create_task(worker()) for _ in range(8 - len(alive)))
            if dice.random() < 0.5:
                await anyio.lowlevel.checkpoint()
            queue.add(number)
            dice.choice(alive).cancel()
        await settle()
        for task in alive:
            task.cancel()
    taken.update(await queue.drain())
    assert taken == Counter(range(5000))


def test_a_delayed_key_wakes_its_getter_when_it_is_due() -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = CountingQueue("test", clock=loop.time, registry=CollectorRegistry())
        async with asyncio.TaskGroup() as tasks:
            first, second = tasks.create_task(queue.get()), tasks.create_task(queue.get())
            await settle()
            queue.add_after(60, 60)
            queue.add_after(2, 2.5)
            queue.add_after(80, 80)
            await first
            assert loop.now == 2.5
            await second
            assert loop.now == 60
        assert (first.result().key, second.result().key) == (2, 60)
        assert queue.timers == 2  # that of 60 was put off, not left to fire beside the new one

    run_virtually(main)


def test_a_timer_without_a_getter_is_harmless(make_queue: MakeQueue) -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = make_queue(clock=loop.time)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(queue.get())
            await settle()
            queue.add_after("delayed", 1)
            queue.add("now")
        await anyio.sleep(5)
        assert await queue.get() == ("delayed", 0)

    run_virtually(main)


def test_a_timer_that_comes_early_is_set_again(make_queue: MakeQueue) -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = make_queue(clock=lambda: loop.now / 2)  # the loop's clock runs ahead
        queue.add_after("a", 1)
        await queue.get()
        assert loop.now == pytest.approx(2)

    run_virtually(main)


async def test_workers_that_never_wait_let_the_loop_turn(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        for number in range(1000):
            queue.add(number)
            await queue.get()
            clock.now += 0.001
        tasks.cancel_scope.cancel()
    assert 150 <= turns <= 250  # every 5 ms


async def test_shut_down_drops_what_is_queued_and_ends_every_get(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    ended = []

    async def worker() -> None:
        try:
            await queue.get()
        except QueueShutDown as error:
            ended.append(str(error))

    queue.add("running")
    await queue.get()
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(worker)
        await settle()
        queue.add_after("delayed", 1)
        queue.add("running")
        queue.shut_down()
        queue.shut_down()
    assert ended == ["work queue test is shut down"] * 8
    clock.now += 10
    queue.add("a")
    queue.add_after("b", 1)
    queue.add_rate_limited("c")
    assert queue.requeues("c") == 0
    clock.now += 10
    assert len(queue) == 0
    queue.done("running")
    assert len(queue) == 0
    with pytest.raises(QueueShutDown):
        await queue.get()


async def test_wait_idle_ends_when_the_last_run_has(make_queue: MakeQueue) -> None:
    queue = make_queue()
    assert await queue.wait_idle(5)
    for key in "abc":
        queue.add(key)
    await queue.get()
    await queue.get()
    seen = []

    async def wait() -> None:
        seen.append(await queue.wait_idle(5))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        tasks.start_soon(wait)
        await settle()
        queue.shut_down()
        queue.done("a")
        await settle()
        assert seen == []
        queue.done("b")
    assert seen == [True, True]


async def test_wait_idle_ends_by_shut_down_when_nothing_runs(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.add("a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.wait_idle, 5)
        await settle()
        queue.shut_down()


def test_wait_idle_says_that_time_is_up(make_queue: MakeQueue) -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = make_queue(clock=loop.time)
        queue.add("a")
        await queue.get()
        assert not await queue.wait_idle(30)
        assert loop.now == 30

    run_virtually(main)


def test_c11_a_limited_queue_wakes_once_for_each_run() -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = CountingQueue(
            "c11",
            clock=loop.time,
            rate_limiter=TokenBucket(qps=2, burst=1, clock=loop.time),
            registry=CollectorRegistry(),
        )
        runs: list[float] = []

        async def worker() -> None:
            while len(runs) < 100:
                key, _ = await queue.get()
                runs.append(loop.now)
                queue.done(key)
            queue.shut_down()

        for number in range(100):
            queue.add_rate_limited(number)
        await worker()
        assert runs == pytest.approx([number / 2 for number in range(100)])
        assert queue.timers <= 100
        assert queue.wake_ups <= 100

    run_virtually(main)


class CountingQueue(WorkQueue[int]):
    timers = 0
    wake_ups = 0

    def _on_timer(self) -> None:
        self.timers += 1
        super()._on_timer()

    def _wake_one(self) -> None:
        self.wake_ups += 1
        super()._wake_one()
