# SPDX-License-Identifier: Apache-2.0
"""The transport against a server that fails in every way, over verified TLS."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio
import pytest
import structlog

from flexinfer import errors
from flexinfer.client.auth import Authorization, StaticCredentials
from flexinfer.client.exchange import APPLY
from flexinfer.client.lines import OversizedLine
from flexinfer.client.retry import NEVER, RetryPolicy
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.script import (
    Answer,
    Bytes,
    Close,
    Drip,
    Hang,
    Lines,
    Reset,
    Until,
    status_answer,
)
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.envtest.wire import server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

OK = Answer(body={"ok": True})
BODY = b'{"ok":true}'
TOKEN = "the-secret-token"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path_factory.mktemp("ca"))


class Waits(list[float]):
    """Stand in for the clock between tries: note the wait and come back at once."""

    async def sleep(self, seconds: float) -> None:
        self.append(seconds)
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def serving(
    authority: CertificateAuthority, **options: Any
) -> AsyncIterator[tuple[ScriptedServer, Transport]]:
    async with ScriptedServer.start(authority) as server:
        credentials = StaticCredentials(
            server.url, token=TOKEN, context=client_context(server.ca_pem)
        )
        async with Transport(credentials, **options) as transport:
            yield server, transport


async def collect(transport: Transport, path: str = "/w", **options: Any) -> list[Any]:
    async with transport.stream(path, idle_timeout=5, **options) as lines:
        return [line async for line in lines]


# --- the plain way ---


async def test_a_successful_answer_is_its_body(authority: CertificateAuthority) -> None:
    async with serving(authority, user_agent="someone/1.0") as (server, transport):
        server.script("POST", "/x", Answer(201, body={"ok": True}))
        params = {"labelSelector": "a=b,c in (d e,f)", "continue": "x/+="}
        assert await transport.request("POST", "/x", params=params, body=b"[1]") == BODY
        (sent,) = server.requests
        assert (sent.query, sent.body) == (params, b"[1]")
        assert sent.headers["authorization"] == f"Bearer {TOKEN}"
        assert sent.headers["user-agent"] == "someone/1.0"
        assert sent.headers["accept-encoding"] == "identity"
        assert sent.headers["content-type"] == sent.headers["accept"] == "application/json"


async def test_the_content_type_is_the_one_asked_for(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("PATCH", "/x", OK)
        server.script("GET", "/x", OK)
        await transport.request("PATCH", "/x", body=b"{}", content_type=APPLY)
        await transport.request("GET", "/x", accept="text/plain")
        assert server.requests[0].headers["content-type"] == "application/apply-patch+yaml"
        assert "content-type" not in server.requests[1].headers
        assert server.requests[1].headers["accept"] == "text/plain"
        assert server.requests[1].headers["user-agent"].startswith("flexinfer/")


async def test_a_quoted_path_is_sent_as_it_is_and_a_prefix_of_the_server_is_kept(
    authority: CertificateAuthority,
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/k8s/c-1/a%2Fb%3A", OK)
        credentials = StaticCredentials(
            f"{server.url}/k8s/c-1/", context=client_context(server.ca_pem)
        )
        async with Transport(credentials) as transport:
            assert await transport.request("GET", "/a%2Fb%3A") == BODY
            assert transport.host == server.url.removeprefix("https://")
        assert "authorization" not in server.requests[0].headers


async def test_connections_are_used_again(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", OK, status_answer(404, "NotFound", "no"), OK)
        await transport.request("GET", "/x")
        with pytest.raises(errors.NotFoundError):
            await transport.request("GET", "/x")
        await transport.request("GET", "/x")
        assert server.connections == 1


async def test_environment_proxies_and_netrc_are_ignored(
    authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login mallory password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", OK)
        assert await transport.request("GET", "/x") == BODY
        assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}"


async def test_every_try_is_observed(authority: CertificateAuthority) -> None:
    seen: list[tuple[str, str]] = []

    def observe(method: str, code: str, seconds: float) -> None:
        assert seconds >= 0
        seen.append((method, code))

    waits = Waits()
    async with serving(authority, observe=observe, sleep=waits.sleep) as (server, transport):
        server.script("PUT", "/x", Answer(429), Answer(201))
        server.script("POST", "/x", Close())
        await transport.request("PUT", "/x", body=b"{}")
        with pytest.raises(errors.TransportError):
            await transport.request("POST", "/x", body=b"{}")
    assert seen == [("PUT", "429"), ("PUT", "201"), ("POST", "<error>")]


# --- deadlines ---


async def test_a_server_that_never_answers_meets_the_deadline(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, transport):
        server.script("PATCH", "/hang", Hang())
        server.script("GET", "/x", OK)
        async with anyio.create_task_group() as others:
            others.start_soon(transport.request, "GET", "/x")
            with pytest.raises(errors.DeadlineError, match=r"PATCH /hang: no answer within 0\.1 s"):
                await transport.request("PATCH", "/hang", body=b"{}", timeout=0.1)


async def test_a_server_that_never_ends_tls_meets_the_deadline(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, transport):
        server.on_connect(Hang())
        with pytest.raises(errors.DeadlineError):
            await transport.request("GET", "/x", timeout=0.1)


async def test_the_deadline_covers_a_slow_body(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", Answer(body=[Drip(b"x" * 1000, pause=0.02)]))
        with pytest.raises(errors.DeadlineError):
            await transport.request("GET", "/x", timeout=0.2)


async def test_the_deadline_covers_waiting_for_a_connection(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority, max_connections=1) as (server, transport):
        server.script("GET", "/hang", Hang())
        async with anyio.create_task_group() as others:
            others.start_soon(transport.request, "GET", "/hang")
            await server.received(1)
            with pytest.raises(errors.DeadlineError):
                await transport.request("GET", "/x", timeout=0.1)
            others.cancel_scope.cancel()
        server.script("GET", "/x", OK)
        assert await transport.request("GET", "/x") == BODY


async def test_a_deadline_of_the_caller_is_not_taken_for_ours(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", Hang())
        with pytest.raises(TimeoutError), anyio.fail_after(0.1):
            await transport.request("GET", "/x")


# --- no answer ---


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
    authority: CertificateAuthority, tmp_path: Any
) -> None:
    other = CertificateAuthority.create(tmp_path)
    async with ScriptedServer.start(authority) as server:
        credentials = StaticCredentials(
            server.url, token=TOKEN, context=client_context(other.ca_pem.read_text())
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
    authority: CertificateAuthority, method: str, content_type: str, fault: Reset | Close
) -> None:
    waits = Waits()
    async with serving(authority, sleep=waits.sleep) as (server, transport):
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
    authority: CertificateAuthority, method: str, content_type: str, fault: Reset | Close
) -> None:
    async with serving(authority) as (server, transport):
        server.script(method, "/x", OK, fault, OK)
        await transport.request(method, "/x", body=b"{}", content_type=content_type)
        with pytest.raises(errors.TransportError, match="connection lost before an answer"):
            await transport.request(method, "/x", body=b"{}", content_type=content_type)
        assert len(server.requests) == 2


async def test_a_server_that_always_resets_is_given_up(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("PATCH", "/x", Reset())
        with pytest.raises(errors.TransportError, match="connection lost"):
            await transport.request("PATCH", "/x", body=b"{}", content_type=APPLY)
        assert len(server.requests) == 3


async def test_a_body_that_is_cut_is_a_transport_error(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", Answer(200, {"Content-Length": "50"}, "cut", then=Close()))
        with pytest.raises(errors.TransportError, match="answer cut"):
            await transport.request("GET", "/x")


async def test_rubbish_instead_of_http_is_a_transport_error(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, transport):
        server.script("POST", "/x", Answer(200, {"Content-Length": "a\r\nb"}))
        with pytest.raises(errors.TransportError):
            await transport.request("POST", "/x", body=b"{}")


# --- the API server says no ---


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (400, "BadRequest", errors.BadRequestError),
        (401, "Unauthorized", errors.UnauthorizedError),
        (403, "Forbidden", errors.ForbiddenError),
        (404, "NotFound", errors.NotFoundError),
        (405, "MethodNotAllowed", errors.ApiError),
        (409, "AlreadyExists", errors.AlreadyExistsError),
        (409, "Conflict", errors.ConflictError),
        (410, "Expired", errors.ExpiredError),
        (422, "Invalid", errors.InvalidError),
        (429, "TooManyRequests", errors.ThrottledError),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
    ],
)
async def test_each_status_raises_its_error(
    authority: CertificateAuthority, status: int, reason: str, error: type[errors.ApiError]
) -> None:
    cause = {"reason": "FieldValueRequired", "field": "spec.x", "message": "Required value"}
    async with serving(authority, retry=NEVER) as (server, transport):
        server.script("GET", "/x", status_answer(status, reason, "the message", causes=[cause]))
        with pytest.raises(errors.ApiError) as caught:
            await transport.request("GET", "/x")
    assert type(caught.value) is error
    assert str(caught.value) == "GET /x: the message"
    assert (caught.value.status, caught.value.reason) == (status, reason)
    assert caught.value.causes == (errors.Cause("FieldValueRequired", "spec.x", "Required value"),)
    assert caught.value.said == "the message"
    assert str(caught.value) == "GET /x: the message"


async def test_an_html_page_of_a_proxy_is_not_repeated(authority: CertificateAuthority) -> None:
    page = b"<html><body>secret inner address</body></html>"
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", Answer(502, {"Content-Type": "text/html"}, page))
        with pytest.raises(errors.ServerError) as caught:
            await transport.request("GET", "/x")
    assert str(caught.value) == ("GET /x: 502 Bad Gateway (no Status in the answer, but text/html)")
    assert (caught.value.status, caught.value.reason) == (502, "")


async def test_of_plain_text_only_the_first_line_is_told(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", Answer(404, body="404 page not found\nmore"))
        server.script("GET", "/y", Answer(500, body="y" * 100_000))
        with pytest.raises(errors.NotFoundError, match=r"404 Not Found \(404 page not found\)$"):
            await transport.request("GET", "/x")
        with pytest.raises(errors.ServerError) as caught:
            await transport.request("GET", "/y")
    assert len(str(caught.value)) < 300


async def test_a_refusal_without_end_is_not_read_to_its_end(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, transport):
        endless = (Bytes(b"x" * 300_000), Until("never"))
        server.script("GET", "/x", Answer(500, body=endless))
        with pytest.raises(errors.ServerError):
            await transport.request("GET", "/x", timeout=5)


async def test_a_refusal_that_is_cut_is_still_that_refusal(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", Answer(403, {"Content-Length": "99"}, "{", then=Close()))
        with pytest.raises(errors.ForbiddenError):
            await transport.request("GET", "/x")


async def test_a_redirect_is_not_followed(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", Answer(302, {"Location": "/elsewhere"}))
        with pytest.raises(errors.ApiError) as caught:
            await transport.request("GET", "/x")
        assert caught.value.status == 302
        assert len(server.requests) == 1


async def test_an_unknown_status_and_an_empty_body_still_make_a_sentence(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", Answer(599, {"Content-Type": ""}))
        server.script("GET", "/y", Answer(500, body=""))
        with pytest.raises(errors.ServerError, match=r"^GET /x: 599 .*no content type.$"):
            await transport.request("GET", "/x")
        with pytest.raises(errors.ServerError, match=r"^GET /y: 500 Internal Server Error$"):
            await transport.request("GET", "/y")


# --- asked to slow down ---


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_in_seconds_is_waited_out(
    authority: CertificateAuthority, method: str, status: int
) -> None:
    waits = Waits()
    async with serving(authority, sleep=waits.sleep) as (server, transport):
        server.script(method, "/x", Answer(status, {"Retry-After": "3"}, "slow down"), OK)
        assert await transport.request(method, "/x") == BODY
    assert len(waits) == 1
    assert 3 <= waits[0] <= 3.75


async def test_retry_after_as_a_date_is_counted_by_the_clock_of_the_server(
    authority: CertificateAuthority,
) -> None:
    waits = Waits()
    headers = {
        "Date": "Fri, 01 Jan 2038 00:00:00 GMT",
        "Retry-After": "Fri, 01 Jan 2038 00:00:04 GMT",
    }
    async with serving(authority, sleep=waits.sleep) as (server, transport):
        server.script("GET", "/x", Answer(429, headers), OK)
        assert await transport.request("GET", "/x") == BODY
    assert 4 <= waits[0] <= 5


async def test_retry_after_in_the_status_counts_when_there_is_no_header(
    authority: CertificateAuthority,
) -> None:
    waits = Waits()
    status = {"kind": "Status", "reason": "TooManyRequests", "details": {"retryAfterSeconds": 2}}
    async with serving(authority, sleep=waits.sleep) as (server, transport):
        server.script("GET", "/x", Answer(429, {}, status), OK)
        assert await transport.request("GET", "/x") == BODY
    assert 2 <= waits[0] <= 2.5


@pytest.mark.parametrize("header", [{}, {"Retry-After": "0"}, {"Retry-After": "soon"}])
async def test_a_429_that_names_no_time_gets_our_own_backoff(
    authority: CertificateAuthority, header: dict[str, str]
) -> None:
    waits = Waits()
    async with serving(authority, sleep=waits.sleep) as (server, transport):
        server.script("POST", "/x", *[Answer(429, header)] * 4, OK)
        assert await transport.request("POST", "/x") == BODY
    assert len(waits) == 4
    for wait, ceiling in zip(waits, (0.5, 1, 2, 4), strict=True):
        assert ceiling / 2 <= wait <= ceiling


async def test_a_503_that_names_no_time_is_not_tried_again(
    authority: CertificateAuthority,
) -> None:
    waits = Waits()
    async with serving(authority, sleep=waits.sleep) as (server, transport):
        server.script("GET", "/x", Answer(503))
        with pytest.raises(errors.ServerError):
            await transport.request("GET", "/x")
    assert waits == []


async def test_tries_are_bounded(authority: CertificateAuthority) -> None:
    waits = Waits()
    policy = RetryPolicy(attempts=3)
    async with serving(authority, sleep=waits.sleep, retry=policy) as (server, transport):
        server.script("GET", "/x", Answer(429, {"Retry-After": "1"}))
        with pytest.raises(errors.ThrottledError) as caught:
            await transport.request("GET", "/x")
        assert len(server.requests) == 3
    assert caught.value.retry_after == 1


async def test_a_wait_beyond_the_deadline_is_left_to_the_caller(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", Answer(429, {"Retry-After": "31"}))
        with pytest.raises(errors.ThrottledError) as caught:
            await transport.request("GET", "/x")
        assert len(server.requests) == 1
    assert caught.value.retry_after == 31


async def test_a_real_wait_is_not_shorter_than_asked(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/x", Answer(429, {"Retry-After": "1"}), OK)
        started = anyio.current_time()
        await transport.request("GET", "/x")
        assert anyio.current_time() - started >= 1


# --- credentials ---


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


async def test_a_401_on_a_watch_reloads_too(authority: CertificateAuthority) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/w", Answer(401), Answer(body=[Lines(b"a")]))
        credentials = Renewing(server)
        async with Transport(credentials) as transport:
            assert await collect(transport) == [b"a"]
        assert credentials.reloads == 1


async def test_neither_token_nor_bodies_are_logged_or_in_errors(
    authority: CertificateAuthority,
) -> None:
    waits = Waits()
    with structlog.testing.capture_logs() as logs:
        async with serving(authority, sleep=waits.sleep) as (server, transport):
            refused = Answer(429, {"Content-Type": "application/json"}, b'"hidden answer"')
            server.script("POST", "/x", Answer(401, {}, b"hidden answer"), refused, Reset())
            with pytest.raises(errors.TransportError) as caught:
                await transport.request("POST", "/x", body=b'"hidden body"')
    told = f"{logs} {caught.value!r}"
    assert len(logs) == 2
    assert TOKEN not in told
    assert "hidden" not in told


# --- closing ---


async def test_a_transport_that_is_not_open_says_so(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
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


# --- watches ---


async def test_lines_come_complete_whatever_the_pieces(authority: CertificateAuthority) -> None:
    steps = (
        Lines({"a": 1}, b"b"),
        Bytes(b"c"),
        Bytes(b"c"),
        Drip(b"c\n\nd\ne", piece=2),
        Bytes(b"\n"),
    )
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Answer(body=steps), query={"watch": "1"})
        assert await collect(transport, params={"watch": "1"}) == [
            b'{"a":1}',
            b"b",
            b"ccc",
            b"d",
            b"e",
        ]


async def test_a_line_comes_before_the_stream_goes_on(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Until("more"), Lines(b"b")]))
        async with transport.stream("/w", idle_timeout=5) as lines:
            assert await anext(lines) == b"a"
            server.release("more")
            assert await anext(lines) == b"b"
            with pytest.raises(StopAsyncIteration):
                await anext(lines)


async def test_what_arrived_together_can_be_had_together(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a", b"b", b"c")]))
        async with transport.stream("/w", idle_timeout=5) as lines:
            assert await lines.batch() == [b"a", b"b", b"c"]
            assert await lines.batch() == ()


async def test_half_a_line_at_an_orderly_end_is_discarded_and_told(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Bytes(b'{"half')]))
        async with transport.stream("/w", idle_timeout=5) as lines:
            assert await anext(lines) == b"a"
            with pytest.raises(errors.TransportError, match="inside a line, 6 bytes"):
                await anext(lines)


@pytest.mark.parametrize("fault", [Close(), Reset()])
async def test_a_stream_that_is_cut_is_a_transport_error(
    authority: CertificateAuthority, fault: Close | Reset
) -> None:
    steps = (Lines(b"a"), Until("read"), Bytes(b"half"))
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Answer(body=steps, then=fault))
        async with transport.stream("/w", idle_timeout=5) as lines:
            assert await anext(lines) == b"a"
            server.release("read")
            with pytest.raises(errors.TransportError, match=r"cut, [04] bytes"):
                await anext(lines)


async def test_an_instant_close_is_an_empty_stream(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Answer(body=[]))
        assert await collect(transport) == []


async def test_a_watch_that_is_refused_raises_its_error(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script(
            "GET",
            "/w",
            status_answer(410, "Expired", "too old resource version"),
            Answer(502, {"Content-Type": "text/html"}, b"<html>"),
        )
        with pytest.raises(errors.ExpiredError):
            await collect(transport)
        with pytest.raises(errors.ServerError):
            await collect(transport)


async def test_opening_waits_as_a_429_asks(authority: CertificateAuthority) -> None:
    waits = Waits()
    async with serving(authority, sleep=waits.sleep) as (server, transport):
        server.script("GET", "/w", Answer(429, {"Retry-After": "3"}), Answer(body=[Lines(b"a")]))
        assert await collect(transport) == [b"a"]
    assert len(waits) == 1
    assert waits[0] >= 3


async def test_a_silent_stream_meets_its_idle_timeout(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Until("never")]))
        async with transport.stream("/w", idle_timeout=30) as lines:
            assert await anext(lines) == b"a"
            lines.idle_timeout = 0.1
            with pytest.raises(errors.DeadlineError, match=r"GET /w: silent for 0\.1 s"):
                await anext(lines)


async def test_a_stream_that_does_not_open_meets_its_deadline(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Hang())
        with pytest.raises(errors.DeadlineError, match=r"not open within 0\.1 s"):
            await collect(transport, open_timeout=0.1)


async def test_a_line_above_the_cap_is_skipped_and_reported(
    authority: CertificateAuthority,
) -> None:
    big = b'{"metadata":{"name":"big"}}' + b" " * 3_000_000
    steps = (Lines(b"a"), Bytes(big[:1000]), Bytes(big[1000:]), Lines(b"", b"b"))
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Answer(body=steps))
        got = await collect(transport, max_line=1_000_000)
    assert got == [b"a", OversizedLine(len(big), big[: 64 * 1024]), b"b"]


async def test_a_line_of_five_megabytes_is_delivered(authority: CertificateAuthority) -> None:
    big = b"x" * 5_000_000
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(big)]))
        assert await collect(transport) == [big]


async def test_watches_leave_the_requests_their_connections(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority, max_connections=1) as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Until("never")]))
        server.script("PATCH", "/x", OK)

        async def watch() -> None:
            async with transport.stream("/w", idle_timeout=60) as lines:
                async for _line in lines:
                    pass

        async with anyio.create_task_group() as watches:
            for _ in range(120):
                watches.start_soon(watch)
            await server.received(120, path="/w", within=30)
            body = await transport.request("PATCH", "/x", body=b"{}", content_type=APPLY)
            assert body == BODY
            watches.cancel_scope.cancel()


async def test_leaving_a_stream_early_closes_its_connection(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Until("never")]))
        for _ in range(2):
            async with transport.stream("/w", idle_timeout=5) as lines:
                assert await anext(lines) == b"a"
        assert server.connections == 2


async def test_connections_probe_a_silent_peer(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Until("never")]))
        async with transport.stream("/w", idle_timeout=5) as lines:
            await anext(lines)
            assert transport._watches is not None
            (connection,) = transport._watches._open
            sock = connection.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"max_connections": 0}, "max_connections"),
        ({"user_agent": "a\r\nX: y"}, "user_agent"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=names):
        Transport(StaticCredentials("https://127.0.0.1:1"), **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"attempts": 0},
        {"resets": -1},
        {"first_wait": 0.0},
        {"first_wait": 9.0},
        {"longest_wait": float("inf")},
    ],
)
def test_impossible_retry_policies_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigurationError):
        RetryPolicy(**settings)


async def test_impossible_arguments_of_a_call_are_refused(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (_, transport):
        with pytest.raises(errors.ConfigurationError, match="path"):
            await transport.request("GET", "x")
        for timeout in (0, -1, float("inf"), float("nan")):
            with pytest.raises(errors.ConfigurationError, match="timeout"):
                await transport.request("GET", "/x", timeout=timeout)
        with pytest.raises(errors.ConfigurationError, match="max_line"):
            await collect(transport, max_line=0)


def test_importing_the_transport_does_not_import_the_generated_client() -> None:
    code = (
        "import sys, flexinfer.client.transport, flexinfer.client.direct, flexinfer.client.auth,"
        " flexinfer.client.kubeconfig;"
        "sys.exit('kubernetes_asyncio' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


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
