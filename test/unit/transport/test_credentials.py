# SPDX-License-Identifier: Apache-2.0
"""Credentials that are refused are renewed, and told to nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
import structlog

from flexinfer import errors
from flexinfer.client.auth import Authorization
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer, Lines, Reset, Until, status_answer
from flexinfer.envtest.scripted import ScriptedServer

if TYPE_CHECKING:
    import ssl

    from flexinfer.envtest.certs import CertificateAuthority
    from test.unit.transport.conftest import Collect, Serving, Waits

OK = Answer(body={"ok": True})
BODY = b'{"ok":true}'


class Renewing:
    """Count reloads; each gives another token."""

    server_name = None
    proxy_url = ""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server.url
        self.reloads = 0
        self._context = client_context(server.ca_pem)
        self._current = Authorization("Bearer 0", 0)

    def ssl_context(self) -> ssl.SSLContext:
        return self._context

    async def authorization(self) -> Authorization:
        return self._current

    async def invalidate(self, rejected: Authorization) -> None:
        if rejected.generation == self._current.generation:
            self.reloads += 1
            self._current = Authorization(f"Bearer {self.reloads}", self.reloads)

    async def keep(self) -> None:
        return


async def test_a_401_reloads_the_credential_and_tries_once_more(
    authority: CertificateAuthority,
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("POST", "/x", Answer(401), OK)
        credentials = Renewing(server)
        async with Transport(credentials) as transport:
            assert await transport.request("POST", "/x", body=b"{}") == BODY
        assert [r.headers["authorization"] for r in server.requests] == ["Bearer 0", "Bearer 1"]


async def test_a_second_401_is_raised(authority: CertificateAuthority) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", status_answer(401, "Unauthorized", "Unauthorized"))
        async with Transport(Renewing(server)) as transport:
            with pytest.raises(errors.UnauthorizedError):
                await transport.request("GET", "/x")
        assert len(server.requests) == 2


async def test_many_401s_at_once_reload_the_credential_once(
    authority: CertificateAuthority,
) -> None:
    async with ScriptedServer.start(authority) as server:
        refused = Answer(401, body=[Until("all are here")])
        server.script("GET", "/x", *[refused] * 50, OK)
        credentials = Renewing(server)
        async with Transport(credentials) as transport, anyio.create_task_group() as calls:
            for _ in range(50):
                calls.start_soon(transport.request, "GET", "/x")
            await server.received(50)
            server.release("all are here")
        assert credentials.reloads == 1
        assert len(server.requests) == 100


async def test_a_401_on_a_watch_reloads_too(
    collect: Collect, authority: CertificateAuthority
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/w", Answer(401), Answer(body=[Lines(b"a")]))
        credentials = Renewing(server)
        async with Transport(credentials) as transport:
            assert await collect(transport) == [b"a"]
        assert credentials.reloads == 1


async def test_neither_token_nor_bodies_are_logged_or_in_errors(
    serving: Serving, waits: Waits, token: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(sleep=waits.sleep) as (server, transport):
            refused = Answer(429, {"Content-Type": "application/json"}, b'"hidden answer"')
            server.script("POST", "/x", Answer(401, {}, b"hidden answer"), refused, Reset())
            with pytest.raises(errors.TransportError) as caught:
                await transport.request("POST", "/x", body=b'"hidden body"')
    told = f"{logs} {caught.value!r}"
    assert len(logs) == 2
    assert token not in told
    assert "hidden" not in told
