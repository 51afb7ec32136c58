# SPDX-License-Identifier: Apache-2.0
"""`WorkQueue`: the records, a clock, and the workers that wait for a key."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from flexinfer.errors import ConfigurationError, FlexInferError
from flexinfer.metrics import REGISTRY
from flexinfer.workqueue.core import QueueState
from flexinfer.workqueue.metrics import QueueMetrics, expose
from flexinfer.workqueue.ratelimit import ExponentialBackoff

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from prometheus_client import CollectorRegistry

    from flexinfer.workqueue.core import Item
    from flexinfer.workqueue.ratelimit import RateLimiter

__all__ = ["MAX_DELAY", "MAX_PRIORITY", "QueueShutDown", "WorkQueue"]

K = TypeVar("K", bound="Hashable")

MAX_DELAY = 180 * 86_400.0
"""Seconds; a longer delay is cut to it. kube-rs' figure: half a year."""

MAX_PRIORITY = 1_000_000_000
"""Priorities reach from minus this to this; the bound of a user's PriorityClass."""

_BREATH = 0.005  # seconds that getters may hold the loop before one of them lets it turn


class QueueShutDown(FlexInferError):  # noqa: N818 - a signal, named as in Python 3.13's asyncio
    """Tell a worker that no key will come any more."""


