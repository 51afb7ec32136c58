# SPDX-License-Identifier: Apache-2.0
"""How late the event loop is: the sign that something blocks it.

A reconciler that computes or waits without `await` stops every other one, the watches and the
probes with it. A heartbeat measures by how much it wakes too late.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
from prometheus_client import Gauge

from flexinfer.metrics import REGISTRY, once_per_registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

__all__ = ["LoopLag"]

_PERIOD = 0.5  # seconds: short enough to see a stall of 1 s, and 2 wake-ups a second cost nothing
_LIMIT = 1.0  # seconds of lag from which the process is not ready
_MEMORY = 10.0  # seconds for which a stall is remembered: one period of a kubelet's probe


class LoopLag:
    """Measure the lag of the loop it runs in, as metric and as check."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._clock = clock
        self._due: float | None = None
        self._worst = 0.0
        self._worst_at = 0.0
        self._gauge = _gauge(registry)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._due = self._clock() + _PERIOD
            await anyio.sleep(_PERIOD)
            self.observe(self._clock() - self._due)

    def observe(self, lag: float) -> None:
        """Take note of one measurement, in seconds."""
        now = self._clock()
        if lag >= self._worst or now - self._worst_at > _MEMORY:
            self._worst, self._worst_at = max(lag, 0.0), now
            self._gauge.set(self._worst)

    def check(self) -> str | None:
        """Say by how much the loop was late when that was more than a second, just now."""
        now = self._clock()
        recent = self._worst if now - self._worst_at <= _MEMORY else 0.0
        overdue = now - self._due if self._due is not None else 0.0
        lag = max(recent, overdue)
        if lag <= _LIMIT:
            return None
        return f"the event loop was blocked for {lag:.1f} s: find what does not await"


@once_per_registry
def _gauge(registry: CollectorRegistry) -> Gauge:
    return Gauge(
        "flexinfer_event_loop_lag_seconds",
        "Longest lag of the event loop in the last ten seconds",
        registry=registry,
    )
