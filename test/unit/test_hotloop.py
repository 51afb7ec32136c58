# SPDX-License-Identifier: Apache-2.0
"""Hot loops: found by the writes of successful runs, once a minute, with bounded memory."""

from __future__ import annotations

import contextvars
from collections import Counter

import anyio
import structlog
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from flexinfer import hotloop, runs
from flexinfer.hotloop import HotLoops
from flexinfer.meta.resource import NamespacedName

A, B = NamespacedName("ns", "a"), NamespacedName("ns", "b")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    def __init__(self, *, limit: int) -> None:
        self.clock = Clock()
        self.registry = CollectorRegistry()
        self.loops = HotLoops("model", limit=limit, clock=self.clock, registry=self.registry)

    def run(self, name: NamespacedName = A, *, writes: int = 1) -> None:
        contextvars.copy_context().run(self._run, name, writes)

    def _run(self, name: NamespacedName, writes: int) -> None:
        runs.begin("test", name)
        for _ in range(writes):
            hotloop.note_write()
        self.loops.succeeded(name)

    @property
    def found(self) -> float | None:
        labels = {"controller": "model"}
        return self.registry.get_sample_value("flexinfer_hot_loops_total", labels)


def test_more_writing_runs_than_allowed_are_reported_once_a_minute() -> None:
    bench = Bench(limit=3)
    assert bench.found == 0
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            bench.run(writes=2)
            bench.clock.now += 1
        assert bench.found == 0
        for _ in range(50):
            bench.run()
            bench.run(B, writes=0)
            bench.clock.now += 1
    assert bench.found == 1
    (line,) = logs
    assert (line["object"], line["controller"]) == ("ns/a", "model")
    assert (line["runs"], line["seconds"]) == (4, 3.0)
    for _ in range(60):
        bench.run()
        bench.clock.now += 1
    assert bench.found == 2


def test_runs_without_a_write_and_runs_far_apart_are_fine() -> None:
    bench = Bench(limit=3)
    for _ in range(1000):
        bench.run(writes=0)
    assert len(bench.loops) == 0
    for _ in range(100):
        bench.run()
        bench.clock.now += 20.0
    assert bench.found == 0


def test_names_are_forgotten_a_minute_after_their_first_write() -> None:
    bench = Bench(limit=3)
    for number in range(5000):
        bench.run(NamespacedName("ns", f"{number}"))
    assert len(bench.loops) == 5000
    bench.clock.now += hotloop.WINDOW
    bench.run(A, writes=0)
    assert len(bench.loops) == 0


def test_memory_is_bounded_and_a_name_that_did_not_fit_is_found_later() -> None:
    bench = Bench(limit=3)
    for number in range(hotloop.MAX_NAMES + 100):
        bench.run(NamespacedName("ns", f"{number}"))
    assert len(bench.loops) == hotloop.MAX_NAMES
    for _ in range(5):
        bench.run(A)
    assert bench.found == 0
    bench.clock.now += hotloop.WINDOW
    for _ in range(4):
        bench.run(A)
    assert bench.found == 1


def test_a_write_outside_of_a_run_counts_for_nobody() -> None:
    bench = Bench(limit=1)

    def write() -> None:
        hotloop.note_write()
        bench.loops.succeeded(A)

    contextvars.Context().run(write)
    assert len(bench.loops) == 0


async def test_the_writes_of_tasks_that_a_run_starts_are_its_own() -> None:
    bench = Bench(limit=1)
    started, written = anyio.Event(), anyio.Event()

    async def other_worker() -> None:
        runs.begin("test", A)
        started.set()
        await written.wait()
        bench.loops.succeeded(B)

    async def write() -> None:
        hotloop.note_write()
        written.set()

    async def worker() -> None:
        runs.begin("test", A)
        await started.wait()
        async with anyio.create_task_group() as parts:
            parts.start_soon(write)
        bench.loops.succeeded(A)

    async with anyio.create_task_group() as workers:
        workers.start_soon(other_worker)
        workers.start_soon(worker)
    assert list(bench.loops._windows) == [A]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.floats(0, 40)),
        max_size=60,
    ),
    st.integers(1, 4),
)
def test_what_is_found_is_what_a_plain_count_finds(
    runs: list[tuple[str, int, float]], limit: int
) -> None:
    bench = Bench(limit=limit)
    begun: dict[str, float] = {}
    counts: Counter[str] = Counter()
    expected = 0
    for name, writes, pause in runs:
        bench.clock.now += pause
        bench.run(NamespacedName("ns", name), writes=writes)
        now = bench.clock.now
        if not writes:
            continue
        if now >= begun.get(name, float("-inf")) + hotloop.WINDOW:
            begun[name], counts[name] = now, 0
        counts[name] += 1
        expected += counts[name] == limit + 1
    assert bench.found == expected
    assert all(window.until > bench.clock.now - 40 for window in bench.loops._windows.values())
