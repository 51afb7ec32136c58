# SPDX-License-Identifier: Apache-2.0
"""What the name of a GPU architecture says by itself, by its longest known prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

MAXWELL = "sm_5"
GFX110, GFX906 = "gfx110", "gfx906"

# Memory in MB of the usual card of a kind, for nodes that no label describes: Radeon RX 7900 XTX,
# Instinct MI200, MI300X and MI50, and the larger Maxwell cards.
_USUAL_MEMORY_MB = {
    GFX110: 24576,
    "gfx90a": 65536,
    "gfx942": 196608,
    GFX906: 16384,
    MAXWELL: 6144,
}


def by_prefix(table: Mapping[str, T], architecture: str) -> T | None:
    """Return the entry of the longest prefix that *architecture* starts with, or None."""
    fitting = [prefix for prefix in table if architecture.startswith(prefix)]
    return table[max(fitting, key=len)] if fitting else None


def usual_memory_mb(architecture: str) -> int | None:
    """Return how much memory a GPU of that architecture usually has, None when that varies."""
    return by_prefix(_USUAL_MEMORY_MB, architecture)
