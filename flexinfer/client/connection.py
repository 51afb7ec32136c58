# SPDX-License-Identifier: Apache-2.0
"""One HTTP/1.1 connection: a request goes out, its answer comes in, then the next may follow.

httptools parses; here is what is under way. The API server needs no redirects, no cookies, no
compression and no pipelining, and a client without them costs a third of the CPU: see ADR 10.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import httptools

from flexinfer.client.response import CLOSED, OK, LostError, Response, cause

if TYPE_CHECKING:
    from collections.abc import Callable

# What may come before a body; above any head that an API server or a proxy sends.
_HEAD_LIMIT = 256 * 1024
_BEHIND = "it ended while its reader was behind"


class Connection(asyncio.Protocol):
    """Be a connection to a server, for one request after the other.

    *on_idle* is called with it when an answer is complete and the next request may come.
    """

    def __init__(self, *, on_idle: Callable[[Connection], None]) -> None:
        self._on_idle = on_idle
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._head: list[bytes] = []
        self._answer: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        self._head_size = 0
        self._is_paused = False
        self._is_behind = False  # it was paused, and nothing came since

    @property
    def is_open(self) -> bool:
        """Tell whether a request may be sent, as far as is known here."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def transport(self) -> asyncio.Transport:
        """Return what it writes to; raises LostError when that is gone."""
        if self._transport is None:
            raise LostError("the connection is closed")
        return self._transport

    async def send(self, request: bytes) -> Response:
        """Send a request and return its answer, of which the head has come.

        Raises LostError when the connection ends before that.
        """
        transport = self.transport
        answer: asyncio.Future[Response] = self._loop.create_future()
        self._answer, self._head_size = answer, 0
        transport.write(request)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.cancelled():
                self.abort()
            elif answer.exception() is None:
                answer.result().close()
            raise
        finally:
            del answer  # which holds an error, and that this frame

    def abort(self) -> None:
        """Cut the connection without a goodbye, which a peer that hangs would never answer."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Let the peer wait."""
        if not self._is_paused and self.is_open:
            self._is_paused = self._is_behind = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Let the peer go on."""
        if self._is_paused and self.is_open:
            self._is_paused = False
            self.transport.resume_reading()

    # What the loop reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came; what nobody asked for ends the connection."""
        self._is_behind = False
        if self._answer is not None:
            self._head.append(data)
        elif self._response is None:
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(LostError(f"this is no answer in HTTP: {error}"))
            self.abort()
        if self._answer is not None:
            self._count(len(data))

    def _count(self, size: int) -> None:
        """Bound what comes before the answer's body."""
        self._head_size += size
        if self._head_size > _HEAD_LIMIT:
            self._end(LostError(f"its head is longer than {_HEAD_LIMIT} bytes"))
            self.abort()

    def eof_received(self) -> None:
        """Take that the peer says no more: an idle connection is closed at once.

        TLS reports its end some rounds of the loop later, and a request could be sent meanwhile.
        """
        self._is_behind = False
        if self._answer is None and self._response is None:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is under way.

        What TLS still holds of a connection that is paused, uvloop drops when the peer closes.
        """
        if self._transport is not None:  # else TLS did not begin: asyncio tells of its end as well
            self._transport = None
            del self._parser  # which holds us: each would wait for the garbage collector
        if exc is None and self._is_behind:
            exc = LostError(_BEHIND)
        self._end(exc if exc is None or isinstance(exc, OSError) else LostError(str(exc)))

    def _end(self, error: OSError | None) -> None:
        answer, self._answer = self._answer, None
        response, self._response = self._response, None
        if answer is not None and not answer.done():
            answer.set_exception(LostError(CLOSED if error is None else cause(error)))
        if response is not None:
            response.cut(error)

    # What the parser reports

    def on_message_begin(self) -> None:
        """Begin an answer; the first byte of one that nobody waits for is refused.

        Its rest could come after the next request, and would be taken for the answer to that.
        """
        if self._answer is None:
            raise LostError("one more than was asked for")

    def on_headers_complete(self) -> None:
        """Give out the answer; one below 200 only announces another."""
        status = self._parser.get_status_code()
        if status < OK:
            return
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            raise LostError("one more than was asked for")
        head, self._head = self._head, []
        self._response = Response(self, status, head)
        answer.set_result(self._response)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self._response is not None:
            self._response.feed(body)

    def on_message_complete(self) -> None:
        """End the answer; the connection is kept if both sides mean to."""
        response, self._response = self._response, None
        if response is None:
            return
        response.end()
        self.resume()
        if self._parser.should_keep_alive() and self.is_open:
            self._on_idle(self)
        else:
            self.abort()
