# SPDX-License-Identifier: Apache-2.0
"""Medians, ratios and marginal costs, as the rows of `bench-results.json`; pure."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from flexinfer.meta.envelope import Tree

GOALS: Mapping[tuple[str, str], float] = {
    ("sync", "wall"): 0.5,
    ("sync", "cpu"): 0.2,
    ("sync", "rss"): 0.6,
    ("reconcile", "wall"): 0.7,
    ("reconcile", "cpu"): 0.5,
    ("reconcile", "rss"): 1.2,
    ("watch", "cpu"): 0.6,
    ("idle", "cpu"): 1.0,
    ("idle", "rss"): 1.2,
    ("startup", "wall"): 1.5,
}
"""The largest ratio of ours to controller-runtime that is good enough, by work and metric."""

MOST_GROWTH = 1.2
"""How much dearer an object may be between the larger sizes than between the smaller."""

_ABOVE_READY = "sync"
_COMPARED = {
    "watch": ("cpu", "rss"),
    "idle": ("cpu", "rss"),
    "startup": ("wall", "cpu"),
    "help": ("wall", "cpu"),
}
_US_PER_S = 1e6
_KIB_PER_MIB = 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """What a work took of one process.

    Wall and CPU seconds, its largest resident size in MiB, and by how much that was more than
    before the work; 0 where memory was not looked at.
    """

    wall_s: float
    cpu_s: float
    rss_mib: float
    above_mib: float


@dataclass(frozen=True, slots=True)
class Row:
    """One measured line: *n* is how many objects, or updates in a watch."""

    work: str
    subject: str
    n: int
    cost: Cost

    def tree(self) -> Tree:
        """Return the line as the file has it, without memory that was not looked at."""
        memory = {
            "rss_mib": round(self.cost.rss_mib, 2),
            "rss_above_ready_mib": round(self.cost.above_mib, 2),
        }
        return {
            "work": self.work,
            "subject": self.subject,
            "n": self.n,
            "wall_s": round(self.cost.wall_s, 4),
            "cpu_s": round(self.cost.cpu_s, 4),
            **(memory if self.cost.rss_mib else {}),
            "events_per_s": round(self.n / self.cost.wall_s, 1),
        }


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median of each figure for itself."""
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        statistics.median(cost.rss_mib for cost in costs),
        statistics.median(cost.above_mib for cost in costs),
    )


def medians(rows: Iterable[Row]) -> list[Row]:
    """Return one row for those of each work, subject and size."""
    alike: dict[tuple[str, str, int], list[Cost]] = {}
    for row in rows:
        alike.setdefault((row.work, row.subject, row.n), []).append(row.cost)
    return [Row(*which, median(costs)) for which, costs in alike.items()]


def metrics(row: Row) -> Mapping[str, float]:
    """Return the figures of a row that are compared.

    The memory of a sync is that above the process at `ready`, because its objects are what is
    measured; of everything else it is the whole process's, because that is what a node gives.
    """
    rss = row.cost.above_mib if row.work == _ABOVE_READY else row.cost.rss_mib
    return {"wall": row.cost.wall_s, "cpu": row.cost.cpu_s, "rss": rss}


def compared(work: str) -> Sequence[str]:
    """Return the metrics of a work that mean something.

    How long updates take is up to who writes them, and how long a process is idle up to us.
    """
    return _COMPARED.get(work, ("wall", "cpu", "rss"))


def ratios(rows: Iterable[Row], *, ours: str, reference: str) -> list[Tree]:
    """Return a row for each work, metric and peer: ours divided by the peer's.

    Those of *reference* say `ratio` and `goal`, those of other peers `peer` and `peer_ratio`.
    """
    by_work: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_work.setdefault(row.work, {})[row.subject] = row
    return [
        _ratio(subjects[ours], subjects[peer], metric, reference=reference)
        for work, subjects in by_work.items()
        if ours in subjects
        for peer in subjects
        if peer != ours
        for metric in compared(work)
    ]


def _ratio(own: Row, other: Row, metric: str, *, reference: str) -> Tree:
    mine, theirs = metrics(own)[metric], metrics(other)[metric]
    ratio = round(mine / theirs, 3) if theirs > 0 else None
    head: Tree = {"work": own.work, "metric": metric}
    if other.subject == reference:
        return head | {"ratio": ratio, "goal": GOALS.get((own.work, metric))}
    return head | {"peer": other.subject, "peer_ratio": ratio}


def marginals(rows: Iterable[Row]) -> list[Tree]:
    """Return what one more object costs between neighbouring sizes, in µs of CPU and in KiB.

    `growth` is that cost divided by the cost between the two sizes before, None for the first;
    `within` tells whether it is at most `MOST_GROWTH`. What the process costs without any object
    cancels out.
    """
    ordered = sorted(rows, key=lambda row: (row.work, row.subject, row.n))
    found: list[Tree] = []
    for _, group in itertools.groupby(ordered, key=lambda row: (row.work, row.subject)):
        sizes = list(group)
        found += _steps(sizes, "cpu_us", _cpu_us)
        found += _steps(sizes, "rss_kib", _rss_kib)
    return found


def _steps(sizes: Sequence[Row], metric: str, cost: Callable[[Row], float]) -> Iterator[Tree]:
    before: float | None = None
    for small, large in itertools.pairwise(sizes):
        each = (cost(large) - cost(small)) / (large.n - small.n)
        growth = round(each / before, 3) if before is not None and before > 0 else None
        yield {
            "work": small.work,
            "subject": small.subject,
            "metric": metric,
            "from_n": small.n,
            "to_n": large.n,
            "per_object": round(each, 2),
            "growth": growth,
            "within": None if growth is None else growth <= MOST_GROWTH,
        }
        before = each


def _cpu_us(row: Row) -> float:
    return row.cost.cpu_s * _US_PER_S


def _rss_kib(row: Row) -> float:
    return row.cost.rss_mib * _KIB_PER_MIB
