# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 as servers really speak it, byte by byte, over a plain socket."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio
import anyio.abc
import pytest
from anyio.streams.tls import TLSStream

from flexinfer.client import pool as pools
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.connection import Connection, LostError
from flexinfer.client.pool import ConnectError, Pool
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.connect_proxy import ConnectProxy
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.script import Answer, HalfClose
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.envtest.wire import server_context
from flexinfer.errors import ConfigurationError, NotFoundError, ServerError, TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from anyio.abc import SocketStream

    from flexinfer.client.connection import Response

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CONTEXT = client_context()


class Peer:
    """Be a server that answers each request with the next of its answers, in pieces.

    An empty piece closes the connection, and so does a request that there is no answer for.
    """

    def __init__(self, answers: Sequence[Sequence[bytes]]) -> None:
        self.answers = iter(answers)
        self.connections = 0
        self.sent = 0
        self.url = ""
        self.received: list[bytes] = []

    async def serve(self, stream: SocketStream) -> None:
        self.connections += 1
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            async with stream:
                while True:
                    request = b""
                    while not request.endswith(b"\r\n\r\n"):
                        request += await stream.receive()
                    self.received.append(request)
                    for piece in next(self.answers, (b"",)):
                        if not piece:
                            return
                        await stream.send(piece)
                        self.sent += len(piece)


@asynccontextmanager
async def peer(*answers: Sequence[bytes]) -> AsyncIterator[Peer]:
    made = Peer(answers)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        made.url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, made.serve)
            with anyio.fail_after(20):
                yield made
            group.cancel_scope.cancel()


@asynccontextmanager
async def pool(to: Peer) -> AsyncIterator[Pool]:
    made = Pool(to.url)
    try:
        yield made
    finally:
        await made.close()


async def ask(of: Pool) -> Response:
    return await of.send(REQUEST, context=CONTEXT)


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
    b"5;note=1\r\nhello\r\n1\r\n \r\nA\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n"
)


@pytest.mark.parametrize(
    ("answer", "body", "is_kept"),
    [
        (OK, b"ok", True),
        (CHUNKED, b"hello 0123456789", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\r\nA: b\r\n\r\n" + OK, b"ok", True),
        (OK.replace(b"\r\nContent", b"\r\nConnection: close\r\nContent"), b"ok", False),
        (OK.replace(b"1.1", b"1.0"), b"ok", False),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_an_answer_comes_in_pieces_of_any_size(
    answer: bytes, body: bytes, size: int, *, is_kept: bool
) -> None:
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    async with peer(pieces, pieces) as server, pool(server) as connections:
        for _ in range(2):
            assert await (await ask(connections)).read() == body
        assert server.connections == (1 if is_kept else 2)


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_headers_are_those_of_the_answer_and_not_of_what_announced_it_or_follows(
    size: int,
) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: early\r\nVia: 1\r\n\r\n"
    head = b"HTTP/1.1 429 Too Many\r\nRETRY-after: 1\r\nRetry-After: 7\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\nRetry-After: 9\r\n\r\n"
    answer = early + head + chunked
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    async with peer(pieces) as server, pool(server) as connections:
        response = await ask(connections)
        assert await response.read() == b"no"
        assert response.headers == {"retry-after": "7", "transfer-encoding": "chunked"}


async def test_a_body_of_unknown_length_ends_with_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
    async with peer([head, b"all ", b"of it", b""]) as server, pool(server) as connections:
        response = await ask(connections)
        assert response.headers == {"content-type": "text/plain"}
        assert await response.read() == b"all of it"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
async def test_a_body_that_is_cut_says_so_after_what_came(answer: bytes) -> None:
    async with peer([answer, b""], [answer, b""]) as server, pool(server) as connections:
        response = await ask(connections)
        assert await response.read_some() == b"half"
        with pytest.raises(LostError, match="the server closed it"):
            await response.read_some()
        with pytest.raises(LostError, match="the server closed it"):
            await (await ask(connections)).read()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ([b""], "the server closed it"),
        ([b"HTTP/1.1 200", b""], "the server closed it"),
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], "this is no answer in HTTP"),
        ([b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"], "no answer in HTTP"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"], "no answer in HTTP"),
    ],
)
async def test_what_is_no_answer_is_a_lost_connection(answer: list[bytes], says: str) -> None:
    async with peer(answer) as server, pool(server) as connections:
        with pytest.raises(LostError, match=says):
            await ask(connections)


