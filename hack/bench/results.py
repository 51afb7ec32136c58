# SPDX-License-Identifier: Apache-2.0
"""Medians, the table and the rows of `bench-results.json`; pure."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process took: wall and CPU seconds, and its largest resident size in MiB."""

    wall_s: float
    cpu_s: float
    rss_mib: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.wall_s - other.wall_s, self.cpu_s - other.cpu_s, self.rss_mib - other.rss_mib
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the results."""

    work: str
    subject: str
    n: int
    wall_s: float
    cpu_s: float
    rss_mib: float
    events_per_s: float


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median of each figure for itself."""
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        statistics.median(cost.rss_mib for cost in costs),
    )


def row(work: str, subject: str, n: int, cost: Cost) -> Row:
    """Return the line of *cost* for *n* objects."""
    return Row(
        work,
        subject,
        n,
        round(cost.wall_s, 3),
        round(cost.cpu_s, 3),
        round(cost.rss_mib, 1),
        round(n / cost.wall_s, 1),
    )


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text."""
    head = ("work", "subject", "n", "wall s", "CPU s", "RSS MiB", "objects/s")
    cells = [head, *(tuple(str(value) for value in asdict(row).values()) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )
