# SPDX-License-Identifier: Apache-2.0
"""No answer: not in time, not to be had, cut, or not HTTP."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from flexinfer import errors
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.exchange import APPLY
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.script import Answer, Close, Drip, Hang, Reset
from flexinfer.envtest.scripted import ScriptedServer

if TYPE_CHECKING:
    from test.unit.transport.conftest import Serving, Waits

OK = Answer(body={"ok": True})
BODY = b'{"ok":true}'


async def test_a_server_that_never_answers_meets_the_deadline(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("PATCH", "/hang", Hang())
        server.script("GET", "/x", OK)
        async with anyio.create_task_group() as others:
            others.start_soon(transport.request, "GET", "/x")
            with pytest.raises(errors.DeadlineError, match=r"PATCH /hang: no answer within 0\.1 s"):
                await transport.request("PATCH", "/hang", body=b"{}", timeout=0.1)


@pytest.mark.parametrize("step", ["sock_connect", "create_connection"])
async def test_a_runtime_error_of_the_loop_while_it_connects_is_no_connection(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    # uvloop raises it for a socket that is closed at the wrong moment, which no server can time.
    async def closed(*given: object, sock: socket.socket | None = None, **_: object) -> None:
        for made in (*given, sock):
            if isinstance(made, socket.socket):
                made.close()
        raise RuntimeError("unable to perform operation on a closed socket")

    async with serving() as (_, transport):
        monkeypatch.setattr(asyncio.get_running_loop(), step, closed)
        with pytest.raises(errors.TransportError, match=r"GET /x: cannot connect .*closed socket"):
            await transport.request("GET", "/x")


@pytest.mark.parametrize("where", ["_addresses", "_open"])
async def test_a_bug_of_ours_while_it_connects_is_not_taken_for_an_outage(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async def broken(made: object, *_: object) -> None:
        if isinstance(made, socket.socket):
            made.close()
        raise RuntimeError("a bug")

    monkeypatch.setattr(f"flexinfer.client.pool.{where}", broken)
    async with serving() as (_, transport):
        with pytest.raises(RuntimeError, match="a bug"):
            await transport.request("GET", "/x")


async def test_a_server_that_never_ends_tls_meets_the_deadline(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.on_connect(Hang())
        with pytest.raises(errors.DeadlineError):
            await transport.request("GET", "/x", timeout=0.1)


async def test_the_deadline_covers_a_slow_body(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/x", Answer(body=[Drip(b"x" * 1000, pause=0.02)]))
        with pytest.raises(errors.DeadlineError):
            await transport.request("GET", "/x", timeout=0.2)


async def test_the_deadline_covers_waiting_for_a_connection(serving: Serving) -> None:
    async with serving(max_connections=1) as (server, transport):
        server.script("GET", "/hang", Hang())
        async with anyio.create_task_group() as others:
            others.start_soon(transport.request, "GET", "/hang")
            await server.received(1)
            with pytest.raises(errors.DeadlineError):
                await transport.request("GET", "/x", timeout=0.1)
            others.cancel_scope.cancel()
        server.script("GET", "/x", OK)
        assert await transport.request("GET", "/x") == BODY


async def test_a_deadline_of_the_caller_is_not_taken_for_ours(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/x", Hang())
        with pytest.raises(TimeoutError), anyio.fail_after(0.1):
            await transport.request("GET", "/x")


async def test_nobody_listening_is_a_transport_error(authority: CertificateAuthority) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{closed.getsockname()[1]}"
        credentials = StaticCredentials(url, context=client_context(authority.ca_pem.read_text()))
        async with Transport(credentials) as transport:
            with pytest.raises(errors.TransportError, match="cannot connect") as caught:
                await transport.request("GET", "/x")
    # A condition may hold this text: it must be the same each time.
    assert str(caught.value) == (
        f"GET /x: cannot connect to {url}: [Errno 111] Connect call failed "
        f"('127.0.0.1', {url.rpartition(':')[2]})"
    )


async def test_a_certificate_of_another_authority_is_refused(
    token: str, authority: CertificateAuthority, tmp_path: Any
) -> None:
    other = CertificateAuthority.create(tmp_path)
    async with ScriptedServer.start(authority) as server:
        credentials = StaticCredentials(
            server.url, token=token, context=client_context(other.ca_pem.read_text())
        )
        async with Transport(credentials) as transport:
            with pytest.raises(errors.TransportError, match="certificate verify failed") as caught:
                await transport.request("GET", "/x")
            assert " 0x" not in str(caught.value)
        assert server.requests == []


async def test_a_certificate_for_another_name_is_refused(authority: CertificateAuthority) -> None:
    async with ScriptedServer.start(authority) as server:
        credentials = StaticCredentials(
            server.url, context=client_context(server.ca_pem), server_name="example.org"
        )
        async with Transport(credentials) as transport:
            with pytest.raises(errors.TransportError, match="certificate"):
                await transport.request("GET", "/x")


async def test_the_name_of_the_certificate_can_be_given(authority: CertificateAuthority) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", OK)
        credentials = StaticCredentials(
            server.url, context=client_context(server.ca_pem), server_name="localhost"
        )
        async with Transport(credentials) as transport:
            assert await transport.request("GET", "/x") == BODY


@pytest.mark.parametrize("fault", [Reset(), Close()])
@pytest.mark.parametrize(
    ("method", "content_type"),
    [("GET", ""), ("PUT", "application/json"), ("DELETE", "application/json"), ("PATCH", APPLY)],
)
async def test_a_reused_connection_lost_before_the_answer_is_tried_again_at_once(
    serving: Serving, waits: Waits, method: str, content_type: str, fault: Reset | Close
) -> None:
    async with serving(sleep=waits.sleep) as (server, transport):
        server.script(method, "/x", OK, fault, OK)
        body = b"{}" if content_type else None
        for _ in range(2):
            answer = await transport.request(method, "/x", body=body, content_type=content_type)
            assert answer == BODY
        assert len(server.requests) == 3
        assert waits == []


@pytest.mark.parametrize("fault", [Reset(), Close()])
@pytest.mark.parametrize(
    ("method", "content_type"),
    [("POST", "application/json"), ("PATCH", "application/json-patch+json")],
)
async def test_what_cannot_be_repeated_is_sent_once(
    serving: Serving, method: str, content_type: str, fault: Reset | Close
) -> None:
    async with serving() as (server, transport):
        server.script(method, "/x", OK, fault, OK)
        await transport.request(method, "/x", body=b"{}", content_type=content_type)
        with pytest.raises(errors.TransportError, match="connection lost before an answer"):
            await transport.request(method, "/x", body=b"{}", content_type=content_type)
        assert len(server.requests) == 2


async def test_a_server_that_always_resets_is_given_up(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("PATCH", "/x", Reset())
        with pytest.raises(errors.TransportError, match="connection lost"):
            await transport.request("PATCH", "/x", body=b"{}", content_type=APPLY)
        assert len(server.requests) == 3


async def test_a_body_that_is_cut_is_a_transport_error(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/x", Answer(200, {"Content-Length": "50"}, "cut", then=Close()))
        with pytest.raises(errors.TransportError, match="answer cut"):
            await transport.request("GET", "/x")


async def test_rubbish_instead_of_http_is_a_transport_error(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("POST", "/x", Answer(200, {"Content-Length": "a\r\nb"}))
        with pytest.raises(errors.TransportError):
            await transport.request("POST", "/x", body=b"{}")
