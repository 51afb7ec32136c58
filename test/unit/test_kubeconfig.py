# SPDX-License-Identifier: Apache-2.0
"""Kubeconfigs as people have them, against a server that checks who comes."""

from __future__ import annotations

import base64
import copy
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import yaml

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.kubeconfig import kubeconfig, namespace_of
from flexinfer.client.tls import TlsFiles
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.connect_proxy import ConnectProxy
from flexinfer.envtest.script import Answer
from flexinfer.envtest.scripted import Received, ScriptedServer
from flexinfer.errors import ConfigurationError, TransportError

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.client.auth import Credentials


def inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def config(server: str, authority: CertificateAuthority, user: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": server,
                    "certificate-authority-data": inline(authority.ca_pem),
                },
            }
        ],
        "users": [{"name": "u", "user": user}],
    }


def write(path: Path, content: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump(content))
    return str(path)


async def ask(server: ScriptedServer, credentials: Credentials) -> Received:
    server.script("GET", "/version", Answer(body="here"))
    async with Transport(credentials) as transport:
        assert await transport.request("GET", "/version") == b"here"
    return server.requests[-1]


async def test_a_token_is_sent(tmp_path: Path, authority: CertificateAuthority) -> None:
    async with ScriptedServer.start(authority) as server:
        path = write(tmp_path / "k", config(server.url, authority, {"token": "abc"}))
        received = await ask(server, await kubeconfig(path))
        assert received.headers["authorization"] == "Bearer abc"


