# SPDX-License-Identifier: Apache-2.0
"""A transport to a scripted server, over verified TLS."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.scripted import ScriptedServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from flexinfer.envtest.certs import CertificateAuthority

    Serving = Callable[..., AbstractAsyncContextManager[tuple[ScriptedServer, Transport]]]
    Collect = Callable[..., Awaitable[list[Any]]]


class Waits(list[float]):
    """Stand in for the clock between tries: note the wait and come back at once."""

    async def sleep(self, seconds: float) -> None:
        self.append(seconds)
        await anyio.lowlevel.checkpoint()


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def token() -> str:
    return "the-secret-token"


@pytest.fixture
def serving(authority: CertificateAuthority, token: str) -> Serving:
    """Give a function that starts a server, and a transport to it with these options."""

    @asynccontextmanager
    async def connected(**options: Any) -> AsyncIterator[tuple[ScriptedServer, Transport]]:
        async with ScriptedServer.start(authority) as server:
            credentials = StaticCredentials(
                server.url, token=token, context=client_context(server.ca_pem)
            )
            async with Transport(credentials, **options) as transport:
                yield server, transport

    return connected


@pytest.fixture
def collect() -> Collect:
    """Give a function that reads a watch to its end."""

    async def lines_of(transport: Transport, path: str = "/w", **options: Any) -> list[Any]:
        async with transport.stream(path, idle_timeout=5, **options) as lines:
            return [line async for line in lines]

    return lines_of
