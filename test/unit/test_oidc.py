# SPDX-License-Identifier: Apache-2.0
"""The OIDC provider of a kubeconfig, against an identity provider that takes a token once."""

from __future__ import annotations

import base64
import json
import stat
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest
import structlog
import yaml

from flexinfer.client.kubeconfig import kubeconfig
from flexinfer.client.oidc import OidcProvider, UserEntry, expiry
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.connect_proxy import ConnectProxy
from flexinfer.envtest.script import Answer, Hang
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import ConfigurationError, CredentialError

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.meta.envelope import Tree

NOW = 1_800_000_000.0
DISCOVERY = "/.well-known/openid-configuration"


def token(name: str, expires: float | None = NOW + 3600) -> str:
    # The name makes base64url's own letters appear.
    claims = {"sub": f"{name}~~~???>>>", **({} if expires is None else {"exp": expires})}
    words = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{words}.signature-of-{name}"


def content(server: str, ca_pem: str, **provider: str) -> Tree:
    ca = base64.b64encode(ca_pem.encode()).decode()
    config = {"client-id": "me", "idp-certificate-authority-data": ca, **provider}
    user = {"auth-provider": {"name": "oidc", "config": config}}
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [
            {"name": "c", "cluster": {"server": server, "certificate-authority-data": ca}}
        ],
        "users": [{"name": "other", "user": {"token": "x"}}, {"name": "u", "user": user}],
    }


def write(path: Path, tree: Tree) -> Path:
    path.write_text(yaml.safe_dump(tree))
    path.chmod(0o600)
    return path


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def stored(path: Path) -> Tree:
    users = yaml.safe_load(path.read_text())["users"]
    config: Tree = users[1]["user"]["auth-provider"]["config"]
    return config


def provider(server: ScriptedServer, path: Path, *, secret: str = "") -> OidcProvider:
    return OidcProvider(
        issuer_url=server.url,
        client_id="me",
        entry=UserEntry(path=path, user="u"),
        ca_pem=server.ca_pem,
        now=lambda: NOW,
        client_secret=secret,
    )


def serve(server: ScriptedServer, *answers: Answer, **discovery: object) -> None:
    found = {"token_endpoint": f"{server.url}/token", **discovery}
    server.script("GET", DISCOVERY, Answer(body=found))
    server.script("POST", "/token", *answers)


