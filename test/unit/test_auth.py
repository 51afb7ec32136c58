# SPDX-License-Identifier: Apache-2.0
"""Credentials from files that change, vanish and break while they are used."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import anyio
import pytest
import structlog

from flexinfer.client.auth import (
    ServiceAccountCredentials,
    StaticCredentials,
    TokenFileCredentials,
    in_cluster,
)
from flexinfer.client.tls import TlsFiles, Trust, client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.script import Answer, Close, Lines, Until, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import ConfigurationError, TransportError, UnauthorizedError

if TYPE_CHECKING:
    from pathlib import Path

SERVER = "https://127.0.0.1:6443"


class Clock:
    """Be a monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(tmp_path: Path, authority: CertificateAuthority) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text(authority.ca_pem.read_text())
    (tmp_path / "namespace").write_text("flexinfer-system\n")
    return tmp_path


async def header(credentials: ServiceAccountCredentials | TokenFileCredentials) -> str:
    return (await credentials.authorization()).header


async def test_c66_a_service_account_is_read_and_stripped(folder: Path) -> None:
    credentials = ServiceAccountCredentials(folder, SERVER + "/")
    assert await header(credentials) == "Bearer first"
    assert credentials.namespace == "flexinfer-system"
    assert credentials.server == SERVER
    assert credentials.server_name is None


async def test_c66_the_token_is_read_again_after_a_minute_and_not_before(folder: Path) -> None:
    clock = Clock()
    credentials = ServiceAccountCredentials(folder, SERVER, clock=clock)
    (folder / "token").write_text("second")
    clock.now += 59
    assert await header(credentials) == "Bearer first"
    clock.now += 1
    assert await header(credentials) == "Bearer second"


async def test_c66_a_token_replaced_by_a_symlink_swap_is_found(folder: Path) -> None:
    clock = Clock()
    for name, token in (("a", "first"), ("b", "second")):
        (folder / name).mkdir()
        (folder / name / "token").write_text(token)
    (folder / "..data").symlink_to("a")
    (folder / "token").unlink()
    (folder / "token").symlink_to("..data/token")
    credentials = ServiceAccountCredentials(folder, SERVER, clock=clock)
    (folder / "..new").symlink_to("b")
    (folder / "..new").rename(folder / "..data")
    clock.now += 60
    assert await header(credentials) == "Bearer second"


@pytest.mark.parametrize("content", [None, "", " \n", "two words", "caf\u00e9", "a\nb"])
async def test_c66_the_old_token_stays_while_the_file_is_no_good(
    folder: Path, content: str | None
) -> None:
    clock = Clock()
    credentials = ServiceAccountCredentials(folder, SERVER, clock=clock)
    if content is None:
        (folder / "token").unlink()
    else:
        (folder / "token").write_text(content, encoding="utf-8")
    clock.now += 60
    with structlog.testing.capture_logs() as logs:
        assert await header(credentials) == "Bearer first"
    assert [entry["log_level"] for entry in logs] == ["warning"]
    (folder / "token").write_text("second")
    clock.now += 5
    assert await header(credentials) == "Bearer second"


async def test_c66_a_refused_token_is_read_again_at_once(folder: Path) -> None:
    credentials = ServiceAccountCredentials(folder, SERVER)
    rejected = await credentials.authorization()
    (folder / "token").write_text("second")
    await credentials.invalidate(rejected)
    assert await header(credentials) == "Bearer second"


async def test_c66_many_refusals_of_one_token_read_it_once(folder: Path) -> None:
    credentials = ServiceAccountCredentials(folder, SERVER)
    rejected = await credentials.authorization()
    (folder / "token").write_text("second")
    await credentials.invalidate(rejected)
    (folder / "token").write_text("third")
    await credentials.invalidate(rejected)
    assert await header(credentials) == "Bearer second"


async def test_refusals_are_counted_once_even_when_the_file_did_not_change(folder: Path) -> None:
    credentials = ServiceAccountCredentials(folder, SERVER)
    rejected = await credentials.authorization()
    await credentials.invalidate(rejected)
    (folder / "token").write_text("second")
    await credentials.invalidate(rejected)
    assert await header(credentials) == "Bearer first"
    await credentials.invalidate(await credentials.authorization())
    assert await header(credentials) == "Bearer second"


