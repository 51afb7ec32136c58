# SPDX-License-Identifier: Apache-2.0
"""The results as tables of Markdown, which are readable on a terminal too; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flexinfer.meta.envelope import Tree

_NOTHING = "-"
_US_PER_S = 1e6
_COUNTED = ("sync", "reconcile", "watch")


def measured(rows: Sequence[Tree]) -> str:
    """Return the table of what was measured."""
    head = ("work", "subject", "n", "wall s", "CPU s", "CPU µs each", "RSS MiB", "above ready MiB")
    return table(
        (*head, "per s"),
        [
            (
                row["work"],
                row["subject"],
                f"{row['n']:,}",
                f"{row['wall_s']:.2f}",
                f"{row['cpu_s']:.3f}",
                f"{row['cpu_s'] / row['n'] * _US_PER_S:.0f}" if _is_counted(row) else _NOTHING,
                _mib(row.get("rss_mib")),
                _mib(row.get("rss_above_ready_mib")),
                f"{row['events_per_s']:,.0f}" if _is_counted(row) else _NOTHING,
            )
            for row in rows
        ],
    )


def _mib(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.1f}"


def _is_counted(row: Tree) -> bool:
    return row["work"] in _COUNTED


def ratios(rows: Sequence[Tree], *, reference: str) -> str:
    """Return the table of ratios and goals; *reference* is the peer of rows that name none."""
    lines = []
    for row in rows:
        ratio, goal = row.get("ratio", row.get("peer_ratio")), row.get("goal")
        peer = row.get("peer", reference)
        wanted = _NOTHING if goal is None else f"≤ {goal:g}"
        lines.append(
            (row["work"], row["metric"], peer, _number(ratio), wanted, _verdict(ratio, goal))
        )
    return table(("work", "metric", "peer", "ours / peer", "goal", "met"), lines)


def _verdict(ratio: float | None, goal: float | None) -> str:
    if ratio is None or goal is None:
        return _NOTHING
    return "yes" if ratio <= goal else "**no**"


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"


def marginals(rows: Sequence[Tree]) -> str:
    """Return the table of what one more object costs."""
    units = {"cpu_us": "CPU µs", "rss_kib": "RSS KiB"}
    return table(
        ("work", "subject", "metric", "from", "to", "one more object", "growth", "within 20 %"),
        [
            (
                row["work"],
                row["subject"],
                units[row["metric"]],
                f"{row['from_n']:,}",
                f"{row['to_n']:,}",
                f"{row['per_object']:.2f}",
                _number(row["growth"]),
                {True: "yes", False: "**no**", None: _NOTHING}[row["within"]],
            )
            for row in rows
        ],
    )


def facts(values: Mapping[str, str]) -> str:
    """Return a table of names and values."""
    return table(("what", "which"), list(values.items()))


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns are as wide as what they hold."""
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        f"| {' | '.join(c.ljust(w) for c, w in zip(line, widths, strict=True))} |"
        for line in [head, rule, *lines]
    )