async def test_a_client_certificate_is_shown_inline_or_as_files(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    certificate, key = authority.issue(["x"], common_name="admin", organization="system:masters")
    for name, blob in (("client.crt", certificate), ("client.key", key)):
        (tmp_path / name).write_bytes(blob.read_bytes())
    users = (
        {"client-certificate-data": inline(certificate), "client-key-data": inline(key)},
        {"client-certificate": "client.crt", "client-key": "client.key"},
    )
    async with ScriptedServer.start(authority) as server:
        for user in users:
            path = write(tmp_path / "k", config(server.url, authority, user))
            received = await ask(server, await kubeconfig(path))
            assert received.client == "admin"
            assert "authorization" not in received.headers


async def test_a_token_file_is_found_beside_the_kubeconfig_and_read_again_when_refused(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    (tmp_path / "token").write_text("first\n")
    async with ScriptedServer.start(authority) as server:
        path = write(tmp_path / "k", config(server.url, authority, {"tokenFile": "token"}))
        credentials = await kubeconfig(path)
        (tmp_path / "token").write_text("second\n")
        server.script("GET", "/version", Answer(401), Answer())
        async with Transport(credentials) as transport:
            await transport.request("GET", "/version")
        sent = [r.headers["authorization"] for r in server.requests]
        assert sent == ["Bearer first", "Bearer second"]


async def test_no_file_of_ours_is_left_behind_and_the_same_file_loads_again(
    tmp_path: Path, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    certificate, key = authority.issue(["x"], common_name="admin")
    user = {"client-certificate-data": inline(certificate), "client-key-data": inline(key)}
    async with ScriptedServer.start(authority) as server:
        path = write(tmp_path / "k", config(server.url, authority, user))
        for _ in range(2):
            assert (await ask(server, await kubeconfig(path))).client == "admin"
            assert list(temporary.iterdir()) == []


async def test_c68_a_ca_that_is_a_file_is_read_again(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    other = CertificateAuthority.create(tmp_path / "other")
    async with ScriptedServer.start(other) as server:
        content = config(server.url, authority, {"token": "abc"})
        cluster = content["clusters"][0]["cluster"]
        del cluster["certificate-authority-data"]
        cluster["certificate-authority"] = "ca.crt"
        (tmp_path / "ca.crt").write_text(authority.ca_pem.read_text())
        credentials = await kubeconfig(write(tmp_path / "k", content))
        with pytest.raises(TransportError, match="certificate verify failed"):
            await ask(server, credentials)
        (tmp_path / "ca.crt").write_text(other.ca_pem.read_text())
        assert isinstance(credentials, StaticCredentials)
        assert isinstance(credentials._tls, TlsFiles)
        credentials._tls.reload()
        await ask(server, credentials)


async def test_c69_the_proxy_of_a_kubeconfig_is_used(
    tmp_path: Path, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    target = "api.example.org:6443"
    async with (
        ScriptedServer.start(authority) as server,
        ConnectProxy.start({target: server.url}) as proxy,
    ):
        content = config(f"https://{target}", authority, {"token": "abc"})
        content["clusters"][0]["cluster"] |= {
            "proxy-url": proxy.url,
            "tls-server-name": "localhost",
        }
        await ask(server, await kubeconfig(write(tmp_path / "k", content)))
        assert [tunnel.target for tunnel in proxy.tunnels] == [target]


async def test_another_context_can_be_named(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    content = config("https://127.0.0.1:1", authority, {"token": "abc"})
    content["contexts"].append({"name": "there", "context": {"cluster": "d", "user": "v"}})
    content["users"].append({"name": "v", "user": {"token": "xyz"}})
    content["clusters"].append({"name": "d", "cluster": {"server": "https://127.0.0.1:2/"}})
    credentials = await kubeconfig(write(tmp_path / "k", content), context="there")
    assert credentials.server == "https://127.0.0.1:2"
    assert (await credentials.authorization()).header == "Bearer xyz"


async def test_a_context_may_prefer_a_namespace(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    content = config("https://127.0.0.1:1", authority, {"token": "abc"})
    context = content["contexts"][0]["context"]
    content["contexts"].append({"name": "there", "context": {**context, "namespace": "prod"}})
    path = write(tmp_path / "k", content)
    assert await namespace_of(path) == ""
    assert await namespace_of(path, context="there") == "prod"
    with pytest.raises(ConfigurationError, match="no context 'nowhere'"):
        await namespace_of(path, context="nowhere")


async def test_the_environment_names_files_that_are_merged(
    tmp_path: Path, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = config("https://127.0.0.1:1", authority, {"token": "abc"})
    parts = [copy.deepcopy(whole), copy.deepcopy(whole)]
    del parts[0]["users"]
    del parts[1]["contexts"], parts[1]["current-context"]
    (tmp_path / "b").mkdir()
    paths = [write(tmp_path / "a", parts[0]), write(tmp_path / "b" / "k", parts[1])]
    monkeypatch.setenv("KUBECONFIG", ":".join([str(tmp_path / "absent"), *paths]))
    credentials = await kubeconfig()
    assert (await credentials.authorization()).header == "Bearer abc"


async def test_without_anything_the_one_at_home_counts(
    tmp_path: Path, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"there is no kubeconfig at .*/\.kube/config"):
        await kubeconfig()
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", config("https://127.0.0.1:1", authority, {"token": "a"}))
    assert (await kubeconfig()).server == "https://127.0.0.1:1"


async def test_the_name_of_the_certificate_can_be_another(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    async with ScriptedServer.start(authority) as server:
        content = config(server.url, authority, {"token": "abc"})
        content["clusters"][0]["cluster"]["tls-server-name"] = "localhost"
        await ask(server, await kubeconfig(write(tmp_path / "k", content)))
        content["clusters"][0]["cluster"]["tls-server-name"] = "example.org"
        with pytest.raises(TransportError, match="certificate"):
            await ask(server, await kubeconfig(write(tmp_path / "k", content)))


async def test_verification_is_off_only_when_asked_and_never_silently(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    async with ScriptedServer.start(authority) as server:
        content = config(server.url, authority, {"token": "abc"})
        del content["clusters"][0]["cluster"]["certificate-authority-data"]
        with pytest.raises(TransportError, match="certificate verify failed"):
            await ask(server, await kubeconfig(write(tmp_path / "k", content)))
        content["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
        with structlog.testing.capture_logs() as logs:
            credentials = await kubeconfig(write(tmp_path / "k", content))
        assert [entry["log_level"] for entry in logs] == ["warning"]
        await ask(server, credentials)


@pytest.mark.parametrize(
    ("user", "what"),
    [
        ({"auth-provider": {"name": "gcp"}}, "the auth provider 'gcp'"),
        ({"username": "a", "password": "b"}, "a user name and password"),
    ],
)
async def test_what_is_not_supported_is_refused_before_anything_runs(
    tmp_path: Path, authority: CertificateAuthority, user: dict[str, Any], what: str
) -> None:
    path = write(tmp_path / "k", config("https://127.0.0.1:1", authority, user))
    with pytest.raises(ConfigurationError, match=f"context 'here', user 'u' uses {what}"):
        await kubeconfig(path)


async def test_c69_a_proxy_that_cannot_be_used_is_refused_instead_of_passed_by(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    content = config("https://127.0.0.1:1", authority, {"token": "abc"})
    content["clusters"][0]["cluster"]["proxy-url"] = "socks5://127.0.0.1:1080"
    with pytest.raises(ConfigurationError, match="proxy-url"):
        await kubeconfig(write(tmp_path / "k", content))


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no kubeconfig at .*/absent"):
        await kubeconfig(str(tmp_path / "absent"))


async def test_an_unknown_context_is_named_with_those_there_are(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    path = write(tmp_path / "k", config("https://127.0.0.1:1", authority, {"token": "abc"}))
    with pytest.raises(ConfigurationError, match="no context 'there', only here"):
        await kubeconfig(path, context="there")


A_CONTEXT = """
current-context: a
contexts: [{name: a, context: {cluster: c, user: u}}]
users: [{name: u}]
"""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot use the kubeconfig"),
        ("", "cannot use the kubeconfig"),
        ("just text", "cannot use the kubeconfig"),
        ("[]", "cannot use the kubeconfig"),
        ("current-context: a", "no context 'a', only none"),
        ("contexts: []", "no current-context: name a context"),
        ("{current-context: a, contexts: [3]}", "Expected key name"),
        ("{current-context: a, contexts: [{name: a}]}", "cannot use the kubeconfig"),
        ("{current-context: a, contexts: [{name: a, context: {cluster: c}}]}", "the user ''"),
        (A_CONTEXT, "Expected object with name c"),
        (A_CONTEXT + "clusters: [{name: c, cluster: {}}]", "not the shape of a kubeconfig"),
        (A_CONTEXT + "clusters: [{name: c, cluster: {server: here}}]", "server must be a URL"),
        (
            A_CONTEXT
            + "clusters: [{name: c, cluster: {server: 'https://x', certificate-authority: n.crt}}]",
            "n[.]crt",
        ),
        (
            A_CONTEXT
            + "clusters: [{name: c, cluster:"
            + " {server: 'https://x', certificate-authority-data: '%%%'}}]",
            "certificate-authority of context 'a', user 'u' holds no valid PEM certificate",
        ),
    ],
)
async def test_a_broken_file_is_a_configuration_error_that_names_it(
    tmp_path: Path, content: str, reason: str
) -> None:
    path = tmp_path / "broken"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        await kubeconfig(str(path))
    assert str(path) in str(caught.value)


async def test_a_broken_client_key_is_a_configuration_error(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    certificate, _ = authority.issue(["x"], common_name="admin")
    user = {"client-certificate-data": inline(certificate), "client-key-data": "bm8="}
    path = write(tmp_path / "k", config("https://127.0.0.1:1", authority, user))
    with pytest.raises(ConfigurationError, match="cannot use the kubeconfig"):
        await kubeconfig(path)


async def test_no_token_is_in_an_error(tmp_path: Path, authority: CertificateAuthority) -> None:
    content = config("https://127.0.0.1:1", authority, {"token": "secret"})
    content["users"].insert(0, {"nome": "u", "user": {"token": "secret"}})
    for users in (content["users"], content["users"][::-1], [*content["users"][1:]] * 2):
        path = write(tmp_path / "k", content | {"users": users, "clusters": []})
        with pytest.raises(ConfigurationError) as caught:
            await kubeconfig(path)
        assert "secret" not in str(caught.value)
