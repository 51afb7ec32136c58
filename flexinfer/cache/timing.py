# SPDX-License-Identifier: Apache-2.0
"""Where a reflector's time comes from: its waits, its backoff, its share of the event loop."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Backoff", "TimeSlice", "Timing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Hold every wait of a reflector, in seconds, and its clock.

    The defaults are client-go's, but for `idle_timeout` and `stale_after`: HTTP/1.1 has no
    pings, and the API server sends a bookmark about once a minute.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    random: Callable[[], float] = random.random
    """A number in [0, 1)."""
    list_timeout: float = 60.0
    watch_timeout: float = 300.0
    """A watch lasts between this and twice this."""
    idle_timeout: float = 90.0
    """Silence after which a stream is taken for dead; doubled each time while no bookmark came."""
    idle_grace: float = 5.0
    """How much longer than its own timeout a stream may be silent at most."""
    short_watch: float = 1.0
    """A watch that ends sooner, and told nothing, counts as a failure."""
    backoff_first: float = 0.8
    backoff_most: float = 30.0
    open_timeout: float = 30.0
    """Time that the server has to begin a watch."""
    stale_after: float = 120.0
    """Time without a word from the server after which reads may be out of date."""

    def __post_init__(self) -> None:
        for name, value in self._waits().items():
            if not 0 < value < float("inf"):
                raise ConfigurationError(
                    f"{name} must be a positive number of seconds, not {value}"
                )
        if self.backoff_most < self.backoff_first:
            raise ConfigurationError(
                f"backoff_most ({self.backoff_most}) must be at least backoff_first "
                f"({self.backoff_first})"
            )

    def scaled(self, factor: float) -> Timing:
        """Return a timing with every wait times *factor*: tests keep the ratios and save time."""
        waits = {name: value * factor for name, value in self._waits().items()}
        return Timing(clock=self.clock, sleep=self.sleep, random=self.random, **waits)

    def _waits(self) -> dict[str, float]:
        sources = ("clock", "sleep", "random")
        return {name: getattr(self, name) for name in self.__slots__ if name not in sources}


class Backoff:
    """Double the wait with each failure in a row, and spread it.

    Each wait is stretched by up to its own length, so that informers cut off together do not
    come back together.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._failures = 0

    def reset(self) -> None:
        """Start over, after something worked."""
        self._failures = 0

    def next_delay(self, *, at_least: float = 0.0) -> float:
        """Return how long to wait before the next attempt, in seconds."""
        timing = self._timing
        # The exponent is bounded because 2.0**1024 overflows.
        base = min(timing.backoff_first * 2.0 ** min(self._failures, 32), timing.backoff_most)
        self._failures += 1
        return max(base, at_least) + base * timing.random()


class TimeSlice:
    """Let other tasks run once this one has worked for a few milliseconds.

    Reading lines that are already buffered does not suspend, and neither does decoding a list;
    without this an initial list would hold the loop for seconds.
    """

    def __init__(self, *, seconds: float = 0.005) -> None:
        self._seconds = seconds
        self._end = time.perf_counter() + seconds

    def restart(self) -> None:
        """Begin a new slice, after a wait."""
        self._end = time.perf_counter() + self._seconds

    def is_over(self) -> bool:
        """Say whether the slice is used up; a coroutine that mostly did nothing cost more."""
        return time.perf_counter() >= self._end

    async def pause(self) -> None:
        """Yield to the event loop, and begin a new slice."""
        await checkpoint()
        self.restart()
