# SPDX-License-Identifier: Apache-2.0
"""A connection is used again only while it is open, fresh, and without a byte too many."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import pytest

from flexinfer.client import pool as pools
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.connection import Connection
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.script import Answer, HalfClose
from flexinfer.envtest.scripted import ScriptedServer

if TYPE_CHECKING:
    from pathlib import Path

    from test.unit.connection.conftest import Ask, OpenPool, StartPeer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_an_answer_too_many_is_never_taken_for_the_next(
    peer: StartPeer, pool: OpenPool, ask: Ask
) -> None:
    async with peer([OK + OK.replace(b"ok", b"no")], [OK]) as server, pool(server) as connections:
        assert await (await ask(connections)).read() == b"ok"
        assert await (await ask(connections)).read() == b"ok"
        assert server.connections == 2


@pytest.mark.parametrize("size", [1, 16, len(OK) - 1])
async def test_the_rest_of_an_answer_too_many_is_never_taken_for_the_next(
    peer: StartPeer, pool: OpenPool, ask: Ask, size: int
) -> None:
    more = OK.replace(b"ok", b"no")
    answers = [OK + more[:size]], [more[size:]], [OK]
    async with peer(*answers) as server, pool(server) as connections:
        assert await (await ask(connections)).read() == b"ok"
        (first,) = connections._open
        assert not first.is_open
        server.answers = iter([[OK]])
        assert await (await ask(connections)).read() == b"ok"


async def test_what_comes_unasked_ends_an_idle_connection(
    peer: StartPeer, pool: OpenPool, ask: Ask
) -> None:
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
    peer: StartPeer, pool: OpenPool, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with peer(*[[OK]] * 5) as server, pool(server) as connections:
        for _ in range(2):
            await (await ask(connections)).read()
        assert server.connections == 1
        monkeypatch.setattr(pools, "_IDLE_SECONDS", 0.0)
        await (await ask(connections)).read()
        assert server.connections == 2


async def test_idle_connections_are_closed_by_the_clock(
    peer: StartPeer, pool: OpenPool, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_IDLE_SECONDS", 0.05)
    async with peer([OK], [OK]) as server, pool(server) as connections:
        await (await ask(connections)).read()
        (idle,) = connections._open
        await eventually(lambda: not idle.is_open)
        assert connections._idle == []
        await (await ask(connections)).read()
        assert server.connections == 2


async def test_a_call_that_is_given_up_takes_its_connection_with_it(
    peer: StartPeer, pool: OpenPool, ask: Ask
) -> None:
    begun = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]
    async with peer([], begun, [OK]) as server, pool(server) as connections:
        with anyio.move_on_after(0.05):
            await ask(connections)
        with anyio.move_on_after(0.05):
            await (await ask(connections)).read()
        assert await (await ask(connections)).read() == b"ok"
        assert server.connections == 3
