# SPDX-License-Identifier: Apache-2.0
"""What the process says at its end, to the log and to whoever looks at the pod."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from internal.fetch.marker import Record

VARIABLE = "FLEXINFER_TERMINATION_LOG"
DEFAULT_PATH = "/dev/termination-log"
_LONGEST = 1024
"""Characters of a message; the kubelet keeps 4096 bytes, and a condition should be read whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Be what a directory holds at the end."""

    size: int
    files: int

    @classmethod
    def of(cls, record: Record) -> Self:
        """Return the sums of *record*."""
        return cls(size=record.total, files=len(record.files))

    def __str__(self) -> str:
        return json.dumps({"bytes": self.size, "files": self.files})


def sentence(message: object) -> str:
    """Return *message* as one line of bearable length, whatever a file's name brought into it."""
    line = " ".join(str(message).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def leave_behind(line: str, environment: Mapping[str, str]) -> None:
    """Write *line* where the kubelet takes a container's termination message from, if it can be.

    The path is that of FLEXINFER_TERMINATION_LOG, else the kubelet's own, which is used when it
    is there and never made. A failure is not told: the same line is the last one of the log.
    """
    named = environment.get(VARIABLE)
    flags = os.O_WRONLY | os.O_TRUNC | (os.O_CREAT if named else 0)
    try:
        descriptor = os.open(named or DEFAULT_PATH, flags, 0o644)
    except OSError:
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(line)
