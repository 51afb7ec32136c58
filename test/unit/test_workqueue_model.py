# SPDX-License-Identifier: Apache-2.0
"""The queue against a model that is slow and obvious, in random steps."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prometheus_client import CollectorRegistry

from flexinfer.workqueue import AGEING, LOW_PRIORITY, ExponentialBackoff, QueueShutDown, WorkQueue

KEYS = st.sampled_from("abcd")
PRIORITIES = st.sampled_from([LOW_PRIORITY, -1, 0, 0, 0, 1, 7])
# Few and round, so that different keys become ready at the same moment.
DELAYS = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 10.0, 300.0])
STEPS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 10.0, 2000.0])


@dataclass
class Want:
    """A run that was asked for."""

    priority: int
    due: float
    since: float | None  # when it came to need a run; None while delayed
    number: int


class Model:
    """Every want in one dict, looked through from end to end at each step."""

    def __init__(self) -> None:
        self.now = 0.0
        self.numbers = count()
        self.wants: dict[str, Want] = {}
        self.running: dict[str, float] = {}
        self.failures: dict[str, int] = {}
        self.adds = 0
        self.waits: list[float] = []

    def advance(self, seconds: float) -> None:
        self.now += seconds
        late = [(w.due, w.number, w) for w in self.wants.values() if w.since is None]
        for due, _, want in sorted(late, key=lambda each: each[:2]):
            if due <= self.now:
                self.make_due(want, due)

    def make_due(self, want: Want, at: float) -> None:
        want.since = want.due = at
        want.number = next(self.numbers)
        self.adds += 1

    def ask(self, key: str, delay: float, priority: int) -> None:
        due = self.now + max(delay, 0.0)
        want = self.wants.get(key)
        if want is None:
            want = self.wants[key] = Want(priority, due, None, next(self.numbers))
        elif priority > want.priority:
            want.priority = priority
            if want.since is not None:
                want.number = next(self.numbers)
        if want.since is None and due < want.due:
            want.due, want.number = due, next(self.numbers)
        if want.since is None and want.due <= self.now:
            self.make_due(want, self.now)

    def ready(self) -> list[str]:
        keys = [k for k, w in self.wants.items() if w.since is not None and k not in self.running]
        return sorted(keys, key=lambda k: (self.order(self.wants[k]), self.wants[k].number))

    @staticmethod
    def order(want: Want) -> float:
        return want.due - want.priority * AGEING

    def take(self) -> tuple[str, int]:
        key = self.ready()[0]
        want = self.wants.pop(key)
        assert want.since is not None
        self.waits.append(self.now - want.since)
        self.running[key] = self.now
        return key, want.priority

    def done(self, key: str) -> None:
        if self.running.pop(key, None) is not None and key in self.wants:
            want = self.wants[key]
            if want.since is not None:
                want.due, want.number = self.now, next(self.numbers)

    def depth(self) -> dict[str, float]:
        depth: dict[str, float] = {}
        for want in self.wants.values():
            if want.since is not None:
                depth[str(want.priority)] = depth.get(str(want.priority), 0) + 1
        return depth


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.registry = CollectorRegistry()
        self.queue = WorkQueue[str](
            "machine",
            rate_limiter=ExponentialBackoff(jitter=0),
            clock=lambda: self.model.now,
            registry=self.registry,
        )
        self.stopped = False
        self.runner = asyncio.Runner()

    def teardown(self) -> None:
        try:
            self.check_depth()
        finally:
            self.runner.close()

    @rule(seconds=STEPS)
    def wait(self, seconds: float) -> None:
        self.model.advance(seconds)

    @rule(key=KEYS, priority=PRIORITIES)
    def add(self, key: str, priority: int) -> None:
        self.queue.add(key, priority=priority)
        if not self.stopped:
            self.model.ask(key, 0.0, priority)

    @rule(key=KEYS, delay=DELAYS, priority=PRIORITIES)
    def add_after(self, key: str, delay: float, priority: int) -> None:
        self.queue.add_after(key, delay, priority=priority)
        if not self.stopped:
            self.model.ask(key, delay, priority)

    @rule(key=KEYS, priority=PRIORITIES)
    def add_rate_limited(self, key: str, priority: int) -> None:
        self.queue.add_rate_limited(key, priority=priority)
        if not self.stopped:
            failures = self.model.failures.get(key, 0)
            self.model.failures[key] = failures + 1
            self.model.ask(key, min(0.005 * 2**failures, 1000.0), priority)

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.model.failures.pop(key, None)

    @precondition(lambda self: self.model.ready() and not self.stopped)
    @rule()
    def get(self) -> None:
        assert self.runner.run(self.queue.get()) == self.model.take()

    @rule(key=KEYS)
    def done(self, key: str) -> None:
        self.queue.done(key)
        self.model.done(key)

    @precondition(lambda self: self.model.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.done(data.draw(st.sampled_from(sorted(self.model.running))))

    @precondition(lambda self: len(self.model.wants) > 1)
    @rule()
    def shut_down(self) -> None:
        self.queue.shut_down()
        self.stopped = True
        self.model.wants.clear()
        with pytest.raises(QueueShutDown):
            self.runner.run(self.queue.get())

    @rule()
    def check_depth(self) -> None:
        scraped = {
            sample.labels["priority"]: sample.value
            for family in self.registry.collect()
            if family.name == "workqueue_depth"
            for sample in family.samples
        }
        assert {k: v for k, v in scraped.items() if v} == self.model.depth()
        assert self.queue.metrics.adds == self.model.adds
        assert sum(self.queue.metrics.queue_duration.counts) == len(self.model.waits)
        assert self.queue.metrics.queue_duration.total == pytest.approx(sum(self.model.waits))

    @invariant()
    def agrees(self) -> None:
        state = self.queue._state
        assert {k: self.queue.requeues(k) for k in "abcd"} == {
            k: self.model.failures.get(k, 0) for k in "abcd"
        }
        # No record without a reason, and none missing: memory is what the model says it is.
        assert state._records.keys() == self.model.wants.keys() | self.model.running.keys()
        assert {record.key for record in state._processing} == self.model.running.keys()


class ScrapedMachine(QueueMachine):
    """The same, with a scrape and a length at every step: neither may change anything."""

    @invariant()
    def length_and_depth(self) -> None:
        self.check_depth()
        assert len(self.queue) == len(self.model.ready())
        ages = sorted(self.queue.ages())
        assert ages == pytest.approx(
            sorted(self.model.now - start for start in self.model.running.values())
        )


_SETTINGS = settings(max_examples=100, stateful_step_count=40, deadline=None)

TestQueue = QueueMachine.TestCase
TestQueue.settings = _SETTINGS
TestC04DepthAtEachStep = ScrapedMachine.TestCase
TestC04DepthAtEachStep.settings = _SETTINGS
