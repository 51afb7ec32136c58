# SPDX-License-Identifier: Apache-2.0
"""LIST, then WATCH from where the list ended, for as long as the process lives.

The resourceVersion of the last event is kept over every failure except those that say it is of
no use any more (410, a kind that is gone, two watches in a row that told nothing at all); then
everything is listed again, and what is missing from the list is reported as gone. Lists are
always consistent ones: resourceVersion unset.

A line that cannot be read, or is too long, is skipped and counted. It may have been any object's
last event, so when that watch ends, a list fills the hole.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from flexinfer import log
from flexinfer.cache.own_writes import compare
from flexinfer.cache.timing import Backoff, TimeSlice
from flexinfer.cache.trouble import (
    ShortWatchError,
    error_of,
    explain,
    needs_a_cure,
    reason,
    voids_position,
)
from flexinfer.errors import (
    ApiError,
    DeadlineError,
    DecodeError,
    ExpiredError,
    FlexInferError,
    TransportError,
)
from flexinfer.meta.wire import decode_event, decode_list

if TYPE_CHECKING:
    from flexinfer.cache.listwatch import LineSource, ListWatchTransport, Sink
    from flexinfer.cache.selection import Selection
    from flexinfer.cache.timing import Timing
    from flexinfer.client.lines import Line
    from flexinfer.meta.wire import ListPage, WatchEvent
    from flexinfer.metrics import InformerMetrics

PAGE_SIZE = 500
"""Objects asked for in one page of a list, as client-go's pager does."""

_CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})

_log = log.get_logger(__name__)


