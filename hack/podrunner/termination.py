# SPDX-License-Identifier: Apache-2.0
"""What a container says at its end: its termination message, bounded as the kubelet bounds it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_MESSAGE = 4096
"""Bytes of the file that are read."""
MAX_LOG_BYTES = 2048
"""Bytes of the log that stand in for an empty file, and, below, its lines."""
MAX_LOG_LINES = 80


def size(log: Path) -> int:
    """Return how long a log is, 0 when there is none."""
    return log.stat().st_size if log.exists() else 0


def message(written: Path, log: Path, *, since: int, falls_back: bool) -> str:
    """Return what the container wrote to its file *written*.

    If that is nothing and it *falls_back*, it is the end of what the log got after *since*.
    """
    text = _read(written, 0, MAX_MESSAGE)
    if text or not falls_back:
        return text
    start = max(since, size(log) - MAX_LOG_BYTES)
    lines = _read(log, start, MAX_LOG_BYTES).splitlines(keepends=True)
    return "".join(lines[-MAX_LOG_LINES:])


def _read(path: Path, start: int, length: int) -> str:
    """Return a part of a file; a container may have removed it, or made something else of it."""
    try:
        with path.open("rb") as file:
            file.seek(start, os.SEEK_SET)
            return file.read(length).decode(errors="replace")
    except OSError:
        return ""