async def test_c68_a_new_ca_gives_a_new_context_and_the_same_ca_does_not(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    clock = Clock()
    credentials = ServiceAccountCredentials(folder, SERVER, clock=clock)
    before = credentials.ssl_context()
    clock.now += 60
    assert credentials.ssl_context() is before
    other = CertificateAuthority.create(tmp_path_factory.mktemp("other"))
    (folder / "ca.crt").write_text(other.ca_pem.read_text())
    clock.now += 60
    after = credentials.ssl_context()
    assert after is not before
    (folder / "ca.crt").write_text("broken")
    clock.now += 60
    assert credentials.ssl_context() is after


async def test_c66_a_running_transport_takes_up_a_rotated_token(
    folder: Path, authority: CertificateAuthority
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(), Answer(401), Answer())
        credentials = ServiceAccountCredentials(folder, server.url)
        async with Transport(credentials) as transport:
            await transport.request("GET", "/x")
            (folder / "token").write_text("second\n")
            await transport.request("GET", "/x")
        sent = [r.headers["authorization"] for r in server.requests]
        assert sent == ["Bearer first", "Bearer first", "Bearer second"]


async def test_c66_a_transport_with_a_revoked_token_says_so(
    folder: Path, authority: CertificateAuthority
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", status_answer(401, "Unauthorized", "Unauthorized"))
        credentials = ServiceAccountCredentials(folder, server.url)
        async with Transport(credentials) as transport:
            with pytest.raises(UnauthorizedError):
                await transport.request("GET", "/x")
        assert len(server.requests) == 2


async def test_c66_a_watch_is_opened_again_with_the_new_token(
    folder: Path, authority: CertificateAuthority
) -> None:
    clock = Clock()
    async with ScriptedServer.start(authority) as server:
        lines = Answer(body=[Lines(b"a")])
        server.script("GET", "/w", lines, lines, Answer(401), lines)
        credentials = ServiceAccountCredentials(folder, server.url, clock=clock)
        async with Transport(credentials) as transport:
            for token in ("second", "third", "third"):
                async with transport.stream("/w", idle_timeout=5) as stream:
                    assert [line async for line in stream] == [b"a"]
                (folder / "token").write_text(token)
                # After a minute by the clock, and by a refusal without it.
                clock.now += 60 if token == "second" else 0
        sent = [r.headers["authorization"] for r in server.requests]
        assert sent == ["Bearer first", "Bearer second", "Bearer second", "Bearer third"]


def bundle(*authorities: CertificateAuthority) -> str:
    return "".join(authority.ca_pem.read_text() for authority in authorities)


async def test_c68_new_connections_trust_a_rotated_ca_within_a_minute(
    folder: Path, authority: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    clock = Clock()
    other = CertificateAuthority.create(tmp_path_factory.mktemp("other"))
    last = Answer(body="here", then=Close())
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body="here"), Answer(body="here"), last)
        credentials = ServiceAccountCredentials(folder, server.url, clock=clock)
        async with Transport(credentials) as transport:
            await transport.request("GET", "/x")
            server.present(other)
            # A connection that is open stays good.
            await transport.request("GET", "/x")
            await transport.request("GET", "/x")
            assert server.connections == 1
            with pytest.raises(TransportError, match="certificate verify failed"):
                await transport.request("GET", "/x")
            (folder / "ca.crt").write_text(other.ca_pem.read_text())
            clock.now += 59
            with pytest.raises(TransportError, match="certificate verify failed"):
                await transport.request("GET", "/x")
            clock.now += 1
            assert await transport.request("GET", "/x") == b"here"


async def test_c68_with_both_cas_in_the_file_no_request_fails(
    folder: Path, authority: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    clock = Clock()
    other = CertificateAuthority.create(tmp_path_factory.mktemp("other"))
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body="here", then=Close()))
        credentials = ServiceAccountCredentials(folder, server.url, clock=clock)
        async with Transport(credentials) as transport:
            for shown, trusted in (
                (authority, (authority,)),
                (authority, (authority, other)),
                (other, (authority, other)),
                (other, (other,)),
            ):
                server.present(shown)
                (folder / "ca.crt").write_text(bundle(*trusted))
                clock.now += 60
                assert await transport.request("GET", "/x") == b"here"
        assert server.connections == 4


async def test_c68_a_watch_goes_on_under_a_new_ca(
    folder: Path, authority: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    clock = Clock()
    other = CertificateAuthority.create(tmp_path_factory.mktemp("other"))
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Until("rotated"), Lines(b"b")]))
        credentials = ServiceAccountCredentials(folder, server.url, clock=clock)
        async with (
            Transport(credentials) as transport,
            transport.stream("/w", idle_timeout=5) as lines,
        ):
            seen = [await anext(lines)]
            server.present(other)
            (folder / "ca.crt").write_text(other.ca_pem.read_text())
            clock.now += 60
            server.script("GET", "/x", Answer(body="here"))
            assert await transport.request("GET", "/x") == b"here"
            server.release("rotated")
            seen += [line async for line in lines]
        assert seen == [b"a", b"b"]


