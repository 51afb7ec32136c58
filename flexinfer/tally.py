# SPDX-License-Identifier: Apache-2.0
"""Counters and histograms for what happens with each event: plain numbers, read at a scrape.

Each costs a tenth of prometheus_client's own, which take a lock, and look for a bucket one by one.
The price is that they belong to one thread, the event loop's, which has to be that of the scrapes.
What happens seldom is better counted with prometheus_client itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry, Metric

__all__ = ["Count", "Counts", "Durations", "Histogram"]

S = TypeVar("S")


class Count:
    """Be one series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Count once, or *amount* times."""
        self.value += amount


class Durations:
    """Be one series of a histogram of seconds; *bounds* are the upper ones of its buckets."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts beside their upper bounds."""
        bounds = (*(str(float(bound)) for bound in self._bounds), "+Inf")
        return list(zip(bounds, accumulate(self.counts), strict=True))


class _Family(ABC, Generic[S]):
    """Be one family of a registry, with the series that were asked for."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], *, registry: CollectorRegistry
    ) -> None:
        self._what = (name, text)
        self._labels = tuple(labels)
        self._series: dict[tuple[str, ...], S] = {}
        registry.register(self)

    def labels(self, *values: str) -> S:
        """Return the series of these values, with nothing in it at first.

        Raises ValueError for fewer or more values than there are labels.
        """
        if len(values) != len(self._labels):
            raise ValueError(f"{self._what[0]} has the labels {self._labels}, not {values}")
        if values not in self._series:
            self._series[values] = self._new()
        return self._series[values]

    @abstractmethod
    def _new(self) -> S: ...

    @abstractmethod
    def collect(self) -> Iterator[Metric]:
        """Yield the family."""


class Counts(_Family[Count]):
    """Be a counter of *registry*."""

    def _new(self) -> Count:
        return Count()

    def collect(self) -> Iterator[Metric]:
        """Yield the family."""
        family = CounterMetricFamily(*self._what, labels=self._labels)
        for values, count in self._series.items():
            family.add_metric(values, count.value)
        yield family


class Histogram(_Family[Durations]):
    """Be a histogram of *registry*, of seconds."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        *,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._bounds = bounds
        super().__init__(name, text, labels, registry=registry)

    def _new(self) -> Durations:
        return Durations(self._bounds)

    def collect(self) -> Iterator[Metric]:
        """Yield the family."""
        family = HistogramMetricFamily(*self._what, labels=self._labels)
        for values, durations in self._series.items():
            family.add_metric(values, durations.buckets(), durations.total)
        yield family
