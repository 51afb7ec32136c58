# SPDX-License-Identifier: Apache-2.0
"""What has ended is closed once, and freed without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio
import pytest

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.connection import Connection
from flexinfer.client.pool import ConnectError, Pool
from flexinfer.client.response import LostError
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.connect_proxy import ConnectProxy
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.script import Answer
from flexinfer.envtest.scripted import ScriptedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from test.unit.connection.conftest import Ask, OpenPool, StartPeer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_a_pool_that_is_closed_keeps_nothing_open(
    peer: StartPeer, pool: OpenPool, ask: Ask
) -> None:
    slow = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]
    async with peer([OK], slow) as server:
        async with pool(server) as connections:
            await (await ask(connections)).read()
            response = await ask(connections)
            assert await response.read_some() == b"half"
        assert all(made.fileno() < 0 for made in connections._sockets)
        with pytest.raises(LostError):
            await response.read_some()


async def test_a_pool_that_is_closed_opens_nothing_any_more(peer: StartPeer, ask: Ask) -> None:
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
    peer: StartPeer, pool: OpenPool, ask: Ask, alive: WeakSet[Connection], answer: list[bytes]
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
    peer: StartPeer, pool: OpenPool, ask: Ask, alive: WeakSet[Connection], answer: list[bytes]
) -> None:
    async with peer(answer) as server, pool(server) as connections:
        with suppress(LostError):
            await (await ask(connections)).read()
        await eventually(lambda: not alive)


async def test_what_was_never_connected_is_freed_without_the_garbage_collector(
    peer: StartPeer, pool: OpenPool, ask: Ask, alive: WeakSet[Connection]
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
