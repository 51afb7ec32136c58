# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server with a few routes, and clients that send and read what a test says."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import anyio
import pytest

from flexinfer.httpserver import Connection, Connections, Limits
from flexinfer.routing import Answer, Route, Routes
from flexinfer.server import Address, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import SocketStream

    from flexinfer.routing import Request

    Serving = Callable[..., AbstractAsyncContextManager["Server"]]
    Closes = Callable[["Client"], Awaitable[None]]

BIG = b"x" * (16 * 1024 * 1024)  # more than the buffers of both ends hold


def echo(request: Request) -> Answer:
    return Answer(200, f"{request.path} {dict(request.query)}".encode(), headers={"X-A": "b"})


def broken(request: Request) -> Answer:
    raise ValueError(request.path)


ROUTES = [
    Route("/echo", echo),
    Route("/under/", echo),
    Route("/broken", broken),
    Route("/big", lambda _: Answer(200, BIG)),
]


class Client:
    """A connection that sends and receives what a test says."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self.received = b""

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            await self.stream.send(piece)

    async def rest(self) -> bytes:
        """Return everything until the server closes, however it does."""
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                self.received += await self.stream.receive()
        return self.received

    async def answer(self) -> Reply:
        """Return the next answer, which must have its length."""
        while (end := self.received.find(b"\r\n\r\n") + 4) < 4:
            self.received += await self.stream.receive()
        (size,) = re.findall(rb"Content-Length: (\d+)", self.received[:end])
        while len(self.received) < end + int(size):
            self.received += await self.stream.receive()
        reply = Reply.parse(self.received[: end + int(size)])
        self.received = self.received[end + int(size) :]
        return reply


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def parse(cls, text: bytes) -> Reply:
        head, _, body = text.partition(b"\r\n\r\n")
        line, *fields = head.decode().split("\r\n")
        headers = dict(field.split(": ", 1) for field in fields)
        assert line.startswith("HTTP/1.1 ")
        return cls(int(line.split()[1]), headers, body)


class Server:
    def __init__(self, port: int) -> None:
        self.port = port

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            yield Client(stream)

    async def exchange(self, *pieces: bytes) -> Reply:
        """Send a request that is the last one of its connection, and return its only answer."""
        async with self.client() as client:
            await client.send(*pieces)
            return Reply.parse(await client.rest())


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and says that it is full when it is told to."""

    def __init__(self, *, eof_error: Exception | None = None) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False
        self.is_full = False
        self.protocol = Connections(Routes(ROUTES)).make()
        self._eof_error = eof_error

    @classmethod
    @contextmanager
    def connected(cls, *, eof_error: Exception | None = None) -> Iterator[tuple[Connection, Wire]]:
        """Give a connection that reads what a test says, all of it in one piece."""
        wire = cls(eof_error=eof_error)
        wire.protocol.connection_made(wire)
        yield wire.protocol, wire
        wire.protocol.connection_lost(None)

    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", self.written)]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        if self.is_full:
            self.protocol.pause_writing()

    def write_eof(self) -> None:
        if self._eof_error is not None:
            raise self._eof_error

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Need none: it is full when a test says so."""

    def pause_reading(self) -> None:
        """Need not: a test reads for it."""


@pytest.fixture(scope="session")
def serving() -> Serving:
    """Give a function that starts a server with these limits."""

    @asynccontextmanager
    async def connected(
        limits: Limits | None = None, *, within: float = 20
    ) -> AsyncIterator[Server]:
        with anyio.fail_after(within):
            async with serve(
                Address("127.0.0.1", 0, "here"), ROUTES, limits=limits or Limits()
            ) as port:
                yield Server(port)

    return connected


@pytest.fixture
def closes() -> Closes:
    """Give a function that claims that the server ends a connection, without one more byte."""

    async def nothing_comes(client: Client) -> None:
        assert await client.rest() == b""

    return nothing_comes


@pytest.fixture
def new_client() -> type[Client]:
    """Give the class, to make a client of a stream that outlives the server."""
    return Client


@pytest.fixture
def new_reply() -> type[Reply]:
    """Give the class, to read an answer of what came."""
    return Reply


@pytest.fixture
def new_wire() -> type[Wire]:
    """Give the class, to connect to a server without a socket."""
    return Wire
