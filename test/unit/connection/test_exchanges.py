# SPDX-License-Identifier: Apache-2.0
"""Requests as HTTP wants them; answers come whole, in any pieces and to readers that are slow."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import pytest
from anyio.streams.tls import TLSStream

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.pool import Pool
from flexinfer.client.response import LostError
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.wire import server_context
from flexinfer.errors import NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import SocketStream

    from test.unit.connection.conftest import Ask, OpenPool, StartPeer

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
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
async def test_an_answer_comes_in_pieces_of_any_size(  # noqa: PLR0913, PLR0917 - three fixtures
    peer: StartPeer,
    pool: OpenPool,
    ask: Ask,
    answer: bytes,
    body: bytes,
    size: int,
    *,
    is_kept: bool,
) -> None:
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    async with peer(pieces, pieces) as server, pool(server) as connections:
        for _ in range(2):
            assert await (await ask(connections)).read() == body
        assert server.connections == (1 if is_kept else 2)


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_headers_are_those_of_the_answer_and_not_of_what_announced_it_or_follows(
    peer: StartPeer, pool: OpenPool, ask: Ask, size: int
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


async def test_a_body_of_unknown_length_ends_with_the_connection(
    peer: StartPeer, pool: OpenPool, ask: Ask
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
    async with peer([head, b"all ", b"of it", b""]) as server, pool(server) as connections:
        response = await ask(connections)
        assert response.headers == {"content-type": "text/plain"}
        assert await response.read() == b"all of it"


async def test_a_peer_waits_for_a_reader_that_is_slow(
    peer: StartPeer, pool: OpenPool, ask: Ask
) -> None:
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


async def test_a_transport_writes_what_http_wants(peer: StartPeer) -> None:
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