async def test_a_good_id_token_is_used_as_it_is(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    async with ScriptedServer.start(authority) as server:
        tree = content(server.url, server.ca_pem, **{"id-token": token("a")})
        issued = await provider(server, write(tmp_path / "k", tree)).issue()
        assert (issued.token, issued.expires) == (token("a"), NOW + 3600)
        assert server.requests == []


@pytest.mark.parametrize("old", ["", token("old", NOW - 1), token("old", NOW + 9)])
async def test_an_expired_one_is_refreshed_and_both_are_written_back(
    authority: CertificateAuthority, tmp_path: Path, old: str
) -> None:
    async with ScriptedServer.start(authority) as server:
        serve(server, Answer(body={"id_token": token("new"), "refresh_token": "r2"}))
        tree = content(server.url, server.ca_pem, **{"id-token": old, "refresh-token": "r1"})
        path = write(tmp_path / "k", tree)
        issued = await provider(server, path, secret="s ecret").issue()
        assert (issued.token, issued.expires) == (token("new"), NOW + 3600)
        sent = server.requests[-1]
        assert parse_qs(sent.body.decode()) == {
            "grant_type": ["refresh_token"],
            "refresh_token": ["r1"],
        }
        word = base64.b64encode(b"me:s+ecret").decode()
        assert sent.headers["authorization"] == f"Basic {word}"
        tree["users"][1]["user"]["auth-provider"]["config"] |= {
            "id-token": token("new"),
            "refresh-token": "r2",
        }
        assert yaml.safe_load(path.read_text()) == tree
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert names(tmp_path) == ["k"]


async def test_a_public_client_and_one_that_posts_its_secret(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    async with ScriptedServer.start(authority) as server:
        serve(
            server,
            Answer(body={"id_token": token("new")}),
            token_endpoint_auth_methods_supported=["client_secret_post"],
        )
        for secret in ("", "s"):
            tree = content(server.url, server.ca_pem, **{"refresh-token": "r1"})
            path = write(tmp_path / "k", tree)
            await provider(server, path, secret=secret).issue()
            form = parse_qs(server.requests[-1].body.decode())
            assert form["client_id"] == ["me"]
            assert form.get("client_secret", [""]) == [secret]
            assert "authorization" not in server.requests[-1].headers
            # Without a new refresh-token the old one stays.
            assert stored(path)["refresh-token"] == "r1"


async def test_what_kubectl_wrote_meanwhile_counts(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    async with ScriptedServer.start(authority) as server:
        tree = content(server.url, server.ca_pem, **{"id-token": token("a")})
        path = write(tmp_path / "k", tree)
        issuer = provider(server, path)
        await issuer.issue()
        write(path, content(server.url, server.ca_pem, **{"id-token": token("b")}))
        assert (await issuer.issue()).token == token("b")
        assert server.requests == []


@pytest.mark.parametrize("hindrance", ["read-only", "locked"])
async def test_a_file_that_cannot_be_written_does_not_stop_us(
    authority: CertificateAuthority, tmp_path: Path, hindrance: str
) -> None:
    async with ScriptedServer.start(authority) as server:
        serve(
            server,
            Answer(body={"id_token": token("b"), "refresh_token": "r2"}),
            Answer(body={"id_token": token("c"), "refresh_token": "r3"}),
        )
        # A name so long that nothing can be made beside it hinders even those who may do all.
        name = "k" * 255 if hindrance == "read-only" else "k"
        tree = content(server.url, server.ca_pem, **{"refresh-token": "r1"})
        path = write(tmp_path / name, tree)
        if hindrance == "locked":
            (tmp_path / "k.lock").touch()
        issuer = provider(server, path)
        with structlog.testing.capture_logs() as logs:
            assert (await issuer.issue()).token == token("b")
            assert (await issuer.issue()).token == token("c")
        forms = [parse_qs(r.body.decode()) for r in server.requests if r.method == "POST"]
        assert [form["refresh_token"] for form in forms] == [["r1"], ["r2"]]
        assert stored(path)["refresh-token"] == "r1"
        assert [entry["log_level"] for entry in logs] == ["warning", "warning"]
        assert "signature-of" not in str(logs)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(400, body={"error": "invalid_grant"}), r"answered 400 .*\(invalid_grant: no desc"),
        (Answer(200, body="<html>"), "answered 200"),
        (Answer(302, {"Location": "https://elsewhere"}), "answered 302"),
        (Answer(200, body={"access_token": "secret"}), "gave no id_token"),
        (Answer(200, body={"id_token": "secret"}), "is no JSON web token"),
        (Hang(), "gave no answer within 1 s"),
    ],
)
async def test_a_provider_that_gives_none_is_named(
    authority: CertificateAuthority, tmp_path: Path, answer: Answer, reason: str
) -> None:
    async with ScriptedServer.start(authority) as server:
        serve(server, answer)
        path = write(tmp_path / "k", content(server.url, server.ca_pem, **{"refresh-token": "r1"}))
        issuer = provider(server, path)
        issuer.timeout = 1
        with pytest.raises((CredentialError, ConfigurationError), match=reason) as caught:
            await issuer.issue()
        assert "secret" not in str(caught.value)


