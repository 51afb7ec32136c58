# SPDX-License-Identifier: Apache-2.0
"""Lines for who watches: how many bytes of how many, every few seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL = 5.0
"""Seconds between two lines."""


class Progress:
    """Count bytes, and hand *write* a line when *interval* seconds went by since the last.

    *verb* is what is done to the bytes, such as `fetched`.
    """

    def __init__(
        self,
        verb: str,
        total: int,
        *,
        done: int = 0,
        write: Callable[[str], None],
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verb = verb
        self._total = total
        self._done = done
        self._write = write
        self._interval = interval
        self._clock = clock
        self._last = clock()

    def advance(self, count: int) -> None:
        """Add *count* bytes; less than none takes back what turned out to be useless."""
        self._done += count
        now = self._clock()
        if now - self._last >= self._interval:
            self._last = now
            self.say()

    def say(self) -> None:
        """Write how far it is."""
        self._write(f"{self._verb} {self._done} of {self._total} bytes")