@pytest.mark.parametrize(
    "piece",
    [b"x" * 65_536, b"A: " + b"x" * 65_531 + b"\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 2048],
)
async def test_a_head_without_an_end_is_given_up(piece: bytes) -> None:
    start = piece if piece.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\nX: y\r\n"
    async with peer([start, *[piece] * 1024]) as server, pool(server) as connections:
        with pytest.raises(LostError, match="its head is longer than 262144 bytes"):
            await ask(connections)
        assert server.sent < 512 * len(piece)


async def test_an_answer_too_many_is_never_taken_for_the_next() -> None:
    async with peer([OK + OK.replace(b"ok", b"no")], [OK]) as server, pool(server) as connections:
        assert await (await ask(connections)).read() == b"ok"
        assert await (await ask(connections)).read() == b"ok"
        assert server.connections == 2


@pytest.mark.parametrize("size", [1, 16, len(OK) - 1])
async def test_the_rest_of_an_answer_too_many_is_never_taken_for_the_next(size: int) -> None:
    more = OK.replace(b"ok", b"no")
    answers = [OK + more[:size]], [more[size:]], [OK]
    async with peer(*answers) as server, pool(server) as connections:
        assert await (await ask(connections)).read() == b"ok"
        (first,) = connections._open
        assert not first.is_open
        server.answers = iter([[OK]])
        assert await (await ask(connections)).read() == b"ok"


async def test_what_comes_unasked_ends_an_idle_connection() -> None:
    late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
    async with peer([OK, late], [OK]) as server, pool(server) as connections:
        assert await (await ask(connections)).read() == b"ok"
        (first,) = connections._open
        await eventually(lambda: not first.is_open)
        assert await (await ask(connections)).read() == b"ok"
        assert server.connections == 2


async def test_an_idle_connection_whose_peer_left_is_not_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    received, lost = Connection.eof_received, Connection.connection_lost

    def ended(self: Connection) -> None:
        received(self)
        asyncio.get_running_loop().call_soon(lambda: seen.append(self.is_open))

    def gone(self: Connection, error: Exception | None) -> None:
        lost(self, error)
        seen.append(self.is_open)

    # asyncio tells of the end of TLS before that of the connection, uvloop of the latter alone.
    monkeypatch.setattr(Connection, "eof_received", ended)
    monkeypatch.setattr(Connection, "connection_lost", gone)
    async with ScriptedServer.start(CertificateAuthority.create(tmp_path)) as server:
        server.script("GET", "/", Answer(body="ok", then=HalfClose()))
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            assert await transport.request("GET", "/") == b"ok"
            await eventually(lambda: bool(seen))
            assert not any(seen)


async def test_a_connection_is_used_again_only_under_its_context_and_while_it_is_fresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with peer(*[[OK]] * 5) as server, pool(server) as connections:
        for _ in range(2):
            await (await ask(connections)).read()
        assert server.connections == 1
        monkeypatch.setattr(pools, "_IDLE_SECONDS", 0.0)
        await (await ask(connections)).read()
        assert server.connections == 2


async def test_idle_connections_are_closed_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_IDLE_SECONDS", 0.05)
    async with peer([OK], [OK]) as server, pool(server) as connections:
        await (await ask(connections)).read()
        (idle,) = connections._open
        await eventually(lambda: not idle.is_open)
        assert connections._idle == []
        await (await ask(connections)).read()
        assert server.connections == 2


async def test_a_peer_waits_for_a_reader_that_is_slow() -> None:
    piece = b"x" * 65_536
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (512 * len(piece))
    async with peer([head, *[piece] * 512]) as server, pool(server) as connections:
        response = await ask(connections)
        got = len(await response.read_some())
        before = -1
        while server.sent != before:  # until the buffers of both sides are full
            before = server.sent
            await anyio.wait_all_tasks_blocked()
        assert server.sent < 256 * len(piece)
        while part := await response.read_some():
            got += len(part)
        assert got == 512 * len(piece)


@pytest.mark.parametrize("size", [400_000, 500_000, 600_000])
async def test_a_body_of_unknown_length_is_never_short_for_a_reader_that_is_slow(
    tmp_path: Path, size: int
) -> None:
    # More than a reader is given ahead, and less than what makes the peer wait.
    body = b"x" * size
    authority = CertificateAuthority.create(tmp_path)
    ours = server_context(authority)

    async def serve(stream: SocketStream) -> None:
        async with stream:
            secure = await TLSStream.wrap(stream, server_side=True, ssl_context=ours)
            await secure.receive()
            await secure.send(b"HTTP/1.1 200 OK\r\n\r\n" + body)
            with anyio.move_on_after(0.1):  # the peer has no reason to say goodbye as well
                await secure.unwrap()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        connections = Pool(f"https://127.0.0.1:{port}")
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, serve)
            context = client_context(authority.ca_pem.read_text())
            with anyio.fail_after(20):
                response = await connections.send(REQUEST, context=context)
                (connection,) = connections._open
                with anyio.move_on_after(0.5):  # asyncio keeps what is left, and stays open
                    await eventually(lambda: not connection.is_open)
                came = b""
                with suppress(LostError):  # uvloop drops it, so that it has to be asked for again
                    while part := await response.read_some():
                        came += part
                    assert came == body
            await connections.close()
            group.cancel_scope.cancel()