class WorkQueue(Generic[K]):
    """Hand out keys, each to one worker at a time, none twice for one reason, none forgotten.

    *name* labels the metrics. *rate_limiter* is `ExponentialBackoff()` unless given. *clock* is
    monotonic, in seconds. Everything runs on the thread of the event loop that waits in `get`;
    another thread goes through `anyio.from_thread.run_sync`.
    """

    def __init__(
        self,
        name: str,
        *,
        rate_limiter: RateLimiter[K] | None = None,
        clock: Callable[[], float] = time.monotonic,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        if not name:
            raise ConfigurationError("name of the work queue is empty: it labels its metrics")
        self.name = name
        self.metrics = QueueMetrics()
        self._limiter = ExponentialBackoff[K]() if rate_limiter is None else rate_limiter
        self._clock = clock
        self._state = QueueState[K](self.metrics)
        self._shut_down = False
        self._idle: anyio.Event | None = None
        self._breathe_at = 0.0
        # Getters that wait, and how many more were woken but have not run since. One is woken for
        # each ready key, whatever made it ready, so no key is left lying while a getter sleeps;
        # for delayed keys the timer does it, which is set as long as a getter waits.
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._woken = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        expose(self, registry)

    def __len__(self) -> int:
        """Return how many keys are ready: neither those delayed nor those being processed."""
        self._state.promote(self._clock())
        return len(self._state)

    def add(self, key: K, *, priority: int = 0) -> None:
        """Ask for a run of *key* now.

        Many adds before its run are one run of the highest priority; adds during its run are
        exactly one more, after all that is ready then. A delay it had is over. Nothing happens
        after `shut_down`.
        """
        if priority:
            _check_priority(key, priority)
        if not self._shut_down:
            self._state.add(key, self._clock(), priority)
            if self._waiters:
                self._wake()

    def add_after(self, key: K, delay: float, *, priority: int = 0) -> None:
        """Ask for a run of *key* in *delay* seconds at the latest.

        The earliest time asked for wins. A delay that is not positive is `add`, one above
        `MAX_DELAY` is cut to it. Raises ConfigurationError for NaN.
        """
        if delay <= 0:
            self.add(key, priority=priority)
            return
        _check_priority(key, priority)
        delay = _checked_delay(key, delay)
        if not self._shut_down:
            self.metrics.retries += 1
            self._state.add_after(key, self._clock(), delay, priority)
            if self._waiters:
                self._wake()
                self._arm()

    def add_rate_limited(self, key: K, *, priority: int = 0) -> None:
        """Ask for a run of *key* once the rate limiter lets it; the attempt is charged."""
        if not self._shut_down:
            self.add_after(key, self._limiter.when(key), priority=priority)

    def forget(self, key: K) -> None:
        """Let the rate limiter start over for *key*: it succeeded, or is gone."""
        self._limiter.forget(key)

    def requeues(self, key: K) -> int:
        """Return how often *key* was rate-limited since it was last forgotten."""
        return self._limiter.requeues(key)

    async def get(self) -> Item[K]:
        """Wait for the next key and take it; `done` must follow.

        A cancelled getter takes no key and swallows no wake-up. Returns at once when a key is
        ready, but lets the loop turn every few milliseconds, so that workers which never wait do
        not starve it. Raises QueueShutDown after `shut_down`.
        """
        now = self._clock()
        if now >= self._breathe_at:
            await asyncio.sleep(0)  # noqa: TID251 - a checkpoint of anyio is ten calls more
            now = self._clock()
            self._breathe_at = now + _BREATH
        while not self._shut_down:
            item = self._state.pop(now)
            if item is not None:
                return item
            await self._wait()
            now = self._clock()
            self._breathe_at = now + _BREATH
        raise QueueShutDown(f"work queue {self.name} is shut down")

    def done(self, key: K) -> None:
        """End the run of *key*. Harmless for a key that is not being processed."""
        self._state.done(key, self._clock())
        if self._waiters:
            self._wake()
        if self._idle is not None:
            self._report_idle()

    def shut_down(self) -> None:
        """Drop every queued key and end every `get`; runs in progress are left to end.

        Dropping is right because reconciling is level-triggered: whoever starts next sees all
        objects again. Later adds do nothing. May be called again.
        """
        self._shut_down = True
        self._state.drop(self._clock())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiters:
            self._wake_one()
        self._report_idle()

    async def wait_idle(self, timeout: float) -> bool:  # noqa: ASYNC109 - every wait has a deadline
        """Wait until no key is ready or processed, and say whether that was within *timeout* s.

        After `shut_down` that is when the last run has ended.
        """
        with anyio.move_on_after(timeout):
            while not self._state.is_idle:
                if self._idle is None:
                    self._idle = anyio.Event()
                await self._idle.wait()
        return self._state.is_idle

    def ages(self) -> list[float]:
        """Make due what is due, and return how long each running key has been running."""
        self._promote()
        return self._state.ages(self._clock())

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._arm()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):  # it may have been dropped by _wake_one
                    self._waiters.remove(waiter)
            else:
                self._woken -= 1
                self._wake()
            raise
        self._woken -= 1

    def _wake(self) -> None:
        ready = len(self._state)
        while self._waiters and self._woken < ready:
            self._wake_one()

    def _wake_one(self) -> None:
        waiter = self._waiters.popleft()
        if not waiter.done():
            waiter.set_result(None)
            self._woken += 1

    def _arm(self) -> None:
        """Keep one timer, due no later than the earliest delayed key."""
        due = self._state.next_due()
        if due == math.inf or (self._timer is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(due - self._clock(), 0.0), self._on_timer)
        self._timer_due = due

    def _on_timer(self) -> None:
        self._timer = None
        self._promote()
        if self._waiters:
            self._arm()

    def _promote(self) -> None:
        self._state.promote(self._clock())
        self._wake()

    def _report_idle(self) -> None:
        if self._idle is not None and self._state.is_idle:
            self._idle.set()
            self._idle = None


def _check_priority(key: Hashable, priority: int) -> None:
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise ConfigurationError(
            f"priority {priority} of {key!r} is out of range: stay within ±{MAX_PRIORITY}"
        )


def _checked_delay(key: Hashable, delay: float) -> float:
    if delay >= MAX_DELAY:  # also for an int that no float can hold
        return MAX_DELAY
    if delay > 0:
        return float(delay)
    raise ConfigurationError(f"delay of {key!r} is NaN: give seconds, or add it without a delay")
