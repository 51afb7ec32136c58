# SPDX-License-Identifier: Apache-2.0
"""Time that a test moves, for what waits by a clock that can be given to it."""

from __future__ import annotations

from anyio.lowlevel import checkpoint

__all__ = ["ManualClock"]


class ManualClock:
    """Be a monotonic clock that only moves when somebody sleeps, and then at once."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let the time pass and other tasks run."""
        self.now += seconds
        await checkpoint()