class Reflector:
    """Keep a sink equal to what the server holds of one selection.

    `trouble` says why the last attempt failed, and is None while all is well; `needs_a_cure` is
    whether somebody has to act on it. `heard_at` is when the server last said something, by the
    clock of *timing*.
    """

    def __init__(
        self,
        transport: ListWatchTransport,
        selection: Selection,
        sink: Sink,
        *,
        timing: Timing,
        metrics: InformerMetrics,
    ) -> None:
        self.trouble: str | None = None
        self.needs_a_cure = False
        self.heard_at = timing.clock()
        self._transport = transport
        self._selection = selection
        self._sink = sink
        self._timing = timing
        self._metrics = metrics
        self._backoff = Backoff(timing)
        self._burst = log.Burst(timing.clock)
        self._slice = TimeSlice()
        self._revision = ""
        self._list_reason = "first"
        self._watch_reason = ""
        self._relisted_at_once = False
        self._has_hole = False
        self._has_bookmarks = False
        self._patience = timing.idle_timeout
        self._silences = 0
        self._left_at = ""

    async def run(self) -> None:
        """List and watch until cancelled.

        Failures of the server, or of the way to it, are waited out; any other exception is a
        defect of this process and ends the run.
        """
        while True:
            verb = "watch" if self._revision else "list"
            try:
                if verb == "list":
                    await self._list()
                else:
                    await self._watch()
            except (ApiError, TransportError, DecodeError) as error:
                await self._recover(verb, error)

    async def _list(self) -> None:
        started = self._timing.clock()
        token, items, unreadable = "", 0, 0
        while True:
            page = await self._get_page(token)
            if not token:
                self._sink.begin_list(went_back=compare(page.resource_version, self._left_at) == -1)
            for item in page.items:
                if self._slice.is_over():
                    await self._slice.pause()
                if item.meta.name and item.meta.resource_version:
                    self._sink.listed(item)
                    items += 1
                else:
                    unreadable += 1
            unreadable += page.unreadable
            token = page.continue_token
            if not token:
                break
        if unreadable:
            self._skip("list item", unreadable)
        for _ in self._sink.end_list(page.resource_version, is_whole=not unreadable):
            if self._slice.is_over():
                await self._slice.pause()
        self._has_hole = bool(unreadable)
        self._listed(page.resource_version, items, self._timing.clock() - started)

    async def _get_page(self, token: str) -> ListPage:
        params = self._selection.params() | {"limit": str(PAGE_SIZE)}
        if token:
            params["continue"] = token
        body = await self._transport.request(
            "GET", self._selection.path, params=params, timeout=self._timing.list_timeout
        )
        self._slice.restart()
        page = decode_list(body)
        if not page.resource_version:
            raise DecodeError("a list without a resourceVersion", field="metadata.resourceVersion")
        if self._slice.is_over():
            await self._slice.pause()
        return page

    def _listed(self, resource_version: str, items: int, seconds: float) -> None:
        self._revision = resource_version
        self._heard()
        if self._list_reason != "first":
            self._metrics.relisted(self._list_reason)
        _log.info(
            "listed",
            selection=str(self._selection),
            objects=items,
            seconds=round(seconds, 3),
            reason=self._list_reason,
        )

    async def _watch(self) -> None:
        timing = self._timing
        started, start_revision = timing.clock(), self._revision
        seconds = timing.watch_timeout * (1 + timing.random())
        params = self._selection.params() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(seconds)),
            "resourceVersion": self._revision,
        }
        if self._watch_reason:
            self._metrics.watch_restarted(self._watch_reason)
        was_open = False
        try:
            opened = self._transport.stream(
                self._selection.path,
                params=params,
                idle_timeout=min(self._patience, seconds + timing.idle_grace),
                open_timeout=timing.open_timeout,
            )
            async with opened as lines:
                was_open, self.trouble = True, None
                await self._read_patiently(lines)
        finally:
            is_short = timing.clock() - started < timing.short_watch
            told_nothing = self._has_hole or self._revision == start_revision
            if was_open and not (is_short and told_nothing):
                # However it ended, it was of use: a connection that is cut each minute is no
                # reason to be deaf for the next one.
                self._backoff.reset()
            if not is_short:
                self._relisted_at_once = False
            if self._has_hole:
                self._must_list("unreadable")
        self._watch_reason = "closed"
        if is_short and told_nothing:
            raise ShortWatchError("the server closed the watch at once")

    async def _read_patiently(self, lines: LineSource) -> None:
        try:
            await self._read(lines)
        except DeadlineError:
            # Whether bookmarks come is the server's choice. While none ever did, silence may be
            # no sign of anything, so the next stream is given longer, up to its whole time.
            if not self._has_bookmarks:
                self._patience *= 2
            self._silences += 1
            if self._silences > 1:
                # One dead connection is no reason to list. But a server that was restored from a
                # backup says nothing, without an error, to a watch that begins in its future.
                self._must_list("silent")
            raise

    async def _read(self, lines: LineSource) -> None:
        while batch := await lines.batch():
            self._slice.restart()
            counts: dict[str, int] = {}
            try:
                for line in batch:
                    if self._slice.is_over():
                        await self._slice.pause()
                    event_type = self._take(line)
                    counts[event_type] = counts.get(event_type, 0) + 1
            finally:
                for event_type, count in counts.items():
                    if event_type:
                        self._metrics.event(event_type).inc(count)
            if "BOOKMARK" in counts:
                self._has_bookmarks = True
                self._patience = lines.idle_timeout = self._timing.idle_timeout
            self._heard()

    def _take(self, line: Line) -> str:
        """Process one line; return the type of its event, empty if it was skipped."""
        if not isinstance(line, bytes):
            self._skip("oversized line", 1, size=line.size)
            return ""
        try:
            event = decode_event(line, known=self._sink.known)
        except DecodeError as error:
            self._skip("watch line", 1, error=str(error))
            return ""
        if event.type == "ERROR":
            raise error_of(event.status)
        return self._take_event(event)

    def _take_event(self, event: WatchEvent) -> str:
        item = event.object
        version = "" if item is None else item.meta.resource_version
        if item is not None and event.type in _CHANGES and version and item.meta.name:
            self._sink.changed(event.type, item)
        elif version and event.type == "BOOKMARK":
            self._sink.bookmarked(version)
        else:
            self._skip("watch event", 1, type=event.type)
            return ""
        self._revision = version
        return event.type

    async def _recover(self, verb: str, error: FlexInferError) -> None:
        """Decide what is due after a failure, and wait before it."""
        word = reason(error)
        if verb == "watch":
            self._watch_reason = word
        if voids_position(error):
            self._must_list(word)
        self.trouble = explain(verb, self._selection, error)
        self.needs_a_cure = needs_a_cure(error)
        if isinstance(error, ExpiredError) and not self._relisted_at_once:
            # The usual end of a long disconnection: a list helps, and a wait does not.
            self._relisted_at_once = True
            delay = 0.0
        else:
            retry_after = error.retry_after if isinstance(error, ApiError) else None
            delay = self._backoff.next_delay(at_least=retry_after or 0.0)
        write = _log.info if word in ("expired", "short") else _log.warning
        write(
            "list or watch failed",
            verb=verb,
            selection=str(self._selection),
            reason=word,
            error=str(error),
            retry_in=round(delay, 3),
        )
        await self._timing.sleep(delay)

    def _must_list(self, why: str) -> None:
        if self._revision:
            self._left_at, self._revision = self._revision, ""
            self._list_reason = why

    def _heard(self) -> None:
        self._silences = 0
        self.heard_at = self._timing.clock()
        self.trouble = None
        self._metrics.last_event = time.time()

    def _skip(self, what: str, count: int, **values: object) -> None:
        self._metrics.unreadable_lines.inc(count)
        self._has_hole = True
        if self._burst.admit():
            _log.warning(
                "skipped what cannot be read",
                what=what,
                count=count,
                selection=str(self._selection),
                left_out=self._burst.take_suppressed(),
                **values,
            )
