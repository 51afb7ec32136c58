# SPDX-License-Identifier: Apache-2.0
"""Find the object that a controller writes to, or for, again and again without end.

A status with a fresh time in it, two controllers that take back each other's field, a list in
random order: each run succeeds, writes, and so causes the next one. Neither errors nor backoff
show it. A few dozen successful runs of one name a minute, each with a write, do.

Whether a run wrote is counted where every write passes, in the transport. What tasks write that a
reconciler started counts for it, and what is written outside of a reconcile (events, a lease)
counts for nobody.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import Counter

from flexinfer import log, runs
from flexinfer.metrics import REGISTRY, once_per_registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from flexinfer.meta.resource import NamespacedName

__all__ = ["HotLoops", "note_write"]

_log = log.get_logger(__name__)

WINDOW = 60.0
"""Seconds over which the writing runs of a name are counted."""
MAX_NAMES = 10_000
"""Names watched at a time: 2 MB. One that does not fit is watched once others have expired."""


def note_write() -> None:
    """Count one write that the server has taken, if a run is going on."""
    run = runs.current()
    if run is not None:
        run.writes += 1


class _Window(NamedTuple):
    """Be the writing runs of one name since the first of them."""

    until: float
    runs: int


class HotLoops:
    """Count the writing runs of each name of one controller, and say when they are too many.

    More than *limit* of them within a minute are logged, and counted in
    `flexinfer_hot_loops_total`, once in that minute. A name is remembered for a minute after its
    first writing run.
    """

    def __init__(
        self,
        controller: str,
        *,
        limit: int,
        clock: Callable[[], float] = time.monotonic,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._controller = controller
        self._limit = limit
        self._clock = clock
        self._found = _family(registry).labels(controller)
        # In the order in which the windows began, which is that in which they end.
        self._windows: dict[NamespacedName, _Window] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def succeeded(self, name: NamespacedName) -> None:
        """Take note that the present run, which is of *name*, has succeeded."""
        run = runs.current()
        wrote = run is not None and run.writes > 0
        if not wrote and not self._windows:
            return
        now = self._clock()
        self._drop_expired(now)
        if wrote:
            self._count(name, now)

    def _drop_expired(self, now: float) -> None:
        while self._windows:
            oldest = next(iter(self._windows))
            if self._windows[oldest].until > now:
                return
            del self._windows[oldest]

    def _count(self, name: NamespacedName, now: float) -> None:
        window = self._windows.get(name)
        if window is None:
            if len(self._windows) < MAX_NAMES:
                self._windows[name] = _Window(now + WINDOW, 1)
            return
        runs = window.runs + 1
        self._windows[name] = window._replace(runs=runs)
        if runs == self._limit + 1:
            self._found.inc()
            _log.warning(
                "hot loop: the runs of this object succeed and write, again and again",
                controller=self._controller,
                object=str(name),
                runs=runs,
                seconds=round(now - (window.until - WINDOW), 1),
            )


@once_per_registry
def _family(registry: CollectorRegistry) -> Counter:
    return Counter(
        "flexinfer_hot_loops_total",
        "Minutes in which the runs of one object succeeded, and wrote, too often",
        ["controller"],
        registry=registry,
    )
