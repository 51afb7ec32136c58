# SPDX-License-Identifier: Apache-2.0
"""Cases that broke other frameworks: shutdown races, urgency, requeues, backoff, absurd delays."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.errors import ConfigurationError
from flexinfer.workqueue import (
    LOW_PRIORITY,
    MAX_DELAY,
    ExponentialBackoff,
    QueueShutDown,
    WorkQueue,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from flexinfer.envtest.clock import ManualClock
    from test.unit.workqueue.conftest import MakeQueue


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - dice for a test, the same at each run


async def test_c01_shut_down_at_any_moment_ends_every_worker_and_loses_nothing(
    make_queue: MakeQueue,
) -> None:
    dice = seeded(1)
    for _ in range(1000):
        await shut_down_at_random(make_queue(), dice)


async def shut_down_at_random(queue: WorkQueue[Hashable], dice: random.Random) -> None:
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


async def test_c03_a_delayed_urgent_key_is_next_once_it_is_due(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    start = clock.now
    queue = make_queue()
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


async def test_c06_retried_keys_keep_their_low_priority(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    queue = make_queue(ExponentialBackoff())
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


async def test_c09_backoff_never_gives_up_and_spreads_its_keys(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    start = clock.now
    queue = make_queue(ExponentialBackoff(random=seeded(9).random))
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
async def test_c10_a_delay_that_is_not_positive_is_now(make_queue: MakeQueue, delay: float) -> None:
    queue = make_queue()
    queue.add_after("a", delay)
    assert await queue.drain() == ["a"]


@pytest.mark.parametrize("delay", [1e12, 1e300, math.inf, 8.64e13, MAX_DELAY, 10**400])
async def test_c10_an_absurd_delay_is_cut_to_the_maximum(
    clock: ManualClock, make_queue: MakeQueue, delay: float
) -> None:
    queue = make_queue()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.get)
        await anyio.wait_all_tasks_blocked()
        queue.add_after("a", delay)  # the loop's timer takes it
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    clock.now += MAX_DELAY - 1
    assert len(queue) == 0
    clock.now += 1
    assert await queue.drain() == ["a"]


async def test_c10_nan_is_an_error_that_names_its_key_and_harms_no_other(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue()
    with pytest.raises(ConfigurationError, match="delay of 'a' is NaN"):
        queue.add_after("a", math.nan)
    queue.add_after("b", 0.0)
    assert await queue.drain() == ["b"]
    assert not queue._state._records
