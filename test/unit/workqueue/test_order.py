# SPDX-License-Identifier: Apache-2.0
"""One run for a key however often it is asked for, in the order of priority and time."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from flexinfer.errors import ConfigurationError
from flexinfer.workqueue import AGEING, LOW_PRIORITY, MAX_PRIORITY, ExponentialBackoff, WorkQueue
from flexinfer.workqueue.core import Agenda, Phase, Record

if TYPE_CHECKING:
    from flexinfer.envtest.clock import ManualClock
    from test.unit.workqueue.conftest import MakeQueue


async def test_adds_before_a_run_are_one_run_and_adds_during_it_one_more(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    queue = make_queue()
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
    assert await queue.drain() == ["b", "a"]  # and then at the tail


async def test_keys_of_one_priority_come_in_the_order_of_their_adds(make_queue: MakeQueue) -> None:
    queue = make_queue()
    for key in "cab":
        queue.add(key)
    assert await queue.drain() == ["c", "a", "b"]


async def test_the_earliest_delay_wins_and_a_plain_add_ends_it(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    queue.add_after("a", 10)
    queue.add_after("a", 5)
    queue.add_after("a", 20)
    queue.add_after("b", 7)
    queue.add("b")
    assert await queue.drain() == ["b"]
    clock.now += 5
    assert await queue.drain() == ["a"]
    clock.now += 100
    assert await queue.drain() == []


async def test_a_delay_that_ends_during_the_run_makes_the_key_dirty(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    queue.add("a")
    await queue.get()
    queue.add_after("a", 1)
    clock.now += 2
    assert len(queue) == 0
    queue.done("a")
    assert len(queue) == 1


async def test_done_of_a_key_that_is_not_processed_is_harmless(make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.add("a")
    queue.done("a")
    queue.done("never seen")
    assert await queue.drain() == ["a"]


async def test_nothing_is_kept_of_keys_that_are_idle(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    queue = make_queue(ExponentialBackoff(jitter=0))
    for number in range(1000):
        queue.add(number, priority=number)
        queue.add_rate_limited(-number - 1, priority=LOW_PRIORITY)
    clock.now += 1
    assert len(await queue.drain()) == 2000
    for number in range(1000):
        queue.forget(-number - 1)
    state = queue._state
    assert not state._records
    assert not state._processing
    assert not state._ready._heap
    assert not state._delayed._heap
    assert not queue._limiter._failures  # type: ignore[attr-defined]


async def test_delays_and_priorities_that_are_replaced_leave_nothing_behind(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue()
    for step in range(10_000):
        queue.add_after("a", 10_000 - step)
        queue.add("b", priority=step)
    assert len(queue._state._delayed._heap) < 200
    assert len(queue._state._ready._heap) < 200
    assert await queue.drain() == ["b"]


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


async def test_the_higher_priority_goes_first_and_is_never_lowered(make_queue: MakeQueue) -> None:
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


async def test_a_low_priority_key_does_not_starve(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    queue = make_queue()
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


async def test_a_raise_keeps_the_time_that_a_key_has_waited(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    queue.add("a", priority=LOW_PRIORITY)
    clock.now += 1
    queue.add("b")
    queue.add("a")
    assert await queue.drain() == ["a", "b"]


async def test_a_delayed_key_takes_the_higher_priority_and_keeps_its_delay(
    clock: ManualClock, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    queue.add_after("a", 5, priority=LOW_PRIORITY)
    queue.add_after("a", 9, priority=3)
    assert len(queue) == 0
    clock.now += 5
    assert await queue.get() == ("a", 3)


def test_a_queue_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="name of the work queue is empty"):
        WorkQueue("", registry=CollectorRegistry())


@pytest.mark.parametrize("priority", [MAX_PRIORITY + 1, -MAX_PRIORITY - 1, 10**400])
def test_a_priority_out_of_range_is_refused(make_queue: MakeQueue, priority: int) -> None:
    queue = make_queue()
    with pytest.raises(ConfigurationError, match=r"priority .* of 'a' is out of range"):
        queue.add("a", priority=priority)
    with pytest.raises(ConfigurationError, match=r"priority .* of 'a' is out of range"):
        queue.add_after("a", 1, priority=priority)
    queue.add("a", priority=MAX_PRIORITY)
    assert len(queue) == 1
