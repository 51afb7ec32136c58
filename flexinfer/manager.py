# SPDX-License-Identifier: Apache-2.0
"""What a process of controllers consists of, and the order in which it starts and stops.

| start | stop |
|---|---|
| 1. probes and metrics | 1. `/readyz` fails; queued names are dropped |
| 2. informers; all of them have to sync | 2. running reconciles end, within the grace time |
| 3. election, where there is one | 3. informers |
| 4. controllers and other runnables | 4. probes and metrics |
| | 5. the Lease is released |
| | 6. what was recorded in events and not sent yet, within two seconds |

SIGTERM and SIGINT begin the stop, and a second one ends the process at once with exit code 1.
Whatever fails stops the manager, in the same order, and its error leaves `run`. Controllers wait
for every informer, also for those of others: a manager that could do half of its work says so in
`/readyz` and does none of it. One that cannot sync goes on trying, so a right or a kind that is
granted later needs no restart, until `cache_sync_timeout` is over: then the start fails and says
what could not be listed, and why.

With leader election, controllers and whatever needs leadership run only while this process leads.
A standby is ready: its caches are warm, and its queues hold each name once. When the Lease is lost
running reconciles are cancelled, their names stay queued, and the manager stands by again.
"""

from __future__ import annotations

import math
import os
import re
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio

from flexinfer import log
from flexinfer.cache.client import CacheClient
from flexinfer.cache.informer import InformerOptions
from flexinfer.cache.informers import Informers
from flexinfer.cache.timing import Timing
from flexinfer.client.direct import DirectClient
from flexinfer.client.transport import TIMEOUT
from flexinfer.controller import Controller, ControllerOptions, innermost
from flexinfer.errors import ConfigurationError, FlexInferError
from flexinfer.healthz import Checks
from flexinfer.looplag import LIMIT, LoopLag
from flexinfer.metrics import REGISTRY
from flexinfer.recorder import EventBroadcaster
from flexinfer.server import Address, metrics_route, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from types import FrameType

    from anyio.abc import TaskGroup, TaskStatus
    from prometheus_client import CollectorRegistry

    from flexinfer.client.transport import Transport
    from flexinfer.healthz import Check
    from flexinfer.leaderelection import Leadership
    from flexinfer.recorder import EventRecorder

__all__ = ["Manager", "ManagerOptions", "Runnable"]

_log = log.get_logger(__name__)

_EXIT_CODE_OF_SECOND_SIGNAL = 1
_EVENT_TIMEOUT = 10.0  # seconds for one event: it is sent again, so it need not wait long
_NOT_IN_A_PATH = re.compile(r"[^A-Za-z0-9.,=_-]+")


