# SPDX-License-Identifier: Apache-2.0
"""An answer on a connection: its status at once, its body as it comes, its headers when asked for.

Whoever reads slowly makes the peer wait, unless it wants the whole body.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import httptools

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flexinfer.client.connection import Connection

CLOSED = "the server closed it"
# Bytes of a body that wait for their reader; above that the peer has to wait.
_BUFFER = 256 * 1024
# As plain numbers: looking into an enum costs as much as the rest of the question.
OK, _REDIRECT = int(HTTPStatus.OK), int(HTTPStatus.MULTIPLE_CHOICES)
_FRAMING = frozenset({"content-length", "transfer-encoding"})


class LostError(ConnectionError):
    """Report a connection that ended with something under way."""


class SilentError(Exception):
    """Report that nothing came in time; the connection is as it was."""


class Response:
    """Be an answer: its status at once, its body as it comes in.

    Reading raises OSError when the body is cut. One reader at a time.
    """

    __slots__ = (
        "_chunks",
        "_connection",
        "_error",
        "_head",
        "_is_whole",
        "_size",
        "_waiter",
        "is_complete",
        "status",
    )

    def __init__(self, connection: Connection, status: int, head: Sequence[bytes]) -> None:
        self.status = status
        self.is_complete = False
        self._connection = connection
        self._head = head
        self._chunks: list[bytes] = []
        self._size = 0
        self._error: OSError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_whole = False

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers by their names in small letters; of a repeated one the last.

        They are read when they are asked for: of a refusal, and of a body that was cut. What came
        of the body in the same pieces is kept as long.
        """
        fields = _Fields()
        for part in self._head:
            with suppress(httptools.HttpParserError):  # of what follows this answer
                fields.parser.feed_data(part)
        del fields.parser  # which holds it
        return fields.named

    @property
    def is_success(self) -> bool:
        """Tell whether the server did what it was asked."""
        return OK <= self.status < _REDIRECT

    async def read(self) -> bytes:
        """Return the whole body, however long it is."""
        self._is_whole = True
        if not self.is_complete:
            self._connection.resume()
        while not self.is_complete:
            await self._more()
        return self._take()

    async def read_some(self, *, within: float = math.inf) -> bytes:
        """Return what there is of the body, waiting for some; empty at its end.

        Raises SilentError when nothing comes *within* so many seconds.
        """
        while not self._chunks and not self.is_complete:
            await self._more(within)
        return self._take()

    def close(self) -> None:
        """Give up what has not come yet, and with it the connection."""
        if not self.is_complete:
            self._connection.abort()

    def feed(self, data: bytes) -> None:
        """Take a part of the body."""
        self._chunks.append(data)
        self._size += len(data)
        if self._is_whole:
            return
        if self._size > _BUFFER:
            self._connection.pause()
        if self._waiter is not None:
            self._wake(self._waiter)

    def end(self) -> None:
        """Take the end of the body."""
        self.is_complete = True
        if self._waiter is not None:
            self._wake(self._waiter)

    def cut(self, error: OSError | None) -> None:
        """Take that the connection ended, by *error* or as it should.

        The latter is also how a body ends whose length nobody said.
        """
        is_framed = not _FRAMING.isdisjoint(self.headers)
        self._error = error or (LostError(CLOSED) if is_framed else None)
        self.end()

    async def _more(self, within: float = math.inf) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        # A timer costs a third of a cancel scope, and a watch waits once for each event.
        timer = None if within == math.inf else loop.call_later(within, self._give_up)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _give_up(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(SilentError())

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def _take(self) -> bytes:
        """Return what has come, and raise what ended it after that."""
        if not self._chunks or self._is_whole:
            self._check()
        chunks, self._chunks, self._size = self._chunks, [], 0
        if not self.is_complete:
            self._connection.resume()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _check(self) -> None:
        if self._error is not None:
            raise LostError(cause(self._error)) from self._error


class _Fields:
    """Be the headers of the first answer that does not only announce another."""

    def __init__(self) -> None:
        self.named: dict[str, str] = {}
        self.parser = httptools.HttpResponseParser(self)
        self._is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        if not self._is_complete:
            self.named[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Take that these were all, or that they were of an announcement."""
        if self.parser.get_status_code() < OK:
            self.named.clear()
        else:
            self._is_complete = True


def cause(error: Exception) -> str:
    """Return what *error* says, or what it is when it says nothing."""
    return str(error) or type(error).__name__
