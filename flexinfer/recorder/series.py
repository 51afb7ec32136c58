# SPDX-License-Identifier: Apache-2.0
"""Which events are one, which wait to be sent, and how many there may be.

| what comes | what becomes of it |
|---|---|
| something new about an object | a new event |
| the same again within six minutes | counted: the event becomes a series |
| the same with another note | counted; a minute after it began, a new event |
| the same as what the server rejected | dropped; a minute after that, a new event |
| the hundred-and-first different thing about one object within six minutes | dropped |
| something new while 1000 new events wait to be sent | dropped |

The same is: type, reason, action, controller, object and related object. The note is not part of
it, since many carry a number; the server lets nobody change it. Six minutes after it was last
seen an event is forgotten here, so this holds nothing of a cluster in which nothing happens.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from flexinfer.recorder.reference import ObjectReference

__all__ = ["Drop", "Event", "Identity", "Series", "SeriesBook"]

WINDOW = 360.0
"""Seconds without the event after which a series is over; client-go's."""
NOTE_PERIOD = 60.0
"""Seconds from which another note is worth an event of its own."""
PER_OBJECT = 100
"""Different events about one object at one time: more are a loop, not news."""
MAX_NEW = 1000
"""New events that wait to be sent; client-go's queue has the same length."""
MAX_KNOWN = 4096
"""Events that are remembered; client-go's. The one that was seen longest ago makes room."""
LONGEST_REFRESH = 300.0
"""Seconds at most until a new count is sent: below the window, so that a series that goes on never
looks as if it had ended."""
_MOST_DOUBLINGS = 16  # however long a series goes on, its exponent stays a float's


class Drop(StrEnum):
    """Say why an event was dropped."""

    ABOUT_EVENT = "about_event"
    """It was about an event: who records those feeds itself."""
    OBJECT_LIMIT = "object_limit"
    """There are too many different ones about one object."""
    QUEUE_FULL = "queue_full"
    """Too many wait to be sent."""
    REJECTED = "rejected"
    """The server said no; the log says why."""
    GAVE_UP = "gave_up"
    """The server did not take it, time and again."""
    CLOSED = "closed"
    """It came after the end, or was not sent before it."""


class Identity(NamedTuple):
    """Be what makes two events the same."""

    type: str
    reason: str
    action: str
    controller: str
    regarding: ObjectReference
    related: ObjectReference | None


class Event(NamedTuple):
    """Be what never changes about one event on the server."""

    identity: Identity
    note: str
    first: datetime


@dataclass(slots=True, eq=False)
class Series:
    """Be one event and how often it was seen; `count` and `last` change under the book's lock.

    `sent` is the count that the server has, 0 while it does not have the event.
    """

    event: Event
    name: str
    began: float
    seen: float
    last: datetime
    count: int = 1
    sent: int = 0
    sent_at: float = 0.0
    refreshes: int = 0
    attempts: int = 0
    is_queued: bool = False
    is_rejected: bool = False

    @property
    def is_behind(self) -> bool:
        """Tell whether the server does not know all of it yet."""
        return self.count > self.sent and not self.is_rejected

    def refresh_at(self, first: float) -> float:
        """Return from when on its count may be sent again: after *first* seconds, then doubled."""
        doublings = min(max(self.refreshes - 1, 0), _MOST_DOUBLINGS)
        return self.sent_at + min(first * 2.0**doublings, LONGEST_REFRESH)


