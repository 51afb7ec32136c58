# SPDX-License-Identifier: Apache-2.0
"""The small HTTP server, byte by byte: sloppy clients, slow, many, and those that never read."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

import anyio
import anyio.abc
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.envtest.eventually import eventually
from flexinfer.httpserver import Connection, Connections, Limits
from flexinfer.routing import Answer, Route, Routes
from flexinfer.server import Address, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from anyio.abc import SocketStream

    from flexinfer.routing import Request

BIG = b"x" * (16 * 1024 * 1024)  # more than the buffers of both ends hold
GET = b"GET /echo HTTP/1.1\r\nHost: here\r\n\r\n"
LAST = b"GET /echo HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"


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


@asynccontextmanager
async def serving(limits: Limits | None = None, *, within: float = 20) -> AsyncIterator[Server]:
    with anyio.fail_after(within):
        async with serve(
            Address("127.0.0.1", 0, "here"), ROUTES, limits=limits or Limits()
        ) as port:
            yield Server(port)


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


# --- what is answered ---


async def test_an_answer_says_what_it_is_and_how_long() -> None:
    async with serving() as server:
        reply = await server.exchange(LAST)
    assert (reply.status, reply.body) == (200, b"/echo {}")
    date = parsedate_to_datetime(reply.headers.pop("Date")).timestamp()
    assert abs(date - time.time()) < 20
    assert reply.headers == {
        "X-A": "b",
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": "8",
        "Connection": "close",
    }


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/echo?a&b=1&b=%32&c=x+y", 200, "/echo {'a': [''], 'b': ['1', '2'], 'c': ['x y']}"),
        ("/%65cho", 200, "/echo {}"),
        ("/echo?", 200, "/echo {}"),
        ("/echo#there", 200, "/echo {}"),
        ("http://here:80/echo?a=b", 200, "/echo {'a': ['b']}"),
        ("/under/one", 200, "/under/one {}"),
        ("/under/", 200, "/under/ {}"),
        ("/under/%C3%A9%FF", 200, "/under/\u00e9\ufffd {}"),
        ("/under", 404, "404: Not Found"),
        ("/under/one/two", 404, "404: Not Found"),
        ("/echo/", 404, "404: Not Found"),
        ("//echo", 404, "404: Not Found"),
        ("/", 404, "404: Not Found"),
        ("http://here", 404, "404: Not Found"),
    ],
)
async def test_paths_and_queries_are_decoded(target: str, status: int, body: str) -> None:
    async with serving() as server:
        reply = await server.exchange(LAST.replace(b"/echo", target.encode(), 1))
    assert (reply.status, reply.body.decode()) == (status, body)


async def test_head_is_get_without_the_body() -> None:
    async with serving() as server:
        got = await server.exchange(LAST)
        head = await server.exchange(LAST.replace(b"GET", b"HEAD"))
    assert (head.status, head.body) == (200, b"")
    assert head.headers | {"Date": ""} == got.headers | {"Date": ""}


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"OPTIONS"])
async def test_another_method_is_told_which_there_are(method: bytes) -> None:
    async with serving() as server:
        known = await server.exchange(LAST.replace(b"GET", method))
        unknown = await server.exchange(LAST.replace(b"GET /echo", method + b" /other"))
    assert (known.status, known.headers["Allow"]) == (405, "GET, HEAD")
    assert unknown.status == 404


async def test_a_handler_that_raises_is_a_500_and_one_line() -> None:
    async with serving() as server, server.client() as client:
        with structlog.testing.capture_logs() as lines:
            await client.send(GET.replace(b"echo", b"broken"))
            reply = await client.answer()
        assert (reply.status, reply.body) == (500, b"500: Internal Server Error")
        (line,) = lines
        assert (line["event"], line["path"]) == ("cannot answer a request", "/broken")
        assert isinstance(line["exc_info"], ValueError)
        await client.send(GET)
        assert (await client.answer()).status == 200


# --- how requests come ---


PIPELINED = (
    b"\r\n"
    b"GET /echo?n=1 HTTP/1.1\r\nHost: here\r\nX-Long: " + b"y" * 200 + b"\r\n\r\n"
    b"HEAD /echo HTTP/1.1\r\nHost: here\r\n\r\n"
    b"GET /echo?n=2 HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nhello"
    b"GET /broken HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\nno"
    b"GET /echo?n=3 HTTP/1.1\r\nhost: here\r\nCONNECTION: close\r\n\r\n"
    b"GET /echo?n=4 HTTP/1.1\r\nHost: here\r\n\r\n"
)


def pieces_of(text: bytes, cuts: Sequence[int]) -> list[bytes]:
    ends = [*sorted(cuts), len(text)]
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False) if a < b]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, len(PIPELINED)), max_size=12))
def test_any_split_of_the_bytes_gives_the_same_answers_in_order(cuts: list[int]) -> None:
    async def told() -> bytes:
        async with serving() as server, server.client() as client:
            # Else the system would put the pieces together again.
            client.stream.extra(anyio.abc.SocketAttribute.raw_socket).setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )
            with suppress(anyio.BrokenResourceError):  # the last answer may come before all is sent
                for piece in pieces_of(PIPELINED, cuts):
                    await client.send(piece)
                    await anyio.lowlevel.checkpoint()
            return re.sub(rb"Date: [^\r]*", b"", await client.rest())

    with structlog.testing.capture_logs():
        text = anyio.run(told)
    statuses = re.findall(rb"HTTP/1.1 (\d+)", text)
    assert statuses == [b"200", b"200", b"200", b"500", b"405", b"200"]
    assert re.findall(rb"'n': \['(\d)'\]", text) == [b"1", b"2", b"3"]
    assert text.count(b"Connection: close") == 1


async def test_every_byte_may_come_alone() -> None:
    async with serving() as server:
        reply = await server.exchange(*(bytes([byte]) for byte in LAST))
    assert reply.status == 200


@pytest.mark.parametrize(
    ("request_text", "stays"),
    [
        (b"GET /echo HTTP/1.1\r\nHost: here\r\n\r\n", True),
        (b"GET /echo HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n", False),
        (b"GET /echo HTTP/1.0\r\n\r\n", False),
        (b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
        (b"GET /echo HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", False),
    ],
)
async def test_the_connection_stays_when_both_sides_mean_to(
    request_text: bytes, *, stays: bool
) -> None:
    async with serving() as server, server.client() as client:
        await client.send(request_text)
        reply = await client.answer()
        assert (reply.status, reply.headers["Connection"]) == (
            200,
            "keep-alive" if stays else "close",
        )
        if stays:
            await client.send(request_text)
            assert (await client.answer()).status == 200
        else:
            assert await client.rest() == b""


async def test_a_client_that_sends_no_more_still_gets_its_answer() -> None:
    async with serving() as server, server.client() as client:
        await client.send(GET)
        await client.stream.send_eof()
        assert Reply.parse(await client.rest()).status == 200


@pytest.mark.parametrize(
    "text",
    [
        b"rubbish\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # how TLS begins
        b"GET /echo HTTP/1.1\r\n\r\n",  # no host
        b"GET /echo HTTP/1.1\r\nHost: here\r\nContent-Length: x\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost here\r\n\r\n",
        b"GET /echo FTP/1.1\r\nHost: here\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_a_400_and_the_end(text: bytes) -> None:
    async with serving() as server:
        reply = await server.exchange(text)
    assert (reply.status, reply.headers["Connection"]) == (400, "close")


async def test_what_is_good_before_it_is_answered_first() -> None:
    async with serving() as server, server.client() as client:
        await client.send(GET + b"rubbish\r\n\r\n" + GET)
        assert re.findall(rb"HTTP/1.1 (\d+)", await client.rest()) == [b"200", b"400"]


@pytest.mark.parametrize("size", [1000, 20_000])
@pytest.mark.parametrize(
    "begin",
    [
        b"GET /echo HTTP/1.1\r\nHost: here\r\nX: ",
        b"GET /echo?",
        b"GET /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 99999\r\n\r\n",
        b"\r\n",
    ],
)
async def test_too_much_before_an_answer_is_a_431_and_the_end(begin: bytes, size: int) -> None:
    filler = b"\r\n" if begin == b"\r\n" else b"zz"
    pieces = [filler * (size // 2)] * (40_000 // size)
    async with serving() as server, server.client() as client:
        with suppress(anyio.BrokenResourceError):
            await client.send(begin, *pieces)
        reply = Reply.parse(await client.rest())
    assert (reply.status, reply.headers["Connection"]) == (431, "close")


async def test_requests_that_come_together_are_each_measured_alone() -> None:
    with Wire.connected() as (connection, wire):
        connection.data_received(GET * 1000)
        connection.data_received(GET * 1000 + b"GET /echo?" + b"z" * 12_000)
        connection.data_received(b" HTTP/1.1\r\nHost: here\r\n\r\n")
        assert wire.statuses() == [200] * 2001
        connection.data_received(GET * 1000 + b"GET /echo?" + b"z" * 20_000)
        assert wire.statuses() == [200] * 3001 + [431]
        assert wire.written.count(b"Connection: close") == 1
        connection.data_received(GET)
        assert len(wire.statuses()) == 3002


@pytest.mark.parametrize("behind", [b"GET /echo?" + b"z" * 20_000, b"rubbish\r\n\r\n", GET])
async def test_behind_an_answer_that_waits_nothing_is_answered(behind: bytes) -> None:
    with Wire.connected() as (connection, wire):
        wire.is_full = True
        connection.data_received(GET + behind)
        assert wire.statuses() == [200]


@pytest.mark.parametrize("error", [OSError(107, "not connected"), RuntimeError("handler closed")])
async def test_a_client_that_is_gone_before_the_end_is_told_is_cut(error: Exception) -> None:
    with Wire.connected(eof_error=error) as (connection, wire):
        connection.data_received(LAST)
        assert wire.is_aborted


async def test_a_head_of_a_few_kilobytes_is_fine() -> None:
    async with serving() as server:
        cookie = b"Cookie: " + b"c" * 12_000 + b"\r\n\r\n"
        assert (await server.exchange(LAST.removesuffix(b"\r\n") + cookie)).status == 200


# --- slow clients, and many ---


async def closes(client: Client) -> None:
    """Claim that the server ends the connection, without one more byte."""
    assert await client.rest() == b""


async def refuses(client: Client) -> None:
    """Claim that the server is not there any more for what is sent."""
    try:
        await client.send(GET)
    except anyio.BrokenResourceError:
        return
    raise AssertionError("sent")


@pytest.mark.parametrize("begin", [b"", b"GET /echo HTTP/1.1\r\nHost:", GET.removesuffix(b"\r\n")])
async def test_a_request_that_does_not_come_whole_is_cut(begin: bytes) -> None:
    async with serving(Limits(request=0.2)) as server, server.client() as client:
        await client.send(begin)
        await closes(client)


async def test_a_byte_now_and_then_wins_no_time() -> None:
    async with serving(Limits(request=0.3)) as server, server.client() as client:

        async def drip() -> None:
            with suppress(anyio.BrokenResourceError):
                for byte in GET.replace(b"here", b"h" * 10_000):
                    await client.send(bytes([byte]))
                    await anyio.sleep(0.02)

        async with anyio.create_task_group() as group:
            group.start_soon(drip)
            await closes(client)
            group.cancel_scope.cancel()


async def test_an_idle_connection_is_cut() -> None:
    async with serving(Limits(idle=0.2)) as server, server.client() as client:
        await client.send(GET)
        assert (await client.answer()).status == 200
        await closes(client)


async def test_the_time_of_a_request_begins_with_its_first_byte() -> None:
    async with serving(Limits(request=0.2)) as server, server.client() as client:
        await client.send(GET)
        await client.answer()
        await anyio.sleep(0.4)  # longer than a request may take
        await client.send(GET[:10])
        await client.send(GET[10:])
        assert (await client.answer()).status == 200
        await client.send(GET + GET[:10])
        assert (await client.answer()).status == 200
        await closes(client)


async def test_a_client_that_does_not_close_after_the_last_answer_is_cut() -> None:
    async with serving(Limits(linger=0.2)) as server, server.client() as client:
        await client.send(LAST)
        assert (await client.answer()).status == 200
        await closes(client)
        await eventually(partial(refuses, client), within=10)


async def test_a_client_that_never_reads_is_cut_and_holds_one_answer_at_most() -> None:
    async with serving(Limits(send=0.3)) as server, server.client() as client:
        await client.send(GET.replace(b"echo", b"big") * 20)
        await eventually(partial(refuses, client), within=10)
        assert len(await client.rest()) < 2 * len(BIG)


async def test_a_slow_reader_gets_all_of_a_large_answer_and_may_go_on() -> None:
    async with serving() as server, server.client() as client:
        await client.send(GET.replace(b"echo", b"big"))
        client.received += await client.stream.receive()
        await client.send(GET)
        assert (await client.answer()).body == BIG
        assert (await client.answer()).body == b"/echo {}"


async def test_what_is_sent_ahead_of_an_answer_that_waits_is_left_and_the_connection_closed() -> (
    None
):
    async with serving() as server, server.client() as client:
        await client.send(GET.replace(b"echo", b"big") + GET * 5)
        assert (await client.answer()).body == BIG
        await closes(client)


async def test_one_connection_too_many_takes_the_place_of_an_idle_one() -> None:
    limits = Limits(connections=2)
    with structlog.testing.capture_logs() as lines:
        async with serving(limits) as server, server.client() as asking, server.client() as idle:
            await idle.send(GET)
            await idle.answer()
            await asking.send(GET[:10])
            # So that its first bytes are read before the next connection comes.
            await eventually(partial(answers, server))
            await closes(idle)
            await asking.send(GET[10:])
            assert (await asking.answer()).status == 200
    assert [(line["event"], line["limit"]) for line in lines] == [
        ("too many connections: one is cut", 2)
    ]


async def answers(server: Server) -> None:
    assert (await server.exchange(LAST)).status == 200


async def test_when_all_are_asking_the_newest_is_cut_and_places_come_free() -> None:
    async with serving(Limits(connections=2, request=1)) as server:
        async with server.client() as one, server.client() as two:
            for client in (one, two):
                await client.send(GET + GET[:10])
                await client.answer()
            async with server.client() as three:
                await closes(three)
            await one.send(GET[10:])
            assert (await one.answer()).status == 200
        await eventually(partial(answers, server))


async def test_many_connections_are_answered_at_a_time() -> None:
    async with serving() as server, anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(answers, server)


async def test_a_connection_that_has_ended_is_freed_without_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: WeakSet[Connection] = WeakSet()
    make = Connections.make

    def kept(self: Connections) -> Connection:
        connection = make(self)
        made.add(connection)
        return connection

    monkeypatch.setattr(Connections, "make", kept)
    async with serving(Limits(request=0.2)) as server:
        gc.disable()
        try:
            for begin in (b"", GET, GET[:10], LAST, b"rubbish\r\n\r\n"):
                async with server.client() as client:
                    await client.send(begin)
                    await eventually(lambda: len(made) == 1)
                await eventually(lambda: not made)
        finally:
            gc.enable()


# --- the stop ---


async def test_at_the_stop_idle_connections_end_and_what_is_sent_is_sent() -> None:
    async with anyio.create_task_group() as group:
        async with serving() as server:
            idle, reading, half = [
                Client(await anyio.connect_tcp("127.0.0.1", server.port)) for _ in range(3)
            ]
            await idle.send(GET)
            await idle.answer()
            await half.send(GET[:10])
            await reading.send(GET.replace(b"echo", b"big"))
            reading.received += await reading.stream.receive()
            got: list[Reply] = []

            async def read() -> None:
                got.append(await reading.answer())

            group.start_soon(read)
        await closes(idle)
        await closes(half)
    assert got[0].body == BIG
    await closes(reading)
    for client in (idle, reading, half):
        await client.stream.aclose()


async def test_the_stop_waits_a_second_at_most_for_a_client_that_does_not_read() -> None:
    async with serving() as server:
        client = Client(await anyio.connect_tcp("127.0.0.1", server.port))
        await client.send(GET.replace(b"echo", b"big"))
        client.received += await client.stream.receive()
        started = time.monotonic()
    assert time.monotonic() - started >= 0.9
    assert len(await client.rest()) < len(BIG)
    await client.stream.aclose()
