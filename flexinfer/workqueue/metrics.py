# SPDX-License-Identifier: Apache-2.0
"""The metrics of work queues, with controller-runtime's names, labels and buckets.

A queue counts in plain numbers, and the collector reads them at scrape time: see `flexinfer.tally`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from flexinfer.metrics import once_per_registry
from flexinfer.tally import Durations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry, Metric

__all__ = ["QueueMetrics", "expose"]

# 1e-8 * 10^k up to 1e3, multiplied step by step as Go does it, so that even the last digit of a
# bucket's label is controller-runtime's.
BUCKETS = tuple(accumulate([10.0] * 11, float.__mul__, initial=1e-8))
MAX_PRIORITIES = 25
OVERFLOW = "exceeded_cardinality_limit"
_LABELS = ("name", "controller")


class QueueMetrics:
    """Count for one queue.

    `depth` holds, by priority, the keys that need a run: ready, or dirty while being processed; not
    those still delayed. The first 25 priorities seen have a series each, all others share one.
    """

    __slots__ = ("adds", "depth", "queue_duration", "retries", "work_duration")

    def __init__(self) -> None:
        self.adds = 0
        self.retries = 0
        self.depth: dict[int | str, int] = {OVERFLOW: 0}
        self.queue_duration = Durations(BUCKETS)
        self.work_duration = Durations(BUCKETS)

    def added(self, priority: int) -> None:
        """Count a key that came to need a run."""
        self.adds += 1
        self.depth[priority if priority in self.depth else self._series(priority)] += 1

    def raised(self, priority: int, to: int) -> None:
        """Move a key that needs a run from one priority to another."""
        self.depth[self._series(priority)] -= 1
        self.depth[self._series(to)] += 1

    def taken(self, priority: int, waited: float) -> None:
        """Count a key that was handed out, *waited* seconds after it came to need a run."""
        self.depth[priority if priority in self.depth else OVERFLOW] -= 1
        self.queue_duration.observe(waited)

    def dropped(self) -> None:
        """Count that no key needs a run any more."""
        self.depth = dict.fromkeys(self.depth, 0)

    def _series(self, priority: int) -> int | str:
        # A priority keeps its series for good, so that what goes up under it comes down under it.
        if priority not in self.depth:
            if len(self.depth) > MAX_PRIORITIES:
                return OVERFLOW
            self.depth[priority] = 0
        return priority


class Observed(Protocol):
    """Be a queue, as the collector sees it."""

    name: str
    metrics: QueueMetrics

    def ages(self) -> Sequence[float]:
        """Bring the depth up to date, and return how long each running key has been running."""
        ...


def expose(queue: Observed, registry: CollectorRegistry) -> None:
    """Make *queue* part of the scrapes of *registry* for as long as it exists.

    A later queue of the same name takes its series over, and its counters start again at 0.
    """
    _collector(registry).queues[queue.name] = queue


class QueueCollector:
    """Write the families of all queues of one registry; in-flight ages are those of this moment."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queues: WeakValueDictionary[str, Observed] = WeakValueDictionary()
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield one family after the other, each with all queues."""
        depth, unfinished, longest = _gauges()
        adds, retries = _counters()
        waits, works = _histograms()
        for name, queue in sorted(self.queues.items()):
            labels = (name, name)
            ages, metrics = queue.ages(), queue.metrics
            for priority, keys in metrics.depth.items():
                if priority != OVERFLOW or len(metrics.depth) > MAX_PRIORITIES:
                    depth.add_metric((*labels, str(priority)), keys)
            unfinished.add_metric(labels, sum(ages))
            longest.add_metric(labels, max(ages, default=0.0))
            adds.add_metric(labels, metrics.adds)
            retries.add_metric(labels, metrics.retries)
            for family, durations in (
                (waits, metrics.queue_duration),
                (works, metrics.work_duration),
            ):
                family.add_metric(labels, durations.buckets(), durations.total)
        yield from (depth, adds, retries, waits, works, unfinished, longest)


_collector = once_per_registry(QueueCollector)


def _gauges() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "workqueue_depth", "Keys that need a run, by priority", labels=(*_LABELS, "priority")
        ),
        GaugeMetricFamily(
            "workqueue_unfinished_work_seconds",
            "Sum of the seconds that the keys in processing have been running",
            labels=_LABELS,
        ),
        GaugeMetricFamily(
            "workqueue_longest_running_processor_seconds",
            "Seconds that the longest running key has been running",
            labels=_LABELS,
        ),
    )


def _counters() -> tuple[CounterMetricFamily, CounterMetricFamily]:
    return (
        CounterMetricFamily(
            "workqueue_adds_total", "Times a key came to need a run", labels=_LABELS
        ),
        CounterMetricFamily(
            "workqueue_retries_total", "Adds with a delay, backoff included", labels=_LABELS
        ),
    )


def _histograms() -> tuple[HistogramMetricFamily, HistogramMetricFamily]:
    return (
        HistogramMetricFamily(
            "workqueue_queue_duration_seconds",
            "Time from the first add of a key until it is handed out",
            labels=_LABELS,
        ),
        HistogramMetricFamily(
            "workqueue_work_duration_seconds",
            "Time from handing out a key until it is done",
            labels=_LABELS,
        ),
    )