async def test_tls_of_the_provider_is_verified_and_nothing_goes_out_in_clear(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    other = CertificateAuthority.create(tmp_path / "other")
    path = write(tmp_path / "k", content("https://x", "", **{"refresh-token": "r1"}))
    async with ScriptedServer.start(authority) as server:
        for ca_pem in (other.ca_pem.read_text(), None):
            issuer = OidcProvider(
                issuer_url=server.url,
                client_id="me",
                entry=UserEntry(path=path, user="u"),
                ca_pem=ca_pem,
            )
            with pytest.raises(CredentialError, match="certificate verify failed"):
                await issuer.issue()
        serve(server, token_endpoint="http://127.0.0.1:1/token")
        with pytest.raises(CredentialError, match="no https:// URL"):
            await provider(server, path).issue()
        assert [r.method for r in server.requests] == ["GET"]
    with pytest.raises(ConfigurationError, match="idp-issuer-url"):
        OidcProvider(issuer_url="http://x", client_id="me", entry=UserEntry(path=path, user="u"))


async def test_a_provider_that_is_down_is_named_the_same_way_each_time(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    path = write(tmp_path / "k", content("https://x", "", **{"refresh-token": "r1"}))
    async with ScriptedServer.start(authority) as server:
        pass
    with pytest.raises(
        CredentialError, match=r"cannot be reached at https://127.*refused|failed"
    ) as e:
        await provider(server, path).issue()
    assert " 0x" not in str(e.value)


async def test_the_provider_is_reached_by_the_proxy_of_the_environment(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "k", content("https://x", "", **{"refresh-token": "r1"}))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with ConnectProxy.start({}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        issuer = OidcProvider(
            issuer_url="https://login.example.org",
            client_id="me",
            entry=UserEntry(path=path, user="u"),
            ca_pem=authority.ca_pem.read_text(),
        )
        with pytest.raises(CredentialError, match="502"):
            await issuer.issue()
        assert [tunnel.target for tunnel in proxy.tunnels] == ["login.example.org:443"]


async def test_without_a_refresh_token_the_cure_is_named(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    async with ScriptedServer.start(authority) as server:
        path = write(tmp_path / "k", content(server.url, server.ca_pem, **{"id-token": token("a")}))
        issuer = provider(server, path)
        await issuer.issue()
        with pytest.raises(CredentialError, match="holds no refresh-token: log in again"):
            await issuer.issue()
        path.write_text("{")
        with pytest.raises(CredentialError, match="cannot read the tokens of 'u'"):
            await issuer.issue()


@pytest.mark.parametrize("word", ["", "a.b", "a.!.c", "a.e30.c.d", "a.MQ.c", "a.////.c"])
def test_what_is_no_token_is_refused(word: str) -> None:
    with pytest.raises(ConfigurationError, match="no JSON web token"):
        expiry(word)


def test_a_token_may_say_nothing_of_its_end() -> None:
    assert expiry(token("a", None)) is None


async def test_a_kubeconfig_with_oidc_refreshes_when_it_is_refused(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    far = 4_000_000_000.0
    async with ScriptedServer.start(authority) as server:
        serve(server, Answer(body={"id_token": token("b", far), "refresh_token": "r2"}))
        server.script("GET", "/x", Answer(401), Answer(body="here"))
        tokens = {
            "idp-issuer-url": server.url,
            "id-token": token("a", far),
            "refresh-token": "r1",
        }
        path = write(tmp_path / "k", content(server.url, server.ca_pem, **tokens))
        async with Transport(await kubeconfig(str(path))) as transport:
            assert await transport.request("GET", "/x") == b"here"
        sent = [r.headers["authorization"] for r in server.requests if r.path == "/x"]
        assert sent == [f"Bearer {token('a', far)}", f"Bearer {token('b', far)}"]
        assert stored(path)["refresh-token"] == "r2"


async def test_the_ca_of_a_provider_may_be_a_file_beside_the_kubeconfig(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    async with ScriptedServer.start(authority) as server:
        serve(server, Answer(body={"id_token": token("b", 4_000_000_000.0)}))
        server.script("GET", "/x", Answer(body="here"))
        tree = content(
            server.url,
            server.ca_pem,
            **{"idp-issuer-url": server.url, "refresh-token": "r1"},
            **{"idp-certificate-authority": "idp.crt"},
        )
        del tree["users"][1]["user"]["auth-provider"]["config"]["idp-certificate-authority-data"]
        (tmp_path / "idp.crt").write_text(server.ca_pem)
        path = write(tmp_path / "k", tree)
        async with Transport(await kubeconfig(str(path))) as transport:
            assert await transport.request("GET", "/x") == b"here"


async def test_a_kubeconfig_without_an_issuer_is_refused(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    path = write(tmp_path / "k", content("https://x", authority.ca_pem.read_text()))
    with pytest.raises(ConfigurationError, match="oidc needs client-id, and an https"):
        await kubeconfig(str(path))