async def test_a_call_that_is_given_up_takes_its_connection_with_it() -> None:
    begun = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]
    async with peer([], begun, [OK]) as server, pool(server) as connections:
        with anyio.move_on_after(0.05):
            await ask(connections)
        with anyio.move_on_after(0.05):
            await (await ask(connections)).read()
        assert await (await ask(connections)).read() == b"ok"
        assert server.connections == 3


async def test_a_pool_that_is_closed_keeps_nothing_open() -> None:
    slow = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]
    async with peer([OK], slow) as server:
        async with pool(server) as connections:
            await (await ask(connections)).read()
            response = await ask(connections)
            assert await response.read_some() == b"half"
        assert all(made.fileno() < 0 for made in connections._sockets)
        with pytest.raises(LostError):
            await response.read_some()


async def test_a_pool_that_is_closed_opens_nothing_any_more() -> None:
    async with peer() as server:  # which never answers a TLS handshake
        connections = Pool(server.url.replace("http", "https"))

        async def connect() -> None:
            with pytest.raises(ConnectError, match="closed meanwhile"):
                await ask(connections)

        async with anyio.create_task_group() as group:
            group.start_soon(connect)
            await eventually(lambda: server.connections == 1)
            await connections.close()
            assert all(made.fileno() < 0 for made in connections._sockets)


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[WeakSet[Connection]]:
    """Keep what connections there are, while the garbage collector does not run."""
    made: WeakSet[Connection] = WeakSet()
    begin = Connection.__init__

    def kept(self: Connection, *, on_idle: Callable[[Connection], None]) -> None:
        begin(self, on_idle=on_idle)
        made.add(self)

    monkeypatch.setattr(Connection, "__init__", kept)
    gc.disable()
    yield made
    gc.enable()


@pytest.mark.parametrize(
    "answer",
    [
        [OK],
        [OK, b""],
        [OK + b"x"],
        [OK.replace(b"\r\nContent", b"\r\nConnection: close\r\nContent")],
        [b"HTTP/1.1 200 OK\r\n\r\nok", b""],
    ],
)
async def test_a_connection_that_has_ended_is_freed_without_the_garbage_collector(
    alive: WeakSet[Connection], answer: list[bytes]
) -> None:
    async with peer(answer) as server:
        async with pool(server) as connections:
            assert await (await ask(connections)).read() == b"ok"
            assert server.connections == 1
        await eventually(lambda: not alive)


