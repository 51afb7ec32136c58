# SPDX-License-Identifier: Apache-2.0
"""What is closed, under whom, and how soon."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio
import pytest

from flexinfer import errors
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.script import Answer, Hang, Lines, Until
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.envtest.wire import server_context

if TYPE_CHECKING:
    import ssl

    from flexinfer.envtest.certs import CertificateAuthority
    from test.unit.transport.conftest import Collect, Serving

OK = Answer(body={"ok": True})
BODY = b'{"ok":true}'


async def test_a_transport_that_is_not_open_says_so(serving: Serving, collect: Collect) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/x", OK)
    with pytest.raises(errors.TransportError, match="the transport is closed"):
        await transport.request("GET", "/x")
    with pytest.raises(errors.TransportError, match="the transport is closed"):
        await collect(transport)


async def test_closing_under_calls_gives_each_of_them_a_transport_error(
    authority: CertificateAuthority,
) -> None:
    failed: list[errors.TransportError] = []

    async def call(transport: Transport) -> None:
        with pytest.raises(errors.TransportError) as caught:
            await transport.request("GET", "/x")
        failed.append(caught.value)

    async with ScriptedServer.start(authority) as server, anyio.create_task_group() as calls:
        server.script("GET", "/x", Hang())
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials, max_connections=5) as transport:
            for _ in range(20):
                calls.start_soon(call, transport)
            await server.received(5)
    assert len(failed) == 20


async def test_leaving_a_stream_early_closes_its_connection(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Until("never")]))
        for _ in range(2):
            async with transport.stream("/w", idle_timeout=5) as lines:
                assert await anext(lines) == b"a"
        assert server.connections == 2


class DeadPeer:
    """Say how an answer begins, in TLS, and then neither read nor write nor end anything."""

    def __init__(self, authority: CertificateAuthority) -> None:
        self._context = server_context(authority)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._held: list[ssl.SSLSocket] = []
        self._thread = threading.Thread(target=self._serve)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for held in self._held:
            held.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                tls = self._context.wrap_socket(accepted, server_side=True)
                self._held.append(tls)
                tls.recv(65536)
                tls.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    def connections(self) -> int:
        """Count the sockets of this process that are connected to it."""
        found = 0
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as made:
                found += made.family == socket.AF_INET and made.getpeername()[1] == self.port
        return found


async def test_what_a_dead_peer_left_open_is_closed_at_once(
    authority: CertificateAuthority,
) -> None:
    with DeadPeer(authority) as peer:
        credentials = StaticCredentials(
            f"https://127.0.0.1:{peer.port}",
            context=client_context(authority.ca_pem.read_text()),
        )
        async with Transport(credentials) as transport:
            for _ in range(3):
                with pytest.raises(errors.DeadlineError):
                    await collect_until_silent(transport)
                with pytest.raises(errors.DeadlineError):
                    await transport.request("PATCH", "/x", body=b"{}", timeout=0.5)
            # asyncio would wait half a minute for the peer's end of TLS.
            await eventually(lambda: peer.connections() == 0, within=10)


async def collect_until_silent(transport: Transport) -> None:
    async with transport.stream("/w", idle_timeout=0.2) as lines:
        async for _ in lines:
            pass
