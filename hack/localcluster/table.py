# SPDX-License-Identifier: Apache-2.0
"""The samples as lines of text; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hack.localcluster.expectations import ready_condition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flexinfer.meta.envelope import Tree

_HEAD = ("NAME", "BACKEND", "PHASE", "READY", "REASON", "MESSAGE")


def render(models: Sequence[Tree], *, width: int) -> list[str]:
    """Return a heading and a line per model, cut to *width* columns."""
    rows = [_HEAD, *(_row(model) for model in models)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    return [_line(row, widths)[:width].rstrip() for row in rows]


def _row(model: Tree) -> tuple[str, ...]:
    ready = ready_condition(model)
    return (
        model["metadata"]["name"],
        model["spec"]["backend"],
        model.get("status", {}).get("phase", "-"),
        ready.get("status", "-"),
        ready.get("reason", "-"),
        ready.get("message", ""),
    )


def _line(row: tuple[str, ...], widths: Sequence[int]) -> str:
    *cells, last = row
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join([*padded, last])