async def test_c68_client_certificates_that_are_files_are_read_again_together_with_their_keys(
    folder: Path, authority: CertificateAuthority
) -> None:
    clock = Clock()
    pairs = [authority.issue(["x"], common_name=name) for name in ("first", "second")]
    certificate, key = folder / "client.crt", folder / "client.key"
    trust = Trust(ca=folder / "ca.crt", certificate=certificate, key=key)
    for file, source in zip((certificate, key), pairs[0], strict=True):
        file.write_bytes(source.read_bytes())
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", *[Answer(body="here")] * 3, Answer(401), Answer(body="here"))
        credentials = StaticCredentials(server.url, context=TlsFiles(trust, clock=clock))
        async with Transport(credentials) as transport:
            await transport.request("GET", "/x")
            # A certificate whose key is still to come is not shown.
            certificate.write_bytes(pairs[1][0].read_bytes())
            clock.now += 60
            await transport.request("GET", "/x")
            key.write_bytes(pairs[1][1].read_bytes())
            clock.now += 5
            await transport.request("GET", "/x")
            for file, source in zip((certificate, key), pairs[0], strict=True):
                file.write_bytes(source.read_bytes())
            # Refused, they are read at once.
            await transport.request("GET", "/x")
        assert [r.client for r in server.requests] == [
            "first",
            "first",
            "second",
            "second",
            "first",
        ]


def test_a_certificate_without_a_key_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="a client certificate or a key alone"):
        Trust(certificate=folder / "client.crt")


@pytest.mark.parametrize("name", ["token", "ca.crt", "namespace"])
def test_a_missing_or_empty_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_text("")
    with pytest.raises(ConfigurationError, match=f"{name} is empty"):
        ServiceAccountCredentials(folder, SERVER)
    (folder / name).unlink()
    with pytest.raises(ConfigurationError, match=f"cannot read .*/{name} .No such file"):
        ServiceAccountCredentials(folder, SERVER)


def test_files_of_rubbish_are_named(folder: Path) -> None:
    (folder / "ca.crt").write_text("no certificate")
    with pytest.raises(ConfigurationError, match="holds no valid PEM certificate"):
        ServiceAccountCredentials(folder, SERVER)
    (folder / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----")
    with pytest.raises(ConfigurationError, match="holds no valid PEM certificate"):
        ServiceAccountCredentials(folder, SERVER)
    (folder / "ca.crt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not text"):
        ServiceAccountCredentials(folder, SERVER)


def test_the_token_is_never_in_the_error(folder: Path) -> None:
    (folder / "token").write_text("top secret")
    with pytest.raises(ConfigurationError) as caught:
        ServiceAccountCredentials(folder, SERVER)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("seconds", [0, -1, 61, float("nan")])
def test_the_token_cannot_be_kept_longer_than_a_minute(folder: Path, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="reload_after"):
        ServiceAccountCredentials(folder, SERVER, reload_after=seconds)


def test_in_a_pod_the_environment_names_the_server(folder: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert in_cluster(directory=folder, environ=environ).server == "https://10.0.0.1:443"
    environ["KUBERNETES_SERVICE_HOST"] = "fd00::1"
    assert in_cluster(directory=folder, environ=environ).server == "https://[fd00::1]:443"


def test_outside_of_a_pod_the_error_names_the_cure(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="give a kubeconfig"):
        in_cluster(directory=folder, environ={})


async def test_static_credentials_hold_what_they_were_given() -> None:
    context = client_context()
    credentials = StaticCredentials(SERVER, token=" abc\n", context=context)
    authorization = await credentials.authorization()
    await credentials.invalidate(authorization)
    assert authorization.header == "Bearer abc"
    assert await credentials.authorization() is authorization
    assert credentials.ssl_context() is context


async def test_without_a_token_there_is_no_header() -> None:
    assert (await StaticCredentials(SERVER).authorization()).header == ""


@pytest.mark.parametrize(
    "server",
    [
        "",
        "127.0.0.1:6443",
        "ftp://x",
        "https://",
        "https://a:b@c",
        "https://x?y=1",
        "https://a..b",
        f"https://{'a' * 64}.b",
        "https://b\u00fccher.example",
        "https://x/a b",
        "https://x:0",
        "https://x:99999",
        "https://x:port",
        "https://[::1",
        "https://x/a\r\nX-Y: z",
    ],
)
def test_a_server_that_is_no_url_is_refused(server: str) -> None:
    with pytest.raises(ConfigurationError, match="server must"):
        StaticCredentials(server)


@pytest.mark.parametrize("name", [".example.org", "a..b", "a" * 64])
def test_a_server_name_that_no_certificate_has_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="server_name must"):
        StaticCredentials("https://x", server_name=name)


def test_a_token_is_not_sent_in_clear() -> None:
    assert StaticCredentials("http://127.0.0.1:8001").server == "http://127.0.0.1:8001"
    with pytest.raises(ConfigurationError, match="https to send a token"):
        StaticCredentials("http://127.0.0.1:8001", token="t")


def test_certificates_are_judged_alike_on_every_python(authority: CertificateAuthority) -> None:
    context = client_context(authority.ca_pem.read_text())
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1


async def test_reading_files_leaves_the_loop_free(folder: Path) -> None:
    credentials = ServiceAccountCredentials(folder, SERVER)
    seen: list[str] = []

    async def ask() -> None:
        seen.append(await header(credentials))

    async with anyio.create_task_group() as askers:
        for _ in range(100):
            askers.start_soon(ask)
    assert seen == ["Bearer first"] * 100