@pytest.mark.parametrize(
    "answer", [[b""], [b"rubbish\r\n\r\n"], [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b""]]
)
async def test_a_connection_that_was_lost_is_freed_without_the_garbage_collector(
    alive: WeakSet[Connection], answer: list[bytes]
) -> None:
    async with peer(answer) as server, pool(server) as connections:
        with suppress(LostError):
            await (await ask(connections)).read()
        await eventually(lambda: not alive)


async def test_what_was_never_connected_is_freed_without_the_garbage_collector(
    alive: WeakSet[Connection],
) -> None:
    async with peer() as server:
        pass
    async with pool(server) as connections:
        with suppress(ConnectError):
            await ask(connections)
        await eventually(lambda: not alive)


async def test_a_tunnel_is_freed_without_the_garbage_collector(
    tmp_path: Path, alive: WeakSet[Connection]
) -> None:
    async with ScriptedServer.start(CertificateAuthority.create(tmp_path)) as server:
        server.script("GET", "/", Answer(body="ok"))
        target = "api.example.org:6443"
        async with ConnectProxy.start({target: server.url}) as proxy:
            credentials = StaticCredentials(
                f"https://{target}",
                context=client_context(server.ca_pem),
                server_name="localhost",
                proxy_url=proxy.url,
            )
            async with Transport(credentials) as transport:
                assert await transport.request("GET", "/") == b"ok"
            await eventually(lambda: not alive)


async def test_nobody_there_is_a_connect_error_that_names_the_server() -> None:
    async with peer() as server:
        pass
    async with pool(server) as connections:
        with pytest.raises(ConnectError, match=f"cannot connect to {server.url}: .*refused|failed"):
            await ask(connections)


# Through the transport


async def test_a_transport_writes_what_http_wants() -> None:
    missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
    async with peer([OK], [OK], [missing]) as server:
        async with Transport(StaticCredentials(server.url), user_agent="someone/1") as transport:
            await transport.request("GET", "/a", params={"q": "b c"})
            await transport.request("POST", "/b")
            with pytest.raises(NotFoundError, match="GET /c: 404 Not Found"):
                await transport.request("GET", "/c")
        fixed = f"Host: {server.url[7:]}\r\nUser-Agent: someone/1\r\nAccept-Encoding: identity\r\n"
        assert server.received[0].decode() == (
            f"GET /a?q=b%20c HTTP/1.1\r\n{fixed}Accept: application/json\r\n\r\n"
        )
        assert server.received[1].decode() == (
            f"POST /b HTTP/1.1\r\n{fixed}Accept: application/json\r\nContent-Length: 0\r\n\r\n"
        )


async def test_a_status_without_a_name_is_a_server_error() -> None:
    odd = [b"HTTP/1.1 599 Odd\r\nContent-Length: 0\r\n\r\n"]
    async with peer(odd) as server, Transport(StaticCredentials(server.url)) as transport:
        with pytest.raises(ServerError, match="599"):
            await transport.request("GET", "/")


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/ä", "a"])
async def test_a_path_that_is_not_quoted_is_refused(path: str) -> None:
    async with Transport(StaticCredentials("http://127.0.0.1:1")) as transport:
        with pytest.raises(ConfigurationError, match="path must"):
            await transport.request("GET", path)


async def test_a_body_that_is_cut_is_a_transport_error() -> None:
    cut = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b""]
    async with peer(cut) as server, Transport(StaticCredentials(server.url)) as transport:
        with pytest.raises(TransportError, match="GET /: answer cut: the server closed it"):
            await transport.request("GET", "/")


async def test_a_socket_is_closed_once_when_a_loop_gives_up_making_a_transport_of_it() -> None:
    # uvloop before 0.23 leaves it open for Python too, which closes whatever has its number then.
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as made:
        opening = loop.create_connection(asyncio.Protocol, sock=made)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await opening
        assert await eventually(lambda: made.fileno() < 0)
    server.close()
