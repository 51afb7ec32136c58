# SPDX-License-Identifier: Apache-2.0
"""A server that sends what a test says, byte by byte, and a pool of connections to it."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import pytest

from flexinfer.client.pool import Pool
from flexinfer.client.tls import client_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import SocketStream

    from flexinfer.client.response import Response

    StartPeer = Callable[..., AbstractAsyncContextManager["Peer"]]
    OpenPool = Callable[["Peer"], AbstractAsyncContextManager[Pool]]
    Ask = Callable[[Pool], Awaitable[Response]]

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
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


@pytest.fixture
def peer() -> StartPeer:
    """Give a function that starts a server with these answers."""

    @asynccontextmanager
    async def started(*answers: Sequence[bytes]) -> AsyncIterator[Peer]:
        made = Peer(answers)
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            made.url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
            async with anyio.create_task_group() as group:
                group.start_soon(listener.serve, made.serve)
                with anyio.fail_after(20):
                    yield made
                group.cancel_scope.cancel()

    return started


@pytest.fixture
def pool() -> OpenPool:
    """Give a function that opens a pool of connections to a server."""

    @asynccontextmanager
    async def opened(to: Peer) -> AsyncIterator[Pool]:
        made = Pool(to.url)
        try:
            yield made
        finally:
            await made.close()

    return opened


@pytest.fixture
def ask() -> Ask:
    """Give a function that sends a request, always the same."""

    async def sent(of: Pool) -> Response:
        return await of.send(REQUEST, context=CONTEXT)

    return sent
