# SPDX-License-Identifier: Apache-2.0
"""Workers that take names from a queue and reconcile them, one at a time per name.

| the reconciler | then | `result` |
|---|---|---|
| returns `Result()` | forget its failures, wait for an event | `success` |
| returns `Result(requeue_after=s)` | forget, again after s and up to 10 % more | `requeue_after` |
| raises `TerminalError` | not again until an event | `error` |
| raises `ConflictError` | again in 10 to 100 ms, three times; then with backoff | `error` |
| raises an `ApiError` with `retry_after` | again after that and up to 10 % more | `error` |
| raises anything else, or takes too long | again with backoff | `error` |

A name keeps its priority when it is queued again. Nothing a reconciler raises reaches another
name. An object that does not fit its model is reconciled like any other: the reconciler's
`client.get` raises the DecodeError that names the field, and the reconciler may say so in status.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from structlog import contextvars

from flexinfer import hotloop, log, runs
from flexinfer.errors import (
    ApiError,
    ConfigurationError,
    ConflictError,
    DeadlineError,
    DecodeError,
    FlexInferError,
    NotOursError,
    TerminalError,
    TransportError,
)
from flexinfer.metrics import REGISTRY, ReconcileMetrics
from flexinfer.reconcile import Result
from flexinfer.source import Reasons
from flexinfer.workqueue import MAX_DELAY, QueueShutDown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prometheus_client import CollectorRegistry

    from flexinfer.reconcile import Reconciler, Request
    from flexinfer.source import Source
    from flexinfer.workqueue import WorkQueue

__all__ = ["Controller", "ControllerOptions", "innermost"]

_log = log.get_logger(__name__)

_JITTER = 0.1  # share of a delay: enough to spread what was scheduled together
_QUICK_CONFLICTS = 3  # in a row; another writer that keeps winning deserves backoff
_QUICK_DELAY = (0.01, 0.1)  # seconds: time for the other writer to finish and the cache to follow
_MIN_RETRY_AFTER = 1.0  # seconds: `Retry-After: 0` is no licence to hammer

# What Go would have panicked at: a bug of the reconciler, not a state of the world.
_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)
# States of the world, whose message names object and cause: a traceback says nothing more.
_SAY_IT_ALL = (ApiError, DecodeError, NotOursError, TerminalError, TransportError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """Be the settings of one controller; raise ConfigurationError for impossible ones.

    `workers` is how many names are reconciled at once; one, as in controller-runtime, unless the
    author knows that the reconciler may run beside itself. `reconcile_timeout` is in seconds:
    two minutes, four times the deadline of one request, after which the reconcile is cancelled.
    `hot_loop` is how many successful runs of one name a minute may write before that is reported
    as a hot loop; those of public bug reports write 45 times a minute and more.
    `jitter` gives numbers from 0 to 1.
    """

    workers: int = 1
    reconcile_timeout: float = 120.0
    hot_loop: int = 30
    jitter: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigurationError(f"workers is {self.workers}: a controller needs at least 1")
        if not self.reconcile_timeout > 0:
            raise ConfigurationError(
                f"reconcile_timeout is {self.reconcile_timeout}: use a positive number of seconds"
            )
        if self.hot_loop < 1:
            raise ConfigurationError(
                f"hot_loop is {self.hot_loop}: use a number of runs a minute, at least 1"
            )


class Controller:
    """Reconcile the names of one queue; `name` is its label in metrics and logs.

    Never reconciles one name twice at once. `sources` fill the queue, from `subscribe` on and
    whether the workers run or not. `cut_off` lists the names whose reconcile was cancelled after
    `shut_down`.
    """

    def __init__(
        self,
        name: str,
        reconciler: Reconciler,
        *,
        queue: WorkQueue[Request],
        sources: Sequence[Source] = (),
        options: ControllerOptions | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        if not name:
            raise ConfigurationError("controller name is empty: it labels metrics and logs")
        self.name = name
        self.options = options or ControllerOptions()
        self._reconciler = reconciler
        self._queue = queue
        self._sources = tuple(sources)
        self._registry = registry
        self._active = 0
        self._metrics = ReconcileMetrics(name, registry=registry)
        self._metrics.active_workers.set_function(lambda: self._active)
        self._reasons = Reasons()
        self._hot_loops = hotloop.HotLoops(name, limit=self.options.hot_loop, registry=registry)
        self._log = _log
        # Only of names that are queued again at once, so never more than are in conflict now.
        self._conflicts: dict[Request, int] = {}
        self._is_shut_down = False
        self.cut_off: list[Request] = []

    def subscribe(self) -> None:
        """Begin to queue names, before there are workers; a second call does nothing.

        Called before the informers sync, the objects of the first list are queued as they are
        read. Called later they are queued in one go, which holds the loop for as long.
        """
        sources, self._sources = self._sources, ()
        for source in sources:
            source.start(
                self._queue, controller=self.name, reasons=self._reasons, registry=self._registry
            )

    async def run(self) -> None:
        """Reconcile until `shut_down`, then return when the running reconciles have ended.

        Cancel it to end those too: their names are queued again, and a further run takes up
        what was queued meanwhile, each name once. Subscribes if that was not done.
        """
        self.subscribe()
        self._metrics.max_concurrent.set(self.options.workers)
        self._log = _log.bind()  # resolved once: a line that is not written then costs 0.2 µs
        self._log.info("starting workers", controller=self.name, workers=self.options.workers)
        async with anyio.create_task_group() as workers:
            for _ in range(self.options.workers):
                workers.start_soon(self._work)

    def shut_down(self) -> None:
        """Take no further name: what is queued is dropped, and the next start finds it again."""
        self._is_shut_down = True
        self._queue.shut_down()

    async def _work(self) -> None:
        is_open = True
        while is_open:
            # One for many runs, each of which sets its deadline: a scope a run costs more.
            with anyio.CancelScope() as scope:
                is_open = await self._take_turns(scope)

    async def _take_turns(self, scope: anyio.CancelScope) -> bool:
        """Reconcile until one run is overdue, or there is nothing more to take: False then."""
        while not scope.cancel_called:
            try:
                key, priority = await self._queue.get()
            except QueueShutDown:
                return False
            self._active += 1
            try:
                await self._process(key, priority, scope)
            finally:
                self._active -= 1
                self._queue.done(key)
        return True

    async def _process(self, key: Request, priority: int, scope: anyio.CancelScope) -> None:
        contextvars.clear_contextvars()  # what the last reconcile bound is not of this one
        runs.begin(self.name, key)
        self._log.debug("reconciling", reason=self._reasons.take(key), priority=priority)
        started = time.perf_counter()
        # By the loop itself: anyio.current_time finds out anew which one it is, ten times as dear.
        scope.deadline = asyncio.get_running_loop().time() + self.options.reconcile_timeout
        try:
            result = await self._reconciler.reconcile(key)
            self._settle(key, priority, result)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this name only
            self._fail(key, priority, error)
        except (anyio.get_cancelled_exc_class(), BaseExceptionGroup) as error:
            if scope.cancel_called:
                self._metrics.timeouts.inc()
                self._fail(key, priority, self._timed_out())
                return
            if anyio.current_effective_deadline() == -math.inf:
                self._interrupt(key, priority)
                raise
            if isinstance(error, BaseExceptionGroup):
                raise
            # Nobody cancelled this worker: it leaked from something the reconciler awaited.
            self._fail(key, priority, FlexInferError("a cancellation escaped the reconciler"))
        finally:
            scope.deadline = math.inf  # none while it waits: a run must never begin overdue
            self._metrics.time.observe(time.perf_counter() - started)

    def _interrupt(self, key: Request, priority: int) -> None:
        """Take note of a reconcile that was cancelled from outside."""
        if self._is_shut_down:
            self.cut_off.append(key)
            self._log.warning("reconcile cancelled by the stop")
        else:
            self._queue.add(key, priority=priority)
            self._log.warning("reconcile cancelled, its name stays queued")

    def _settle(self, key: Request, priority: int, result: Result) -> None:
        """Queue a name again as its reconciler asked."""
        if not isinstance(result, Result):
            raise TypeError(f"reconcile returned {type(result).__name__}, not a Result")
        after = None if result.requeue_after is None else min(result.requeue_after, MAX_DELAY)
        if after is not None and math.isnan(after):
            raise ConfigurationError("requeue_after is NaN: use a number of seconds, or None")
        self._conflicts.pop(key, None)
        self._queue.forget(key)
        self._hot_loops.succeeded(key)
        if after is None:
            self._metrics.success.inc()
        else:
            self._metrics.requeue_after.inc()
            self._queue.add_after(key, self._spread(max(after, 0.0)), priority=priority)
        self._log.debug("reconciled", requeue_after=after)

    def _fail(self, key: Request, priority: int, error: Exception) -> None:
        """Count, log and retry a failure, each kind of it in its own way."""
        error = innermost(error)
        self._metrics.error.inc()
        self._metrics.errors.inc()
        if isinstance(error, _BUGS):
            self._metrics.panics.inc()
        if not isinstance(error, ConflictError):
            self._conflicts.pop(key, None)
        elif self._retry_quickly(key, priority):
            self._log.info("reconcile lost a race and is tried again", error=str(error))
            return
        trace = None if isinstance(error, _SAY_IT_ALL) else error
        self._log.error("reconcile failed", error=_text(error), exc_info=trace)
        if isinstance(error, TerminalError):
            self._metrics.terminal_errors.inc()
        elif isinstance(error, ApiError) and error.retry_after is not None:
            after = self._spread(max(error.retry_after, _MIN_RETRY_AFTER))
            self._queue.add_after(key, after, priority=priority)
        else:
            self._queue.add_rate_limited(key, priority=priority)

    def _retry_quickly(self, key: Request, priority: int) -> bool:
        """Queue a conflict again almost at once, unless it goes on and on."""
        lost = self._conflicts.get(key, 0) + 1
        self._conflicts[key] = lost
        if lost > _QUICK_CONFLICTS:
            return False
        shortest, longest = _QUICK_DELAY
        delay = shortest + (longest - shortest) * self.options.jitter()
        self._queue.add_after(key, delay, priority=priority)
        return True

    def _spread(self, delay: float) -> float:
        return delay * (1 + _JITTER * self.options.jitter())

    def _timed_out(self) -> DeadlineError:
        limit = self.options.reconcile_timeout
        return DeadlineError(f"the reconcile took longer than {limit:g} s and was cancelled")


def innermost(error: Exception) -> Exception:
    """Unpack the groups in which a task group wraps a single failure."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
