# SPDX-License-Identifier: Apache-2.0
"""A watch's body as complete lines: cheap per line, bounded per line, honest about its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.client.response import SilentError
from flexinfer.errors import ConfigurationError, DeadlineError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flexinfer.client.response import Response

# Above what etcd stores by default (1.5 MiB), even if every byte of it is escaped as \u00XX.
MAX_LINE = 16 * 1024 * 1024
# Enough to hold the metadata that names the object.
_HEAD = 64 * 1024


@dataclass(frozen=True, slots=True)
class OversizedLine:
    """Stand for a line above the cap, which was skipped.

    `size` is in bytes; `head` is its first 64 KiB, to tell which object it was.
    """

    size: int
    head: bytes


Line = bytes | OversizedLine


class LineSplitter:
    """Cut chunks into lines; a line above *max_line* bytes is dropped while it comes in."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        if max_line < 1:
            raise ConfigurationError("max_line must be at least 1 byte")
        self._max_line = max_line
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """Return the bytes of the line that is not complete yet."""
        return self._size

    def feed(self, chunk: bytes) -> list[Line]:
        """Return the lines that *chunk* completes, without line ends and without empty ones."""
        lines: list[Line] = []
        start = 0
        # For events of 3 KB a quarter of `split`, which goes byte by byte; even at 400 bytes.
        while (end := chunk.find(b"\n", start)) >= 0:
            piece = chunk[start:end]
            start = end + 1
            if self._size:
                self._keep(piece)
                lines.append(self._take())
            elif piece:
                lines.append(self._line(piece, len(piece)))
        self._keep(chunk[start:])
        return lines

    def _line(self, data: bytes, size: int) -> Line:
        return data if size <= self._max_line else OversizedLine(size, data[:_HEAD])

    def _keep(self, piece: bytes) -> None:
        if not piece:
            return
        before = self._size
        self._size += len(piece)
        if self._size <= self._max_line:
            self._parts.append(piece)
        elif before <= self._max_line:
            self._parts = [b"".join((*self._parts, piece))[:_HEAD]]

    def _take(self) -> Line:
        data, size = b"".join(self._parts), self._size
        self._parts, self._size = [], 0
        return self._line(data, size)


class LineStream:
    """Iterate over the lines of one answer, each of them once.

    Ends when the server ends the answer after a complete line. Raises TransportError when the
    connection was lost or the answer ends inside a line: what came of that line is discarded, and
    the message says how much. Raises DeadlineError when nothing came for `idle_timeout` seconds,
    which may be changed at any time and counts from the next wait on.
    """

    def __init__(
        self,
        response: Response,
        request: str,
        *,
        idle_timeout: float,
        splitter: LineSplitter,
    ) -> None:
        self.idle_timeout = idle_timeout
        self._response = response
        self._request = request
        self._splitter = splitter
        self._ready: Iterator[Line] = iter(())

    def __aiter__(self) -> LineStream:
        return self

    async def __anext__(self) -> Line:
        for line in self._ready:
            return line
        self._ready = iter(await self.batch())
        for line in self._ready:
            return line
        raise StopAsyncIteration

    async def batch(self) -> Sequence[Line]:
        """Return all lines that are there, waiting for one; empty at the end.

        For readers who want to do something once per batch; not to be mixed with iterating.
        """
        while True:
            chunk = await self._read()
            if not chunk:
                return self._end()
            if lines := self._splitter.feed(chunk):
                return lines

    async def _read(self) -> bytes:
        try:
            return await self._response.read_some(within=self.idle_timeout)
        except SilentError:
            msg = f"{self._request}: silent for {self.idle_timeout:g} s"
            raise DeadlineError(msg) from None
        except OSError as error:
            msg = f"{self._request}: cut, {self._discarded()} ({error})"
            raise TransportError(msg) from error

    def _end(self) -> Sequence[Line]:
        if self._splitter.pending:
            raise TransportError(f"{self._request}: ended inside a line, {self._discarded()}")
        return ()

    def _discarded(self) -> str:
        return f"{self._splitter.pending} bytes of a line discarded"
