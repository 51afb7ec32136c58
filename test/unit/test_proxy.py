# SPDX-License-Identifier: Apache-2.0
"""Through which proxy an API server is reached, and that nothing else of the environment counts."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.client.auth import ServiceAccountCredentials, StaticCredentials
from flexinfer.client.proxy import Proxy, is_exempt, proxy_for
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.connect_proxy import ConnectProxy
from flexinfer.envtest.script import Answer, Lines
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import ConfigurationError, TransportError

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from flexinfer.client.connection import Connection

TARGET = "api.example.org:6443"
VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without proxies."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


def remote(
    server: ScriptedServer, *, proxy_url: str = "", anonymous: bool = False
) -> StaticCredentials:
    """Credentials for a server that only a proxy can reach."""
    return StaticCredentials(
        f"https://{TARGET}",
        token="" if anonymous else "t",
        context=client_context(server.ca_pem),
        server_name="localhost",
        proxy_url=proxy_url,
    )


# --- which ---


@pytest.mark.parametrize(
    ("server", "environ", "expected"),
    [
        ("https://a.b", {}, None),
        ("https://a.b", {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ("https://a.b", {"https_proxy": "http://p:3128"}, "http://p:3128"),
        ("https://a.b", {"HTTPS_PROXY": "", "https_proxy": "http://p:3128"}, "http://p:3128"),
        ("https://a.b", {"HTTPS_PROXY": "p:3128"}, "http://p:3128"),
        ("https://a.b", {"HTTPS_PROXY": "http://p"}, "http://p"),
        ("https://a.b", {"HTTPS_PROXY": "http://[fd00::1]:3128/"}, "http://[fd00::1]:3128"),
        ("https://a.b", {"HTTPS_PROXY": "http://[FD00:0::1]"}, "http://[fd00::1]"),
        ("https://a.b", {"HTTPS_PROXY": "http://[fe80::1%eth0]:1"}, "http://[fe80::1%eth0]:1"),
        ("https://a.b", {"HTTPS_PROXY": "http://10.0.0.1:80"}, "http://10.0.0.1"),
        ("https://a.b", {"HTTPS_PROXY": "http://P.Example:3128"}, "http://p.example:3128"),
        ("https://a.b", {"HTTPS_PROXY": "http://b\u00fccher.de:1"}, "http://xn--bcher-kva.de:1"),
        ("https://a.b", {"HTTPS_PROXY": "http://a_b:1/path?x#y"}, "http://a_b:1"),
        ("https://a.b", {"HTTP_PROXY": "http://p:3128"}, None),
        ("https://a.b", {"ALL_PROXY": "http://p:3128"}, "http://p:3128"),
        ("https://a.b", {"ALL_PROXY": "http://p", "HTTPS_PROXY": "http://q"}, "http://q"),
        ("http://a.b", {"HTTP_PROXY": "http://p:3128"}, "http://p:3128"),
        ("http://a.b", {"HTTPS_PROXY": "http://p:3128"}, None),
        ("https://a.b", {"HTTPS_PROXY": "http://p", "NO_PROXY": "b"}, None),
        ("https://a.b", {"HTTPS_PROXY": "http://p", "no_proxy": "b"}, None),
        ("https://localhost:1", {"HTTPS_PROXY": "http://p"}, None),
        ("https://127.1.2.3:1", {"HTTPS_PROXY": "http://p"}, None),
        ("https://[::1]:1", {"HTTPS_PROXY": "http://p"}, None),
    ],
)
def test_c69_the_environment_names_the_proxy(
    server: str, environ: dict[str, str], expected: str | None
) -> None:
    proxy = proxy_for(server, environ=environ)
    assert (None if proxy is None else str(proxy)) == expected


@pytest.mark.parametrize(
    ("host", "port", "no_proxy", "exempt"),
    [
        ("10.1.2.3", 443, "10.0.0.0/8,.svc,127.0.0.1", True),
        ("11.1.2.3", 443, "10.0.0.0/8,.svc,127.0.0.1", False),
        ("kubernetes.default.svc", 443, "10.0.0.0/8,.svc,127.0.0.1", True),
        ("svc", 443, ".svc", False),
        ("svc", 443, "svc", True),
        ("a.svc", 443, "svc", True),
        ("asvc", 443, "svc", False),
        ("a.svc", 443, "*.svc", True),
        ("svc", 443, "*.svc", False),
        ("A.SVC", 443, " a.Svc ", True),
        ("anything", 443, "*", True),
        ("anything", 443, "", False),
        ("anything", 443, ", ,", False),
        ("10.0.0.1", 443, "10.0.0.1", True),
        ("10.0.0.1", 443, "10.0.0.1:443", True),
        ("10.0.0.1", 6443, "10.0.0.1:443", False),
        ("a.b", 6443, "a.b:6443", True),
        ("a.b", 443, "a.b:6443", False),
        ("10.9.9.9", 443, "10.1.1.1/8", True),
        ("10.9.9.9", 443, "10.0.0.0/99", False),
        ("a.b", 443, "10.0.0.0/8", False),
        ("fd00::5", 443, "fd00::/8", True),
        ("10.0.0.1", 443, "fd00::/8", False),
        ("fd00::5", 443, "fd00::5", True),
        ("fd00::5", 6443, "[fd00::5]:6443", True),
        ("fd00::5", 443, "[fd00::5]", True),
        ("2.10.0.0.1", 443, "10.0.0.1", False),
        ("a.b", 443, ":443", False),
    ],
)
def test_c69_no_proxy_is_read_as_go_reads_it(
    host: str, port: int, no_proxy: str, *, exempt: bool
) -> None:
    assert is_exempt(host, port, no_proxy) is exempt


@given(st.ip_addresses(v=4), st.integers(0, 32))
def test_c69_a_range_covers_its_addresses_and_no_others(
    address: ipaddress.IPv4Address, bits: int
) -> None:
    network = ipaddress.ip_network(f"{address}/{bits}", strict=False)
    assert is_exempt(str(address), 443, f"x,{network}")
    assert is_exempt(str(network.broadcast_address), 443, str(network))
    after = int(network.broadcast_address) + 1
    if after < 2**32 and not ipaddress.ip_address(after).is_loopback:
        assert not is_exempt(str(ipaddress.ip_address(after)), 443, str(network))


@pytest.mark.parametrize(
    "value",
    [
        "https://p:3128",
        "socks5://p:1080",
        "http://",
        "http://p:x",
        "http://p:65536",
        "http://u:secret@[x",
        "http://u:secret@a b",
        "http://u:secret@a..b",
        f"http://u:secret@{'a' * 64}.b",
    ],
)
def test_c69_a_proxy_that_cannot_be_used_names_the_setting_and_no_password(value: str) -> None:
    with pytest.raises(ConfigurationError, match="HTTPS_PROXY must be an http:// proxy") as caught:
        proxy_for("https://a.b", environ={"HTTPS_PROXY": value})
    assert "secret" not in str(caught.value)
    assert proxy_for("https://a.b", environ={"HTTPS_PROXY": value, "NO_PROXY": "*"}) is None


@pytest.mark.parametrize(
    ("userinfo", "pair"),
    [
        ("me:s%40crt", b"me:s@crt"),
        ("m%C3%A9:s%3Acrt", "m\u00e9:s:crt".encode()),
        ("me", b"me:"),
        (":crt", b":crt"),
    ],
)
def test_c69_a_password_is_sent_and_never_shown(userinfo: str, pair: bytes) -> None:
    proxy = proxy_for("https://a.b", configured=f"http://{userinfo}@p:1")
    assert proxy is not None
    word = base64.b64encode(pair).decode()
    assert proxy.headers == {"Proxy-Authorization": f"Basic {word}"}
    assert str(proxy) == "http://p:1"
    assert not any(secret in f"{proxy} {proxy!r}" for secret in ("crt", word))


def test_c69_the_kubeconfig_beats_the_environment() -> None:
    environ = {"HTTPS_PROXY": "http://e", "NO_PROXY": "*"}
    for server in ("https://a.b", "https://127.0.0.1:1"):
        assert isinstance(proxy_for(server, configured="http://k", environ=environ), Proxy)
        assert str(proxy_for(server, configured="http://k", environ=environ)) == "http://k"


# --- on the wire ---


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "all_proxy"])
async def test_c69_requests_and_watches_go_through_the_proxy_of_the_environment(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch, variable: str
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body="here"))
        server.script("GET", "/w", Answer(body=[Lines(b"a")]))
        async with ConnectProxy.start({TARGET: server.url}) as proxy:
            environment.setenv(variable, proxy.url)
            async with Transport(remote(server)) as transport:
                assert await transport.request("GET", "/x") == b"here"
                assert await transport.request("GET", "/x") == b"here"
                async with transport.stream("/w", idle_timeout=5) as lines:
                    assert [line async for line in lines] == [b"a"]
            # One connection for requests, used again, and one for watches.
            assert [tunnel.target for tunnel in proxy.tunnels] == [TARGET, TARGET]
            assert {"authorization", "proxy-authorization"}.isdisjoint(proxy.tunnels[0].headers)
        assert {r.headers["authorization"] for r in server.requests} == {"Bearer t"}


async def test_c69_a_service_account_honours_the_environment_too(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("n")
    (tmp_path / "ca.crt").write_text(authority.ca_pem.read_text())
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body="here"))
        async with ConnectProxy.start({TARGET: server.url}) as proxy:
            environment.setenv("HTTPS_PROXY", proxy.url)
            credentials = ServiceAccountCredentials(tmp_path, f"https://{TARGET}")
            credentials.server_name = "localhost"
            async with Transport(credentials) as transport:
                assert await transport.request("GET", "/x") == b"here"
            assert len(proxy.tunnels) == 1


async def test_c69_no_proxy_leads_past_it(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch
) -> None:
    async with ScriptedServer.start(authority) as server, ConnectProxy.start({}) as proxy:
        server.script("GET", "/x", Answer(body="here"))
        environment.setenv("HTTPS_PROXY", proxy.url)
        environment.setenv("NO_PROXY", "10.0.0.0/8,.svc,127.0.0.1")
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            assert await transport.request("GET", "/x") == b"here"
        assert proxy.tunnels == []


async def test_c69_netrc_is_never_used(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hosts = ("127.0.0.1", "localhost", "api.example.org")
    lines = [f"machine {host} login mallory password secret\n" for host in hosts]
    for name in (".netrc", "netrc"):
        (tmp_path / name).write_text("".join(lines))
        (tmp_path / name).chmod(0o600)
    environment.setenv("HOME", str(tmp_path))
    environment.setenv("NETRC", str(tmp_path / "netrc"))
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body="here"))
        async with ConnectProxy.start({TARGET: server.url}) as proxy:
            environment.setenv("HTTPS_PROXY", proxy.url)
            for anonymous in (False, True):
                async with Transport(remote(server, anonymous=anonymous)) as transport:
                    await transport.request("GET", "/x")
            assert all("proxy-authorization" not in t.headers for t in proxy.tunnels)
        assert server.requests[0].headers["authorization"] == "Bearer t"
        assert "authorization" not in server.requests[1].headers


async def test_c69_a_proxy_url_with_a_password_tunnels_even_to_loopback(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body="here"))
        target = server.url.removeprefix("https://")
        async with ConnectProxy.start({target: server.url}) as proxy:
            environment.setenv("NO_PROXY", "*")
            credentials = StaticCredentials(
                server.url,
                token="t",
                context=client_context(server.ca_pem),
                proxy_url=proxy.url.replace("http://", "http://me:pw@"),
            )
            async with Transport(credentials) as transport:
                assert await transport.request("GET", "/x") == b"here"
            (tunnel,) = proxy.tunnels
            word = tunnel.headers["proxy-authorization"].removeprefix("Basic ")
            assert base64.b64decode(word) == b"me:pw"
        # The password of the proxy is for the proxy alone.
        assert "proxy-authorization" not in server.requests[0].headers


@pytest.mark.parametrize(
    "fields",
    ["Content-Length: 0\r\n", "Connection: close\r\n", "Transfer-Encoding: chunked\r\n"],
)
async def test_c69_a_tunnel_has_no_length_whatever_the_proxy_says(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch, fields: str
) -> None:
    del environment
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body="here"))
        async with ConnectProxy.start({TARGET: server.url}) as proxy:
            proxy.fields = fields
            async with Transport(remote(server, proxy_url=proxy.url)) as transport:
                assert await transport.request("GET", "/x") == b"here"


async def test_c69_a_proxy_that_says_more_than_its_answer_is_given_up_at_once(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch
) -> None:
    del environment
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    async with (
        ScriptedServer.start(authority) as server,
        ConnectProxy.start({TARGET: server.url}) as proxy,
    ):
        proxy.fields = "Content-Length: 0\r\n\r\nHTTP/1.1 200 Again\r\n"
        async with Transport(remote(server, proxy_url=proxy.url)) as transport:
            expected = rf"GET /x: cannot connect to https://{TARGET}: closed while TLS began"
            with pytest.raises(TransportError, match=expected):
                await transport.request("GET", "/x", timeout=5)
    assert complaints == []


async def test_a_dot_at_the_end_of_the_server_is_no_part_of_its_certificate(
    authority: CertificateAuthority,
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body="here"))
        async with ConnectProxy.start({"localhost.:6443": server.url}) as proxy:
            credentials = StaticCredentials(
                "https://localhost.:6443",
                context=client_context(server.ca_pem),
                proxy_url=proxy.url,
            )
            async with Transport(credentials) as transport:
                assert await transport.request("GET", "/x") == b"here"


@pytest.mark.parametrize("step", ["create_connection", "start_tls"])
async def test_c69_a_tunnel_that_the_loop_cannot_open_is_no_connection(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch, step: str
) -> None:
    async def closed(*_: object, sock: socket.socket | None = None, **__: object) -> None:
        if sock is not None:
            sock.close()
        raise RuntimeError("the handler is closed")

    async with (
        ScriptedServer.start(authority) as server,
        ConnectProxy.start({TARGET: server.url}) as proxy,
        Transport(remote(server, proxy_url=proxy.url)) as transport,
    ):
        environment.setattr(asyncio.get_running_loop(), step, closed)
        with pytest.raises(TransportError, match="the handler is closed"):
            await transport.request("GET", "/x")


@pytest.mark.parametrize("step", ["_Tunnel.send", "_upgrade"])
async def test_a_bug_of_ours_in_a_tunnel_is_not_taken_for_a_proxy_that_went_away(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch, step: str
) -> None:
    async def broken(tunnel: Connection, *_: object) -> None:
        tunnel.abort()
        raise RuntimeError("a bug")

    environment.setattr(f"flexinfer.client.pool.{step}", broken)
    async with (
        ScriptedServer.start(authority) as server,
        ConnectProxy.start({TARGET: server.url}) as proxy,
        Transport(remote(server, proxy_url=proxy.url)) as transport,
    ):
        with pytest.raises(RuntimeError, match="a bug"):
            await transport.request("GET", "/x")


@pytest.mark.parametrize("status", [403, 407, 503])
async def test_c69_a_proxy_that_refuses_is_named_without_its_password(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch, status: int
) -> None:
    del environment
    async with ScriptedServer.start(authority) as server, ConnectProxy.start({}) as proxy:
        proxy.answer = status
        named = proxy.url.replace("http://", "http://me:pw@")
        async with Transport(remote(server, proxy_url=named)) as transport:
            with pytest.raises(TransportError, match=f"{proxy.url} does not let .* {status}") as e:
                await transport.request("GET", "/x")
        assert "pw" not in str(e.value)
        assert server.connections == 0


async def test_c69_a_proxy_that_is_down_is_named(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch
) -> None:
    del environment
    async with ScriptedServer.start(authority) as server:
        async with ConnectProxy.start({}) as proxy:
            pass
        async with Transport(remote(server, proxy_url=proxy.url)) as transport:
            with pytest.raises(TransportError, match=f"cannot connect to the proxy {proxy.url}"):
                await transport.request("GET", "/x")


async def test_c69_the_certificate_is_verified_through_a_proxy_too(
    authority: CertificateAuthority, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del environment
    other = CertificateAuthority.create(tmp_path / "other")
    async with ScriptedServer.start(authority) as server:
        async with ConnectProxy.start({TARGET: server.url}) as proxy:
            credentials = StaticCredentials(
                f"https://{TARGET}",
                context=client_context(other.ca_pem.read_text()),
                server_name="localhost",
                proxy_url=proxy.url,
            )
            async with Transport(credentials) as transport:
                with pytest.raises(TransportError, match="certificate verify failed"):
                    await transport.request("GET", "/x")
        assert server.requests == []
