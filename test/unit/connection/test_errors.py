# SPDX-License-Identifier: Apache-2.0
"""What goes wrong has a name: nobody there, no answer in HTTP, one that is cut or has no end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.pool import ConnectError
from flexinfer.client.response import LostError
from flexinfer.client.transport import Transport
from flexinfer.errors import ConfigurationError, ServerError, TransportError

if TYPE_CHECKING:
    from test.unit.connection.conftest import Ask, OpenPool, StartPeer


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
async def test_a_body_that_is_cut_says_so_after_what_came(
    peer: StartPeer, pool: OpenPool, ask: Ask, answer: bytes
) -> None:
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
async def test_what_is_no_answer_is_a_lost_connection(
    peer: StartPeer, pool: OpenPool, ask: Ask, answer: list[bytes], says: str
) -> None:
    async with peer(answer) as server, pool(server) as connections:
        with pytest.raises(LostError, match=says):
            await ask(connections)


@pytest.mark.parametrize(
    "piece",
    [b"x" * 65_536, b"A: " + b"x" * 65_531 + b"\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 2048],
)
async def test_a_head_without_an_end_is_given_up(
    peer: StartPeer, pool: OpenPool, ask: Ask, piece: bytes
) -> None:
    start = piece if piece.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\nX: y\r\n"
    async with peer([start, *[piece] * 1024]) as server, pool(server) as connections:
        with pytest.raises(LostError, match="its head is longer than 262144 bytes"):
            await ask(connections)
        assert server.sent < 512 * len(piece)


async def test_nobody_there_is_a_connect_error_that_names_the_server(
    peer: StartPeer, pool: OpenPool, ask: Ask
) -> None:
    async with peer() as server:
        pass
    async with pool(server) as connections:
        with pytest.raises(ConnectError, match=f"cannot connect to {server.url}: .*refused|failed"):
            await ask(connections)


async def test_a_status_without_a_name_is_a_server_error(peer: StartPeer) -> None:
    odd = [b"HTTP/1.1 599 Odd\r\nContent-Length: 0\r\n\r\n"]
    async with peer(odd) as server, Transport(StaticCredentials(server.url)) as transport:
        with pytest.raises(ServerError, match="599"):
            await transport.request("GET", "/")


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/ä", "a"])
async def test_a_path_that_is_not_quoted_is_refused(path: str) -> None:
    async with Transport(StaticCredentials("http://127.0.0.1:1")) as transport:
        with pytest.raises(ConfigurationError, match="path must"):
            await transport.request("GET", path)


async def test_a_body_that_is_cut_is_a_transport_error(peer: StartPeer) -> None:
    cut = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b""]
    async with peer(cut) as server, Transport(StaticCredentials(server.url)) as transport:
        with pytest.raises(TransportError, match="GET /: answer cut: the server closed it"):
            await transport.request("GET", "/")
