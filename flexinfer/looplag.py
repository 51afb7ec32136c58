# SPDX-License-Identifier: Apache-2.0
"""How late the event loop is: the sign that something blocks it, and where.

A reconciler that computes or waits without `await` stops every other one, the watches and the
probes with it. A heartbeat measures by how much it wakes too late. A thread watches the
heartbeat, and while the loop is blocked it logs what the loop's thread is doing, once a stall.
It cannot see what holds the interpreter's lock: there the heartbeat alone tells, afterwards.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
from prometheus_client import Gauge

from flexinfer import log
from flexinfer.errors import ConfigurationError
from flexinfer.metrics import REGISTRY, once_per_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry

__all__ = ["LoopLag"]

LIMIT = 1.0
"""Seconds of lag from which the process is not ready, and its stack is logged."""
_PERIODS = 2  # heartbeats in the time of the limit; at 1 s they cost nothing
_MEMORY = 10  # times the limit that a stall is remembered: at 1 s one period of a kubelet's probe
_STACK = 30  # innermost frames of a stack that are logged

_log = log.get_logger(__name__)


class LoopLag:
    """Measure the lag of the loop it runs in, as metric, as check and, when it is long, as log.

    *limit* is the lag in seconds that is too long.
    """

    def __init__(
        self,
        *,
        limit: float = LIMIT,
        clock: Callable[[], float] = time.monotonic,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        if not 0 < limit < math.inf:
            raise ConfigurationError(
                f"loop_lag is {limit}: use a positive, finite number of seconds"
            )
        self._limit = limit
        self._period = limit / _PERIODS
        self._clock = clock
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reported: float | None = None
        self._worst = 0.0
        self._worst_at = 0.0
        self._gauge = _gauge(registry)

    async def run(self) -> None:
        """Measure until cancelled."""
        with self._watchdog(), self._heart(asyncio.get_running_loop()):
            await anyio.sleep_forever()

    @contextmanager
    def _heart(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Beat by a timer of the loop itself, which costs an idle process less than a task."""

        def beat() -> None:
            if self._due is not None:
                self.observe(self._clock() - self._due)
            self._due = self._clock() + self._period
            self._timer = loop.call_later(self._period, beat)

        beat()
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def observe(self, lag: float) -> None:
        """Take note of one measurement, in seconds."""
        now = self._clock()
        if lag >= self._worst or now - self._worst_at > _MEMORY * self._limit:
            self._worst, self._worst_at = max(lag, 0.0), now
            self._gauge.set(self._worst)

    def check(self) -> str | None:
        """Say by how much the loop was late when that was more than the limit, just now."""
        now = self._clock()
        recent = self._worst if now - self._worst_at <= _MEMORY * self._limit else 0.0
        lag = max(recent, self._overdue(self._due))
        if lag <= self._limit:
            return None
        return f"the event loop was blocked for {lag:.1f} s: find what does not await"

    def look(self, thread: int) -> None:
        """Log the stack of *thread* if its loop is blocked now and that was not said yet.

        Called by the watchdog's thread: it only reads what the loop writes.
        """
        due = self._due
        blocked = self._overdue(due)
        if blocked <= self._limit or due == self._reported:
            return
        self._reported = due
        # The one way to see what another thread is doing; private, but documented.
        frame = sys._current_frames().get(thread)  # noqa: SLF001
        stack = traceback.format_stack(frame)[-_STACK:] if frame is not None else []
        _log.warning("the event loop is blocked", seconds=round(blocked, 2), stack="".join(stack))

    def _until_late(self) -> float:
        """Return in how many seconds the heartbeat that is due next would be late by the limit.

        It is never looked at more often than it beats.
        """
        return max(self._limit - self._overdue(self._due), self._period)

    def _overdue(self, due: float | None) -> float:
        return 0.0 if due is None else self._clock() - due

    @contextmanager
    def _watchdog(self) -> Iterator[None]:
        """Look at this thread from another one, whenever its heartbeat may be too late."""
        ended, watched = threading.Event(), threading.get_ident()

        def watch() -> None:
            while not ended.wait(self._until_late()):
                self.look(watched)

        thread = threading.Thread(target=watch, name="loop-watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._due = None


@once_per_registry
def _gauge(registry: CollectorRegistry) -> Gauge:
    return Gauge(
        "flexinfer_event_loop_lag_seconds",
        "Longest lag of the event loop in the last ten seconds",
        registry=registry,
    )
