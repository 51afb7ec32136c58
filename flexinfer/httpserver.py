# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 for kubelets and scrapers: the connections of a small server, each with a deadline.

httptools parses; a request is answered in the round of the loop in which its last byte comes, so
that there is no task and no queue. Requests that a client sends ahead are answered in order, as
long as it takes the answers: one that comes while an earlier answer waits in our buffer is left,
the connection is closed after that answer, and the client repeats the rest (RFC 9112, 9.3.2).
Bodies are read past. Why it is ours, and what it costs: see ADR 11.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import anyio
import httptools

from flexinfer import log
from flexinfer.routing import Answer, Request

if TYPE_CHECKING:
    from flexinfer.routing import Routes

_BAD = Answer.bare(HTTPStatus.BAD_REQUEST)
_LONG = Answer.bare(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

# What is parsed at a time: where in it a request ended, the parser does not tell.
_PIECE = 1024

_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Be the bounds of a server.

    `ahead` is how many bytes of one request may come before its answer, head and body, up to a
    kilobyte more; `connections` how many there may be. All times are seconds, and what outlasts
    one is cut: `request` is for a request to come whole, `idle` for the next one to begin, longer
    than a scraper's usual minute; `send` for an answer to be taken, and `linger` for the client to
    close after its last one.
    """

    ahead: int = 16 * 1024
    connections: int = 128
    request: float = 10.0
    idle: float = 90.0
    send: float = 30.0
    linger: float = 1.0


LIMITS = Limits()


class Connections:
    """Keep what one server has open."""

    def __init__(self, routes: Routes, *, limits: Limits = LIMITS) -> None:
        self.routes = routes
        self.limits = limits
        self._open: dict[Connection, None] = {}  # a set that keeps its order
        self._ended = anyio.Event()
        self._is_closing = False
        self._burst = log.Burst(asyncio.get_running_loop().time)

    def make(self) -> Connection:
        """Return what a new connection is handled by."""
        return Connection(self)

    def admit(self, new: Connection) -> None:
        """Take *new* in; if there are too many the first idle one is cut for it, or *new* is."""
        if self._is_closing:
            new.abort()
            return
        if len(self._open) >= self.limits.connections:
            idle = next((each for each in self._open if each.is_idle), None)
            if self._burst.admit():
                _log.warning(
                    "too many connections: one is cut",
                    limit=self.limits.connections,
                    suppressed=self._burst.take_suppressed(),
                )
            (idle or new).abort()
            if idle is None:
                return
            self._open.pop(idle)
        self._open[new] = None

    def discard(self, ended: Connection) -> None:
        """Take out what has ended."""
        self._open.pop(ended, None)
        if self._is_closing and not self._open:
            self._ended.set()

    async def close(self, seconds: float) -> None:
        """End all connections; what is being sent may take *seconds* more."""
        self._is_closing = True
        for end in (Connection.close, Connection.abort):
            if not self._open:
                return
            for connection in tuple(self._open):
                end(connection)
            with anyio.move_on_after(seconds):
                await self._ended.wait()


class Connection(asyncio.Protocol):
    """Answer the requests of one connection, one after the other."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._limits = connections.limits
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._ahead = 0
        self._is_asking = False  # a request has begun and is not whole
        self._is_sending = False  # of an answer not all is with the system
        self._is_done = False  # the last answer is given; what comes is read past

    @property
    def is_idle(self) -> bool:
        """Tell whether no request that was read waits for the rest of it or of its answer.

        What is left is the wait for the next request, or for the client to close.
        """
        return not (self._is_asking or self._is_sending)

    def close(self) -> None:
        """End it when what is being sent is sent."""
        self._is_done = True
        self._transport.close()

    def abort(self) -> None:
        """Cut it."""
        self._transport.abort()

    # What the loop reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport, which is to say at once when something is not taken by the system."""
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._transport.set_write_buffer_limits(high=0)
        self._arm(self._limits.request)
        self._connections.admit(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and answer what is whole."""
        for start in range(0, len(data), _PIECE):
            if self._is_done:
                return
            self._parse(data[start : start + _PIECE])

    def _parse(self, piece: bytes) -> None:
        self._ahead += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # answered in HTTP/1.1 as the last one: what follows is not read
        except httptools.HttpParserCallbackError:
            raise  # a bug of ours: the loop logs it and cuts the connection
        except httptools.HttpParserError:
            self._refuse(_BAD)
        if self._ahead > self._limits.ahead:
            self._refuse(_LONG)

    def pause_writing(self) -> None:
        """Read nothing more until the answer is taken."""
        self._is_sending = True
        self._transport.pause_reading()
        self._arm(self._limits.send)

    def resume_writing(self) -> None:
        """Go on: the answer is taken."""
        self._is_sending = False
        if self._transport.is_closing():
            return
        self._transport.resume_reading()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it; a client may go when it likes, so *exc* is nobody's concern."""
        del exc
        if self._timer is not None:
            self._timer.cancel()
        self._is_done = True
        del self._parser  # which holds us: each would wait for the garbage collector
        self._connections.discard(self)

    # What the parser reports

    def on_message_begin(self) -> None:
        """Begin a request; it has its own time to come."""
        if self._is_done:
            return
        self._target, self._fields = b"", []
        self._is_asking = True
        if not self._is_sending:
            self._arm(self._limits.request)

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._fields.append((name, value))

    def on_message_complete(self) -> None:
        """Answer, or close when the client does not take what it asked for before."""
        self._is_asking, self._ahead = False, 0
        if self._is_done or self._transport.is_closing():
            return
        if self._is_sending:
            self._end()
            return
        headers = {n.decode("latin-1").lower(): v.decode("latin-1") for n, v in self._fields}
        if "host" not in headers and self._parser.get_http_version() != "1.0":
            self._answer(_BAD, is_last=True)
            return
        method = self._parser.get_method().decode("latin-1")
        request = Request.parse(self._target.decode("latin-1"), headers)
        answer = self._connections.routes.answer(method, request)
        stays = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        self._answer(answer, is_last=not stays, has_body=method != "HEAD")

    def _answer(self, answer: Answer, *, is_last: bool, has_body: bool = True) -> None:
        self._transport.write(_head(answer, is_last=is_last) + (answer.body if has_body else b""))
        if is_last:
            self._end()
        elif not self._is_sending:
            self._wait()

    def _refuse(self, answer: Answer) -> None:
        """End with *answer*, unless an earlier one waits: behind that nothing is answered."""
        if self._is_done:
            return
        if self._is_sending:
            self._end()
        else:
            self._answer(answer, is_last=True)

    def _end(self) -> None:
        """Say no more, and read past what comes until the client closes.

        If we closed with something unread, the system would reset the connection, and the client
        could lose the answer.
        """
        self._is_done, self._is_asking = True, False
        if not self._transport.is_closing():
            try:
                self._transport.write_eof()
            except (OSError, RuntimeError):
                self.abort()  # the client reset it, and the loop learns of that only now
        if not self._is_sending:
            self._wait()

    def _wait(self) -> None:
        """Begin the wait for what comes next."""
        if self._is_done:
            self._arm(self._limits.linger)
        else:
            self._arm(self._limits.request if self._is_asking else self._limits.idle)

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.abort)


def _head(answer: Answer, *, is_last: bool) -> bytes:
    fields = {
        **answer.headers,
        "Content-Type": answer.content_type,
        "Content-Length": str(len(answer.body)),
        "Date": formatdate(usegmt=True),
        "Connection": "close" if is_last else "keep-alive",
    }
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join((*lines, "", "")).encode("latin-1")
