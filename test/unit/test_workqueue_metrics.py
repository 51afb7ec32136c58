# SPDX-License-Identifier: Apache-2.0
"""What a scrape says about queues."""

from __future__ import annotations

import gc

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from flexinfer.metrics import REGISTRY, render
from flexinfer.workqueue import WorkQueue
from flexinfer.workqueue.metrics import BUCKETS, OVERFLOW


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """One queue on a clock and a registry of its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.registry = CollectorRegistry()
        self.queue = WorkQueue[str]("models", clock=self.clock, registry=self.registry)

    def value(self, name: str, **labels: str) -> float | None:
        both = {"name": "models", "controller": "models", **labels}
        return self.registry.get_sample_value(f"workqueue_{name}", both)

    def series(self, name: str) -> list[dict[str, str]]:
        text = generate_latest(self.registry).decode()
        return [
            sample.labels
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        ]


async def test_names_labels_and_buckets_are_controller_runtimes() -> None:
    bench = Bench()
    bench.queue.add("a")
    text = generate_latest(bench.registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {name: family.type for name, family in families.items()} == {
        "workqueue_depth": "gauge",
        "workqueue_adds": "counter",
        "workqueue_retries": "counter",
        "workqueue_queue_duration_seconds": "histogram",
        "workqueue_work_duration_seconds": "histogram",
        "workqueue_unfinished_work_seconds": "gauge",
        "workqueue_longest_running_processor_seconds": "gauge",
    }
    assert bench.series("workqueue_depth") == [
        {"name": "models", "controller": "models", "priority": "0"}
    ]
    assert [row["le"] for row in bench.series("workqueue_queue_duration_seconds_bucket")] == [
        *("1e-08", "1e-07", "1e-06", "9.999999999999999e-06", "9.999999999999999e-05"),
        *("0.001", "0.01", "0.1", "1.0", "10.0", "100.0", "1000.0", "+Inf"),
    ]
    assert len(BUCKETS) == 12


async def test_adds_count_keys_that_come_to_need_a_run() -> None:
    bench = Bench()
    queue = bench.queue
    for _ in range(3):
        queue.add("a")
    assert bench.value("adds_total") == 1
    await queue.get()
    queue.add("a")
    queue.add("a")
    assert bench.value("adds_total") == 2
    queue.add_after("b", 1)
    assert bench.value("adds_total") == 2
    bench.clock.now += 1
    assert bench.value("adds_total") == 3


async def test_retries_count_adds_with_a_delay() -> None:
    bench = Bench()
    bench.queue.add_after("a", 1)
    bench.queue.add_after("a", 0)
    bench.queue.add_rate_limited("a")
    assert bench.value("retries_total") == 2


async def test_durations_count_from_the_first_add_and_from_the_hand_out() -> None:
    bench = Bench()
    bench.queue.add_after("a", 4)
    bench.clock.now = 5.0  # due at 4
    bench.queue.add("a")
    bench.clock.now = 6.0
    await bench.queue.get()
    assert bench.value("queue_duration_seconds_sum") == 2.0
    assert bench.value("queue_duration_seconds_bucket", le="1.0") == 0
    assert bench.value("queue_duration_seconds_bucket", le="10.0") == 1
    bench.clock.now = 6.5
    bench.queue.done("a")
    assert bench.value("work_duration_seconds_sum") == 0.5
    assert bench.value("work_duration_seconds_count") == 1


async def test_running_keys_show_their_age_at_the_scrape() -> None:
    bench = Bench()
    assert bench.value("longest_running_processor_seconds") == 0
    bench.queue.add("a")
    bench.queue.add("b")
    await bench.queue.get()
    bench.clock.now = 10.0
    await bench.queue.get()
    bench.clock.now = 12.0
    assert bench.value("unfinished_work_seconds") == 14.0
    assert bench.value("longest_running_processor_seconds") == 12.0
    bench.queue.done("a")
    assert bench.value("unfinished_work_seconds") == 2.0
    bench.queue.done("b")
    assert bench.value("unfinished_work_seconds") == 0.0


async def test_c04_depth_counts_keys_that_need_a_run_and_is_0_when_idle() -> None:
    bench = Bench()
    queue = bench.queue
    queue.add("ready")
    queue.add_after("delayed", 5)
    assert bench.value("depth", priority="0") == 1
    await queue.get()
    assert bench.value("depth", priority="0") == 0
    queue.add("ready", priority=-100)
    assert bench.value("depth", priority="-100") == 1
    queue.add("ready")  # raised while it is processed
    assert bench.value("depth", priority="-100") == 0
    assert bench.value("depth", priority="0") == 1
    bench.clock.now = 5.0  # nobody touched the queue, yet the delayed key is due
    assert bench.value("depth", priority="0") == 2
    queue.shut_down()
    assert bench.value("depth", priority="0") == 0
    queue.done("ready")
    assert bench.value("depth", priority="0") == 0


async def test_c05_series_are_bounded_whatever_is_enqueued() -> None:
    bench = Bench()
    for number in range(10_000):
        bench.queue.add(f"object-{number}", priority=number)
    depths = bench.series("workqueue_depth")
    assert len(depths) == 26
    assert {row["priority"] for row in depths} == {OVERFLOW, *map(str, range(25))}
    assert bench.value("depth", priority=OVERFLOW) == 9975
    text = generate_latest(bench.registry).decode()
    assert "object-" not in text
    assert text.count("\n") < 100
    while len(bench.queue):
        bench.queue.done((await bench.queue.get()).key)
    assert bench.value("depth", priority=OVERFLOW) == 0
    assert set(bench.queue.metrics.depth.values()) == {0}


async def test_queues_of_one_registry_share_families_and_leave_with_their_queue() -> None:
    bench = Bench()
    other = WorkQueue[str]("nodes", clock=bench.clock, registry=bench.registry)
    other.add("a")
    assert bench.value("adds_total") == 0
    assert {row["name"] for row in bench.series("workqueue_adds_total")} == {"models", "nodes"}
    del other
    gc.collect()
    assert {row["name"] for row in bench.series("workqueue_adds_total")} == {"models"}


async def test_a_later_queue_takes_the_series_of_its_name_over() -> None:
    bench = Bench()
    bench.queue.add("a")
    bench.queue.shut_down()
    successor = WorkQueue[str]("models", clock=bench.clock, registry=bench.registry)
    successor.add("b")
    successor.add("c")
    assert bench.value("adds_total") == 2


async def test_the_default_is_the_process_registry() -> None:
    queue = WorkQueue[str]("default-registry-test")
    queue.add("a")
    assert 'workqueue_adds_total{controller="default-registry-test"' in render().body.decode()
    assert queue.metrics.adds == 1
    assert REGISTRY.get_sample_value(
        "workqueue_depth",
        {
            "name": "default-registry-test",
            "controller": "default-registry-test",
            "priority": "0",
        },
    )