class SeriesBook:
    """Keep the series, in bounds; every method may be called from any thread.

    *clock* gives monotonic seconds, *now* the time of day, *name* the name of a new event.
    *refresh* is how many seconds after an event its count is sent; then doubled each time.
    """

    def __init__(
        self,
        *,
        refresh: float,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        name: Callable[[Identity], str],
    ) -> None:
        self._refresh = refresh
        self._clock = clock
        self._now = now
        self._name = name
        self._lock = threading.Lock()
        # In the order in which they were last seen.
        self._known: OrderedDict[Identity, Series] = OrderedDict()
        self._of_object: dict[ObjectReference, int] = {}
        self._new: deque[Series] = deque()
        self._updates: deque[Series] = deque()
        self._swept_at = clock()
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._known)

    def observe(self, identity: Identity, note: str) -> Series | Drop | None:
        """Take note of an event: return what it begins, why it is dropped, or None: counted."""
        with self._lock:
            if self._is_closed:
                return Drop.CLOSED
            if _is_event(identity.regarding):
                return Drop.ABOUT_EVENT
            at = self._clock()
            series = self._known.get(identity)
            if series is None or at - series.seen >= WINDOW:
                return self._begin(identity, note, at)
            is_other = note != series.event.note or series.is_rejected
            if is_other and at - series.began >= NOTE_PERIOD:
                return self._begin(identity, note, at)
            if series.is_rejected:
                return Drop.REJECTED
            series.count += 1
            series.seen, series.last = at, self._now()
            self._known.move_to_end(identity)
            return None

    def _begin(self, identity: Identity, note: str, at: float) -> Series | Drop:
        if len(self._new) >= MAX_NEW:
            return Drop.QUEUE_FULL
        before = self._known.get(identity)
        if before is None and self._of_object.get(identity.regarding, 0) >= PER_OBJECT:
            return Drop.OBJECT_LIMIT
        if before is not None:
            self._forget(identity)
        elif len(self._known) >= MAX_KNOWN:
            self._forget(next(iter(self._known)))
        now = self._now()
        series = Series(Event(identity, note, now), self._name(identity), at, at, now)
        self._known[identity] = series
        self._of_object[identity.regarding] = self._of_object.get(identity.regarding, 0) + 1
        self._queue(series)
        return series

    def _forget(self, identity: Identity) -> None:
        """End a series; what the server does not know of it yet is still sent."""
        series = self._known.pop(identity)
        left = self._of_object[identity.regarding] - 1
        if left:
            self._of_object[identity.regarding] = left
        else:
            del self._of_object[identity.regarding]
        if len(self._updates) < MAX_KNOWN:
            self._queue(series)

    def _queue(self, series: Series) -> None:
        if series.is_behind and not series.is_queued:
            series.is_queued = True
            (self._updates if series.sent else self._new).append(series)

    def sweep(self) -> None:
        """Queue the counts that are due, and forget what was not seen for six minutes.

        Called more often than the counts can be due, it does nothing.
        """
        with self._lock:
            at = self._clock()
            if at - self._swept_at < self._refresh:
                return
            self._swept_at = at
            for identity, series in list(self._known.items()):
                if at - series.seen >= WINDOW:
                    self._forget(identity)
                elif at >= series.refresh_at(self._refresh):
                    self._queue(series)

    def take(self) -> tuple[Series, int, datetime] | None:
        """Return what to send next, new events first, with count and time as they are now."""
        with self._lock:
            while queue := self._new or self._updates:
                series = queue.popleft()
                series.is_queued = False
                if series.is_behind:
                    return series, series.count, series.last
            return None

    def sent(self, series: Series, count: int) -> None:
        """Note that the server has the event, seen *count* times."""
        with self._lock:
            series.sent, series.sent_at, series.attempts = count, self._clock(), 0
            series.refreshes += 1

    def lost(self, series: Series) -> None:
        """Send anew, under another name, what the server had and has no more."""
        with self._lock:
            series.sent, series.name = 0, self._name(series.event.identity)
            self._queue(series)

    def retry(self, series: Series) -> None:
        """Send again what was not taken, behind all else."""
        with self._lock:
            self._queue(series)

    def reject(self, series: Series) -> None:
        """Send no more of it: the server said no."""
        with self._lock:
            series.is_rejected = True

    def discard(self, series: Series) -> None:
        """Forget it, so that it is new when it comes again."""
        with self._lock:
            series.is_rejected = True
            if self._known.get(series.event.identity) is series:
                self._forget(series.event.identity)

    def close(self) -> None:
        """Queue all that the server does not know yet, and take nothing more."""
        with self._lock:
            self._is_closed = True
            for series in self._known.values():
                self._queue(series)

    def abandon(self) -> int:
        """Forget everything; return how many events were not sent at all."""
        with self._lock:
            left = len(self._new)
            for kept in (self._new, self._updates, self._known, self._of_object):
                kept.clear()
            return left


def _is_event(subject: ObjectReference) -> bool:
    group = subject.api_version.rpartition("/")[0]
    return subject.kind == "Event" and group in {"", "events.k8s.io"}
