# SPDX-License-Identifier: Apache-2.0
"""The time that one call may take: a timer that costs a quarter of a cancel scope."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Self

import anyio

if TYPE_CHECKING:
    from types import TracebackType


class OverdueError(Exception):
    """Report that the time is over."""


class Deadline:
    """Cancel what runs inside when its *seconds* are over, and raise OverdueError in its stead.

    Unlike a scope it cancels once: what runs inside must not catch cancellations. One that comes
    from outside in the same moment wins.
    """

    __slots__ = ("_before", "_is_over", "_loop", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False

    def __enter__(self) -> Self:
        """Start the clock."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(self._loop)
        self._before = self._task.cancelling() if self._task else 0
        self._timer = self._loop.call_later(self._seconds, self._expire)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the clock."""
        self._timer.cancel()
        if not self._is_over or self._task is None:
            return
        others = self._task.uncancel() > self._before
        if exc_type is None or not issubclass(exc_type, asyncio.CancelledError):
            return
        # A scope around it that was cancelled too cancels again at the next await.
        if not others or anyio.current_effective_deadline() == -math.inf:
            raise OverdueError from exc

    def left(self) -> float:
        """Return how many seconds are left."""
        return self._timer.when() - self._loop.time()

    def _expire(self) -> None:
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
