# SPDX-License-Identifier: Apache-2.0
"""Requests as they should go: what is sent, and which settings are refused."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from flexinfer import errors
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.exchange import APPLY
from flexinfer.client.retry import RetryPolicy
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer, Close, status_answer
from flexinfer.envtest.scripted import ScriptedServer

if TYPE_CHECKING:
    from flexinfer.envtest.certs import CertificateAuthority
    from test.unit.transport.conftest import Collect, Serving, Waits

OK = Answer(body={"ok": True})
BODY = b'{"ok":true}'


async def test_a_successful_answer_is_its_body(serving: Serving, token: str) -> None:
    async with serving(user_agent="someone/1.0") as (server, transport):
        server.script("POST", "/x", Answer(201, body={"ok": True}))
        params = {"labelSelector": "a=b,c in (d e,f)", "continue": "x/+="}
        assert await transport.request("POST", "/x", params=params, body=b"[1]") == BODY
        (sent,) = server.requests
        assert (sent.query, sent.body) == (params, b"[1]")
        assert sent.headers["authorization"] == f"Bearer {token}"
        assert sent.headers["user-agent"] == "someone/1.0"
        assert sent.headers["accept-encoding"] == "identity"
        assert sent.headers["content-type"] == sent.headers["accept"] == "application/json"


async def test_the_content_type_is_the_one_asked_for(serving: Serving) -> None:
    async with serving() as (server, transport):
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


async def test_connections_are_used_again(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/x", OK, status_answer(404, "NotFound", "no"), OK)
        await transport.request("GET", "/x")
        with pytest.raises(errors.NotFoundError):
            await transport.request("GET", "/x")
        await transport.request("GET", "/x")
        assert server.connections == 1


async def test_environment_proxies_and_netrc_are_ignored(
    serving: Serving, token: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login mallory password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    async with serving() as (server, transport):
        server.script("GET", "/x", OK)
        assert await transport.request("GET", "/x") == BODY
        assert server.requests[0].headers["authorization"] == f"Bearer {token}"


async def test_every_try_is_observed(serving: Serving, waits: Waits) -> None:
    seen: list[tuple[str, str]] = []

    def observe(method: str, code: str, seconds: float) -> None:
        assert seconds >= 0
        seen.append((method, code))

    async with serving(observe=observe, sleep=waits.sleep) as (server, transport):
        server.script("PUT", "/x", Answer(429), Answer(201))
        server.script("POST", "/x", Close())
        await transport.request("PUT", "/x", body=b"{}")
        with pytest.raises(errors.TransportError):
            await transport.request("POST", "/x", body=b"{}")
    assert seen == [("PUT", "429"), ("PUT", "201"), ("POST", "<error>")]


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
    serving: Serving, collect: Collect
) -> None:
    async with serving() as (_, transport):
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