class Runnable(Protocol):
    """Be something that lives as long as the manager, or as long as it leads.

    `run` may return early; it is cancelled at the stop and its error stops the manager. If it
    needs leadership it is cancelled at a loss too, and called again with the next term.
    """

    async def run(self) -> None:
        """Run until cancelled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """Be the settings of a manager; raise ConfigurationError for impossible ones.

    `metrics_address` and `probe_address` are `host:port`, `:port`, or `0` for off. `grace` is
    how many seconds running reconciles have at the stop before they are cancelled;
    `cache_sync_timeout` how many all informers together have at the start. `controller` holds
    the defaults of all controllers, `timing` the waits of all informers. `request_timeout` is the
    deadline of each request in seconds, and `loop_lag` how many of them the event loop may be
    blocked before the process is not ready. `signals` begin the stop; leave them empty when the
    process has another owner.
    """

    metrics_address: str = ":8080"
    probe_address: str = ":8081"
    grace: float = 30.0
    cache_sync_timeout: float = 120.0
    controller: ControllerOptions = field(default_factory=ControllerOptions)
    timing: Timing = field(default_factory=Timing)
    request_timeout: float = TIMEOUT
    loop_lag: float = LIMIT
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)

    def __post_init__(self) -> None:
        metrics, probes = self.addresses()
        if metrics is not None and metrics.collides(probes):
            raise ConfigurationError(
                f"metrics_address and probe_address are both {self.probe_address!r}: give them"
                " different ports"
            )
        if not 0 <= self.grace < math.inf:
            raise ConfigurationError(
                f"grace is {self.grace}: use a finite number of seconds, 0 to cancel at once"
            )
        if not 0 < self.cache_sync_timeout < math.inf:
            raise ConfigurationError(
                f"cache_sync_timeout is {self.cache_sync_timeout}: use a positive, finite number"
                " of seconds"
            )

    def addresses(self) -> tuple[Address | None, Address | None]:
        """Return where metrics and probes are served, None for off."""
        return (
            Address.parse(self.metrics_address, setting="metrics_address"),
            Address.parse(self.probe_address, setting="probe_address"),
        )


class Manager:
    """Own the client, the informers, the controllers and the servers of one process.

    With *leadership*, which the manager enters and leaves, controllers wait to be elected.
    `client` reads the informers and writes to the API server; `healthz` and `readyz` take
    further checks. `metrics_port` and `probe_port` are the ports once `run` listens, else None.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        options: ManagerOptions | None = None,
        leadership: Leadership | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.options = options or ManagerOptions()
        self.leadership = leadership
        self.registry = registry
        self.informers = Informers(
            transport, options=InformerOptions(timing=self.options.timing, registry=registry)
        )
        guard = None if leadership is None else leadership.check_write
        direct = DirectClient(transport, timeout=self.options.request_timeout, guard=guard)
        self.client = CacheClient(self.informers, direct)
        self.events = EventBroadcaster(
            DirectClient(transport, timeout=_EVENT_TIMEOUT), registry=registry
        )
        self.healthz = Checks("healthz")
        self.readyz = Checks("readyz")
        self.metrics_port: int | None = None
        self.probe_port: int | None = None
        self._controllers: dict[str, Controller] = {}
        self._elected: list[Runnable] = []
        self._others: list[Runnable] = []
        self._lag = LoopLag(limit=self.options.loop_lag, registry=registry)
        self._stopping = anyio.Event()
        self._has_run = False
        self._failures: list[Exception] = []
        self.healthz.add("ping", lambda: None)
        self.readyz.add("event-loop", self._lag.check)
        self.readyz.add_group(self._informer_checks)
        self.readyz.add("shutdown", self._check_shutdown)
        if leadership is not None:
            self.healthz.add("leader-election", leadership.check_alive)
            self.readyz.add("leader-election", leadership.check_ready)

    def add(self, runnable: Runnable, *, needs_leadership: bool = True) -> None:
        """Run *runnable* with the manager, from when the informers have synced.

        With leader election it runs only while this process leads, unless *needs_leadership* is
        False; controllers always need it. Raises ConfigurationError once the manager runs, for a
        second controller of a name, and for what is no Runnable.
        """
        if self._has_run:
            raise ConfigurationError("the manager runs already: add everything before run()")
        if isinstance(runnable, type) or not callable(getattr(runnable, "run", None)):
            raise ConfigurationError(
                f"{runnable!r} cannot be run: add an object with `async def run(self) -> None`"
            )
        if not isinstance(runnable, Controller):
            (self._elected if needs_leadership else self._others).append(runnable)
        elif runnable.name in self._controllers:
            raise ConfigurationError(
                f"there is a controller {runnable.name!r} already: give one another name"
            )
        else:
            self._controllers[runnable.name] = runnable

    def recorder(self, controller: str) -> EventRecorder:
        """Return what records the events of one controller; the manager sends them."""
        return self.events.recorder(controller)

    def stop(self) -> None:
        """Begin the stop; `run` returns when it is done."""
        self._stopping.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run until a signal or `stop`; cancel it to end without any grace.

        Reports itself started when the servers listen. Raises the error of what failed, an
        ExceptionGroup when several did: ConfigurationError for an address that is taken,
        CacheNotSyncedError for informers that did not sync in time, FlexInferError for
        reconciles that outlasted the grace time.
        """
        if self._has_run:
            raise ConfigurationError("a manager runs once: make another one")
        self._has_run = True
        # Before anything that a signal could find half done: a Lease, a port.
        with anyio.open_signal_receiver(*self.options.signals) as signals:
            await self._run_parts(signals, task_status)
            await self.events.flush()
        _log.info("stopped")
        if len(self._failures) > 1:
            raise ExceptionGroup("several parts of the manager failed", self._failures)
        if self._failures:
            raise self._failures[0]

    async def _run_parts(
        self, signals: AsyncIterator[signal.Signals], task_status: TaskStatus[None]
    ) -> None:
        async with AsyncExitStack() as stack:
            if self.leadership is not None:
                await stack.enter_async_context(self.leadership)
            await self._listen(stack)
            task_status.started()
            async with anyio.create_task_group() as group:
                group.start_soon(self._heed, signals)
                group.start_soon(self._guard, "event-loop", self._lag.run)
                group.start_soon(self._guard, "events", self.events.run)
                await self._run_on_caches()
                group.cancel_scope.cancel()

    async def _listen(self, servers: AsyncExitStack) -> None:
        metrics, probes = self.options.addresses()
        if probes is not None:
            routes = [*self.healthz.routes(), *self.readyz.routes()]
            self.probe_port = await servers.enter_async_context(serve(probes, routes))
            _log.info("serving probes", port=self.probe_port)
        if metrics is not None:
            routes = [metrics_route(self.registry)]
            self.metrics_port = await servers.enter_async_context(serve(metrics, routes))
            _log.info("serving metrics", port=self.metrics_port)

    async def _run_on_caches(self) -> None:
        for controller in self._controllers.values():
            controller.subscribe()
        async with anyio.create_task_group() as group:
            group.start_soon(self._guard_lasting, "informers", self.informers.run)
            await self._run_until_stopped()
            group.cancel_scope.cancel()

    async def _run_until_stopped(self) -> None:
        """Start what needs synced caches, wait for the stop, end it within the grace time."""
        until_stop = anyio.CancelScope()
        async with anyio.create_task_group() as group:
            group.start_soon(self._start_all, group, until_stop)
            await self._stopping.wait()
            _log.info("stopping", grace=self.options.grace)
            until_stop.cancel()
            if self.leadership is not None:
                self.leadership.resign()
            for controller in self._controllers.values():
                controller.shut_down()
            group.cancel_scope.deadline = anyio.current_time() + self.options.grace
        cut_off = [f"{c.name} {key}" for c in self._controllers.values() for key in c.cut_off]
        if cut_off:
            self._failures.append(
                FlexInferError(
                    f"reconciles outlasted the grace time of {self.options.grace:g} s and were"
                    f" cancelled: {', '.join(cut_off)}"
                )
            )

    async def _start_all(self, group: TaskGroup, until_stop: anyio.CancelScope) -> None:
        with until_stop:
            await self._guard("informers", self._wait_for_informers)
        if self._stopping.is_set():
            return
        group.start_soon(self._run_until_stop, self._others)
        if self.leadership is None:
            await self._run_elected()
        else:
            lead = partial(self.leadership.lead, self._run_elected)
            await self._guard("leader election", lead)

    async def _run_elected(self) -> None:
        """Run what needs leadership, for one term if there are any."""
        async with anyio.create_task_group() as group:
            for controller in self._controllers.values():
                group.start_soon(self._guard_lasting, controller.name, controller.run)
            group.start_soon(self._run_until_stop, self._elected)

    async def _run_until_stop(self, runnables: Sequence[Runnable]) -> None:
        async with anyio.create_task_group() as group:
            for runnable in runnables:
                group.start_soon(self._guard, type(runnable).__name__, runnable.run)
            await self._stopping.wait()
            group.cancel_scope.cancel()

    async def _wait_for_informers(self) -> None:
        await self.informers.wait_synced(self.options.cache_sync_timeout)
        _log.info("informers synced", informers=sum(1 for _ in self.informers))

    async def _guard_lasting(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run what must not end before the stop."""

        async def lasting() -> None:
            await run()
            if not self._stopping.is_set():
                raise FlexInferError(f"{name} ended although nothing stopped it")

        await self._guard(name, lasting)

    async def _guard(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Turn a failure into an ordered stop."""
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - whatever fails begins the stop; run() raises it
            failure = innermost(error)
            _log.error("a part of the manager failed", part=name, exc_info=failure)
            self._failures.append(failure)
            self.stop()

    async def _heed(self, signals: AsyncIterator[signal.Signals]) -> None:
        async for number in signals:
            _log.info("signal received", signal=number.name)
            break
        self.stop()
        # Not by the event loop from here on: the second signal is for when that is stuck.
        for number in self.options.signals:
            signal.signal(number, _end_at_once)

    def _informer_checks(self) -> Iterable[tuple[str, Check]]:
        for informer in self.informers:
            label = _NOT_IN_A_PATH.sub("_", informer.selection.label)
            name = f"informer-{informer.resource}"
            yield f"{name}-{label}" if label else name, informer.health

    def _check_shutdown(self) -> str | None:
        return "the manager is stopping" if self._stopping.is_set() else None


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    # Written past the logger, whose lock the interrupted code may hold.
    os.write(2, b"second signal: ending at once\n")
    os._exit(_EXIT_CODE_OF_SECOND_SIGNAL)
