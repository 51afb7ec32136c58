# SPDX-License-Identifier: Apache-2.0
"""What a worker and a source see of the queue: waiting, waking, cancelling, stopping."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from itertools import count, pairwise
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.errors import ConfigurationError
from flexinfer.workqueue import (
    AGEING,
    LOW_PRIORITY,
    MAX_DELAY,
    MAX_PRIORITY,
    ExponentialBackoff,
    QueueShutDown,
    RateLimiter,
    TokenBucket,
    WorkQueue,
)
from flexinfer.workqueue.core import Agenda, Phase, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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


def make_queue(
    clock: Callable[[], float] | None = None, limiter: RateLimiter[Hashable] | None = None
) -> WorkQueue[Hashable]:
    return WorkQueue(
        "test", clock=clock or Clock(), rate_limiter=limiter, registry=CollectorRegistry()
    )


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - dice for a test, the same at each run


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


async def drain(queue: WorkQueue[Hashable]) -> list[Hashable]:
    keys = []
    while len(queue):
        key, _ = await queue.get()
        queue.done(key)
        keys.append(key)
    return keys


# --- one record per key ---------------------------------------------------------------------


async def test_adds_before_a_run_are_one_run_and_adds_during_it_one_more() -> None:
    clock = Clock()
    queue = make_queue(clock)
    for _ in range(3):
        queue.add("a")
    assert len(queue) == 1
    await queue.get()
    for _ in range(3):
        queue.add("a")
    clock.now += 1
    queue.add("b")
    clock.now += 1
    assert len(queue) == 1  # a waits for its own run to end
    queue.done("a")
    assert await drain(queue) == ["b", "a"]  # and then at the tail


async def test_keys_of_one_priority_come_in_the_order_of_their_adds() -> None:
    queue = make_queue()
    for key in "cab":
        queue.add(key)
    assert await drain(queue) == ["c", "a", "b"]


async def test_the_earliest_delay_wins_and_a_plain_add_ends_it() -> None:
    clock = Clock()
    queue = make_queue(clock)
    queue.add_after("a", 10)
    queue.add_after("a", 5)
    queue.add_after("a", 20)
    queue.add_after("b", 7)
    queue.add("b")
    assert await drain(queue) == ["b"]
    clock.now += 5
    assert await drain(queue) == ["a"]
    clock.now += 100
    assert await drain(queue) == []


async def test_a_delay_that_ends_during_the_run_makes_the_key_dirty() -> None:
    clock = Clock()
    queue = make_queue(clock)
    queue.add("a")
    await queue.get()
    queue.add_after("a", 1)
    clock.now += 2
    assert len(queue) == 0
    queue.done("a")
    assert len(queue) == 1


async def test_done_of_a_key_that_is_not_processed_is_harmless() -> None:
    queue = make_queue()
    queue.add("a")
    queue.done("a")
    queue.done("never seen")
    assert await drain(queue) == ["a"]


async def test_nothing_is_kept_of_keys_that_are_idle() -> None:
    clock = Clock()
    queue = make_queue(clock, ExponentialBackoff(jitter=0))
    for number in range(1000):
        queue.add(number, priority=number)
        queue.add_rate_limited(-number - 1, priority=LOW_PRIORITY)
    clock.now += 1
    assert len(await drain(queue)) == 2000
    for number in range(1000):
        queue.forget(-number - 1)
    state = queue._state
    assert not state._records
    assert not state._processing
    assert not state._ready._heap
    assert not state._delayed._heap
    assert not queue._limiter._failures  # type: ignore[attr-defined]


async def test_delays_and_priorities_that_are_replaced_leave_nothing_behind() -> None:
    queue = make_queue()
    for step in range(10_000):
        queue.add_after("a", 10_000 - step)
        queue.add("b", priority=step)
    assert len(queue._state._delayed._heap) < 200
    assert len(queue._state._ready._heap) < 200
    assert await drain(queue) == ["b"]


def test_an_agenda_counts_only_its_valid_entries() -> None:
    agenda: Agenda[str] = Agenda(count(1))
    records = [Record(key, Phase.DELAYED, 0, 0.0) for key in "abc"]
    for order, record in enumerate(records):
        agenda.push(order, record)
    agenda.discard(records[0])
    assert len(agenda) == 2
    assert agenda.first() == 1
    assert len(agenda) == 2
    agenda.discard(records[1])
    assert agenda.pop() is records[2]
    assert len(agenda) == len(agenda._heap) == 0


# --- priorities -----------------------------------------------------------------------------


async def test_the_higher_priority_goes_first_and_is_never_lowered() -> None:
    queue = make_queue()
    queue.add("low", priority=LOW_PRIORITY)
    queue.add("normal")
    queue.add("raised", priority=LOW_PRIORITY)
    queue.add("raised", priority=5)
    queue.add("raised", priority=1)
    assert [await queue.get() for _ in range(3)] == [
        ("raised", 5),
        ("normal", 0),
        ("low", LOW_PRIORITY),
    ]


async def test_a_low_priority_key_does_not_starve() -> None:
    clock = Clock()
    queue = make_queue(clock)
    queue.add("low", priority=LOW_PRIORITY)
    for waited in range(10_000):
        queue.add(waited)
        queue.add(-1 - waited)  # twice what the one worker can do
        clock.now += 1
        key, _ = await queue.get()
        queue.done(key)
        if key == "low":
            break
    assert key == "low"
    # It lets by what came within its handicap, and nothing that came later.
    assert waited == pytest.approx(2 * -LOW_PRIORITY * AGEING, abs=2)


async def test_a_raise_keeps_the_time_that_a_key_has_waited() -> None:
    clock = Clock()
    queue = make_queue(clock)
    queue.add("a", priority=LOW_PRIORITY)
    clock.now += 1
    queue.add("b")
    queue.add("a")
    assert await drain(queue) == ["a", "b"]


async def test_a_delayed_key_takes_the_higher_priority_and_keeps_its_delay() -> None:
    clock = Clock()
    queue = make_queue(clock)
    queue.add_after("a", 5, priority=LOW_PRIORITY)
    queue.add_after("a", 9, priority=3)
    assert len(queue) == 0
    clock.now += 5
    assert await queue.get() == ("a", 3)


# --- waiting and waking ---------------------------------------------------------------------


async def test_a_waiting_getter_is_woken_by_an_add() -> None:
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


async def test_a_waiting_getter_is_woken_when_a_dirty_key_is_done() -> None:
    queue = make_queue()
    queue.add("a")
    await queue.get()
    queue.add("a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.get)
        await settle()
        queue.done("a")


async def test_a_cancelled_getter_takes_no_key() -> None:
    queue = make_queue()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.get)
        await settle()
        tasks.cancel_scope.cancel()
    assert not queue._waiters
    queue.add("a")
    assert await drain(queue) == ["a"]


async def test_a_getter_cancelled_after_its_wake_up_passes_it_on() -> None:
    queue = make_queue()
    async with asyncio.TaskGroup() as tasks:
        first, second = tasks.create_task(queue.get()), tasks.create_task(queue.get())
        await settle()
        queue.add("a")
        first.cancel()
    assert first.cancelled()
    assert second.result() == ("a", 0)
    assert queue._woken == 0


async def test_an_add_right_after_a_cancellation_wakes_the_next_getter() -> None:
    queue = make_queue()
    async with asyncio.TaskGroup() as tasks:
        first, second = tasks.create_task(queue.get()), tasks.create_task(queue.get())
        await settle()
        first.cancel()
        queue.add("a")
    assert first.cancelled()
    assert second.result() == ("a", 0)
    assert queue._woken == 0


async def test_a_getter_that_finds_its_key_taken_waits_on() -> None:
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


async def test_no_key_is_lost_to_random_cancellations() -> None:
    dice = seeded(20)
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
    taken.update(await drain(queue))
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


def test_a_timer_without_a_getter_is_harmless() -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = make_queue(loop.time)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(queue.get())
            await settle()
            queue.add_after("delayed", 1)
            queue.add("now")
        await anyio.sleep(5)
        assert await queue.get() == ("delayed", 0)

    run_virtually(main)


def test_a_timer_that_comes_early_is_set_again() -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = make_queue(lambda: loop.now / 2)  # the loop's clock runs ahead
        queue.add_after("a", 1)
        await queue.get()
        assert loop.now == pytest.approx(2)

    run_virtually(main)


async def test_workers_that_never_wait_let_the_loop_turn() -> None:
    clock = Clock()
    queue = make_queue(clock)
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


# --- stopping -------------------------------------------------------------------------------


async def test_shut_down_drops_what_is_queued_and_ends_every_get() -> None:
    clock = Clock()
    queue = make_queue(clock)
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


async def test_wait_idle_ends_when_the_last_run_has() -> None:
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


async def test_wait_idle_ends_by_shut_down_when_nothing_runs() -> None:
    queue = make_queue()
    queue.add("a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.wait_idle, 5)
        await settle()
        queue.shut_down()


def test_wait_idle_says_that_time_is_up() -> None:
    async def main(loop: VirtualLoop) -> None:
        queue = make_queue(loop.time)
        queue.add("a")
        await queue.get()
        assert not await queue.wait_idle(30)
        assert loop.now == 30

    run_virtually(main)


# --- refusals -------------------------------------------------------------------------------


def test_a_queue_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="name of the work queue is empty"):
        WorkQueue("", registry=CollectorRegistry())


@pytest.mark.parametrize("priority", [MAX_PRIORITY + 1, -MAX_PRIORITY - 1, 10**400])
def test_a_priority_out_of_range_is_refused(priority: int) -> None:
    queue = make_queue()
    with pytest.raises(ConfigurationError, match=r"priority .* of 'a' is out of range"):
        queue.add("a", priority=priority)
    with pytest.raises(ConfigurationError, match=r"priority .* of 'a' is out of range"):
        queue.add_after("a", 1, priority=priority)
    queue.add("a", priority=MAX_PRIORITY)
    assert len(queue) == 1


# --- cases that broke other frameworks --------------------------------------------------------


async def test_c01_shut_down_at_any_moment_ends_every_worker_and_loses_nothing() -> None:
    dice = seeded(1)
    for _ in range(1000):
        await shut_down_at_random(dice)


async def shut_down_at_random(dice: random.Random) -> None:
    queue = make_queue()
    taken: list[Hashable] = []
    ended = 0

    async def worker() -> None:
        nonlocal ended
        try:
            while True:
                key, _ = await queue.get()
                taken.append(key)
                if dice.random() < 0.3:
                    await anyio.lowlevel.checkpoint()
                queue.done(key)
        except QueueShutDown:
            ended += 1

    stop_at = dice.randrange(100)
    with anyio.fail_after(1):
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(worker)
            for number in range(stop_at):
                if dice.random() < 0.2:
                    await anyio.lowlevel.checkpoint()
                queue.add(number)
            left = len(queue)
            queue.shut_down()
            for number in range(stop_at, 100):
                queue.add(number)
    assert ended == 8
    assert len(taken) + left == stop_at
    assert len(set(taken)) == len(taken)
    assert queue._state.is_idle


async def test_c03_a_delayed_urgent_key_is_next_once_it_is_due() -> None:
    clock = Clock()
    start = clock.now
    queue = make_queue(clock)
    for number in range(1000):
        queue.add(number, priority=LOW_PRIORITY)
    queue.add_after("urgent", 0.1)
    while True:
        due = clock.now >= start + 0.1
        key, _ = await queue.get()
        queue.done(key)
        assert (key == "urgent") == due
        if due:
            break
        clock.now += 0.005


async def test_c06_retried_keys_keep_their_low_priority() -> None:
    clock = Clock()
    queue = make_queue(clock, ExponentialBackoff())
    for number in range(500):
        queue.add(number, priority=LOW_PRIORITY)
    for _ in range(500):
        key, priority = await queue.get()
        queue.add_rate_limited(key, priority=priority)
        queue.done(key)
        clock.now += 0.001
    clock.now += 0.005
    assert len(queue) == 500
    queue.add("live")
    assert await queue.get() == ("live", 0)
    assert {(await queue.get()).priority for _ in range(500)} == {LOW_PRIORITY}


async def test_c08_many_short_requeues_at_once_all_run_again() -> None:
    dice = seeded(8)
    keys, runs_each = 20_000, 3
    queue: WorkQueue[int] = WorkQueue("c08", registry=CollectorRegistry())
    runs: Counter[int] = Counter()
    largest = 0
    all_ran = anyio.Event()

    async def worker() -> None:
        nonlocal largest
        while True:
            try:
                key, _ = await queue.get()
            except QueueShutDown:
                return
            runs[key] += 1
            if runs[key] < runs_each:
                queue.add_after(key, dice.random() * 0.01)
            queue.done(key)
            largest = max(largest, len(queue._state._records))
            if runs.total() == keys * runs_each:
                all_ran.set()

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(worker)
        for key in range(keys):
            queue.add(key)
        with anyio.fail_after(60):
            await all_ran.wait()
        queue.shut_down()
    assert set(runs.values()) == {runs_each}
    assert largest <= keys
    assert not queue._state._records
    assert len(queue._state._delayed._heap) == 0


async def test_c09_backoff_never_gives_up_and_spreads_its_keys() -> None:
    clock = Clock()
    start = clock.now
    queue = make_queue(clock, ExponentialBackoff(random=seeded(9).random))
    attempts: dict[Hashable, list[float]] = {number: [] for number in range(200)}
    for key in attempts:
        queue.add(key)
    while (due := queue._state.next_due()) < math.inf or len(queue):
        clock.now = max(clock.now, due if not len(queue) else clock.now)
        while len(queue):
            key, _ = await queue.get()
            attempts[key].append(clock.now - start)
            if len(attempts[key]) < 30:
                queue.add_rate_limited(key)
            queue.done(key)
    for times in attempts.values():
        delays = [later - earlier for earlier, later in pairwise(times)]
        assert len(delays) == 29
        for failures, delay in enumerate(delays):
            nominal = min(0.005 * 2**failures, 1000.0)
            assert nominal / 2 - 1e-6 <= delay <= nominal + 1e-6
    for attempt in range(20, 30):  # all at the maximum
        buckets = Counter(int(times[attempt] / 2) for times in attempts.values())
        assert max(buckets.values()) <= 0.2 * len(attempts)


@pytest.mark.parametrize("delay", [-1, -math.inf, -1e300, 0, 0.0])
async def test_c10_a_delay_that_is_not_positive_is_now(delay: float) -> None:
    queue = make_queue()
    queue.add_after("a", delay)
    assert await drain(queue) == ["a"]


@pytest.mark.parametrize("delay", [1e12, 1e300, math.inf, 8.64e13, MAX_DELAY, 10**400])
async def test_c10_an_absurd_delay_is_cut_to_the_maximum(delay: float) -> None:
    clock = Clock()
    queue = make_queue(clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.get)
        await settle()
        queue.add_after("a", delay)  # the loop's timer takes it
        await settle()
        tasks.cancel_scope.cancel()
    clock.now += MAX_DELAY - 1
    assert len(queue) == 0
    clock.now += 1
    assert await drain(queue) == ["a"]


async def test_c10_nan_is_an_error_that_names_its_key_and_harms_no_other() -> None:
    queue = make_queue()
    with pytest.raises(ConfigurationError, match="delay of 'a' is NaN"):
        queue.add_after("a", math.nan)
    queue.add_after("b", 0.0)
    assert await drain(queue) == ["b"]
    assert not queue._state._records


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
