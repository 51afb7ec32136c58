# SPDX-License-Identifier: Apache-2.0
"""Send events to the API server, beside whatever else the process does."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio

from flexinfer import log
from flexinfer.client.protocol import Patch
from flexinfer.errors import (
    AlreadyExistsError,
    ApiError,
    ConfigurationError,
    ConflictError,
    FlexInferError,
    NotFoundError,
    ServerError,
    ThrottledError,
    TransportError,
)
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource
from flexinfer.metrics import REGISTRY
from flexinfer.recorder.limits import event_name, instance_name
from flexinfer.recorder.metrics import EventMetrics
from flexinfer.recorder.recorder import EventRecorder
from flexinfer.recorder.series import LONGEST_REFRESH, Drop, SeriesBook

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry

    from flexinfer.client.protocol import Client
    from flexinfer.meta.envelope import Tree
    from flexinfer.recorder.reference import ObjectReference
    from flexinfer.recorder.series import Identity, Series

__all__ = ["EVENTS", "EventBroadcaster"]

_log = log.get_logger(__name__)

EVENTS = Resource(GroupVersionKind("events.k8s.io", "v1", "Event"), "events")

_FIELD_MANAGER = "flexinfer-events"
_DEFAULT_NAMESPACE = "default"  # where events about cluster-scoped objects are
_ATTEMPTS = 12  # client-go's; with our pauses above five minutes of an API server that is away
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_MOST_DOUBLINGS = 16  # however long the API server is away, the exponent stays a float's
_FLUSH = 2.0  # seconds: what is left of a pod's grace period is worth more elsewhere
_RETRIED = (TransportError, ServerError, ThrottledError, ConflictError)


class EventBroadcaster:
    """Send what its recorders record: one request at a time, a pause after each failure.

    Recording only ever adds to a bounded book; the sending is the task that calls `run`. While
    the API server is away there is one request a pause, and the pause grows to half a minute.
    *client* should have a deadline of some seconds. *instance* is this process, by default the
    host's name. *refresh* is how many seconds after an event its count is sent when it came again,
    doubled each time up to five minutes. *clock*, *now* and *sleep* are time itself.
    """

    def __init__(  # noqa: PLR0913 - one place, the rest optional and by keyword
        self,
        client: Client,
        *,
        instance: str = "",
        refresh: float = 10.0,
        registry: CollectorRegistry = REGISTRY,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
    ) -> None:
        """Refuse impossible settings with ConfigurationError."""
        if not 0 < refresh <= LONGEST_REFRESH:
            raise ConfigurationError(
                f"refresh is {refresh}: use seconds above 0 and at most {LONGEST_REFRESH:g}"
            )
        self.book = SeriesBook(refresh=refresh, clock=clock, now=now, name=_new_name)
        self._refresh = refresh
        self.metrics = EventMetrics(registry=registry)
        self._client = client
        self._instance = instance or socket.gethostname()
        self._sleep = sleep
        self._failures = 0
        self._woken = anyio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    def recorder(self, controller: str) -> EventRecorder:
        """Return the recorder of one controller, which its events name as their reporter."""
        return EventRecorder(self, controller)

    def observe(self, identity: Identity, note: str) -> None:
        """Take an event, from any thread; never waits and never raises."""
        outcome = self.book.observe(identity, note)
        if isinstance(outcome, Drop):
            self.metrics.dropped(outcome)
        elif outcome is not None:
            self._wake()

    async def run(self) -> None:
        """Send until cancelled; `flush` does the rest."""
        self._thread, self._loop = threading.get_ident(), asyncio.get_running_loop()
        try:
            while True:
                await self.send()
                await self._wait()
        finally:
            self._loop = None

    async def send(self) -> None:
        """Send everything that is due."""
        self.book.sweep()
        while (due := self.book.take()) is not None:
            await self._send(*due)

    async def flush(self, timeout: float = _FLUSH) -> None:  # noqa: ASYNC109 - no error comes of it
        """Send what is left, for at most *timeout* seconds; what comes after is dropped.

        To be called when `run` has ended and nothing records any more.
        """
        self.book.close()
        self._failures = 0
        with anyio.move_on_after(timeout):
            while (due := self.book.take()) is not None:
                await self._send(*due)
        left = self.book.abandon()
        if left:
            self.metrics.dropped(Drop.CLOSED, left)
            _log.warning("events were not sent before the end", events=left)

    async def _send(self, series: Series, count: int, last: datetime) -> None:
        try:
            if series.sent:
                await self._patch(series, count, last)
            else:
                await self._create(series, count, last)
        except anyio.get_cancelled_exc_class():
            self.book.retry(series)
            raise
        except _RETRIED as error:
            self._try_again(series, error)
            await self._pause(error)
        except NotFoundError as error:
            if series.sent:
                self.book.lost(series)
            else:
                self._reject(series, error)
        except FlexInferError as error:
            self._reject(series, error)
        else:
            self._failures = 0
            self.book.sent(series, count)

    async def _create(self, series: Series, count: int, last: datetime) -> None:
        body = _wire(series, count, last, self._instance)
        try:
            await self._client.create(EVENTS, body, field_manager=_FIELD_MANAGER)
        except AlreadyExistsError:
            # Ours: nobody else gives such a name. The answer to an earlier try was lost, and
            # with it maybe a smaller count.
            if count > 1:
                await self._patch(series, count, last)
        self.metrics.created.inc()

    async def _patch(self, series: Series, count: int, last: datetime) -> None:
        key = NamespacedName(_namespace(series.event.identity.regarding), series.name)
        await self._client.patch(
            EVENTS,
            key,
            {"series": _series(count, last)},
            content_type=Patch.MERGE,
            field_manager=_FIELD_MANAGER,
        )
        self.metrics.patched.inc()

    def _try_again(self, series: Series, error: FlexInferError) -> None:
        series.attempts += 1
        if series.attempts < _ATTEMPTS:
            self.book.retry(series)
            return
        self.book.discard(series)
        self.metrics.dropped(Drop.GAVE_UP)
        _log.warning("an event is given up", error=str(error), **_about(series))

    def _reject(self, series: Series, error: FlexInferError) -> None:
        self.book.reject(series)
        self.metrics.dropped(Drop.REJECTED)
        _log.warning("an event is rejected", error=str(error), **_about(series))

    async def _pause(self, error: FlexInferError) -> None:
        pause = min(_FIRST_PAUSE * 2.0 ** min(self._failures, _MOST_DOUBLINGS), _LONGEST_PAUSE)
        self._failures += 1
        asked = error.retry_after if isinstance(error, ApiError) else None
        jitter = random.uniform(0.5, 1)  # noqa: S311 - jitter
        await self._sleep(max(pause * jitter, asked or 0.0))

    async def _wait(self) -> None:
        """Wait for a new event, or until a count may be due."""
        with anyio.move_on_after(self._refresh if len(self.book) else None):
            await self._woken.wait()
        self._woken = anyio.Event()

    def _wake(self) -> None:
        loop = self._loop
        if loop is None:
            return
        if threading.get_ident() == self._thread:
            self._set_woken()
            return
        try:
            # anyio has no way to wake a loop from outside without waiting for it.
            loop.call_soon_threadsafe(self._set_woken)
        except RuntimeError:
            # The loop was closed a moment ago: it is `flush` that sends from now on.
            _log.debug("an event came while the loop was closing")

    def _set_woken(self) -> None:
        self._woken.set()


def _new_name(identity: Identity) -> str:
    return event_name(identity.regarding.name, secrets.token_hex(8))


def _about(series: Series) -> dict[str, str]:
    """Return the keys of a log line about an event."""
    subject = series.event.identity.regarding
    name = NamespacedName(subject.namespace, subject.name)
    return {"reason": series.event.identity.reason, "object": f"{subject.kind} {name}"}


def _namespace(regarding: ObjectReference) -> str:
    return regarding.namespace or _DEFAULT_NAMESPACE


def _wire(series: Series, count: int, last: datetime, instance: str) -> Tree:
    identity, note, first = series.event
    body: Tree = {
        "metadata": {"namespace": _namespace(identity.regarding), "name": series.name},
        "eventTime": _micro_time(first),
        "type": identity.type,
        "reason": identity.reason,
        "action": identity.action,
        "note": note,
        "regarding": identity.regarding.wire(),
        "reportingController": identity.controller,
        "reportingInstance": instance_name(f"{identity.controller}-{instance}"),
    }
    if identity.related is not None:
        body["related"] = identity.related.wire()
    if count > 1:
        body["series"] = _series(count, last)
    return body


def _series(count: int, last: datetime) -> Tree:
    return {"count": count, "lastObservedTime": _micro_time(last)}


def _micro_time(time_of_day: datetime) -> str:
    """Write a time as MicroTime is read: UTC, always six digits."""
    return time_of_day.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
