# SPDX-License-Identifier: Apache-2.0
"""Exec plugins that a kubeconfig names: what they are told, and which are refused."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from flexinfer.client.exec_plugin import API_VERSIONS, parse
from flexinfer.client.kubeconfig import kubeconfig
from flexinfer.client.renewal import RenewedCredentials
from flexinfer.client.tls import TlsFiles, Trust
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.meta.envelope import Tree
    from test.unit.exec_plugin.conftest import Plugin

V1 = API_VERSIONS[0]
OK = Answer(body="here")


def entry(plugin: Plugin, **fields: Any) -> Tree:
    return {"apiVersion": V1, "command": str(plugin.path), "interactiveMode": "Never", **fields}


def config(server: str, ca_pem: str, user: Tree, **cluster: Any) -> Tree:
    cluster = {
        "server": server,
        "certificate-authority-data": base64.b64encode(ca_pem.encode()).decode(),
        **cluster,
    }
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }


def write(path: Path, content: Tree) -> str:
    path.write_text(json.dumps(content))
    return str(path)


async def test_c67_a_kubeconfig_names_a_plugin_beside_it_and_tells_it_of_the_cluster(
    plugin: Plugin, authority: CertificateAuthority, tmp_path: Path
) -> None:
    plugin.does("""
        (folder / "told").write_text(os.environ["KUBERNETES_EXEC_INFO"])
        answer(token=f"{sys.argv[1]}-{os.environ['WORD']}")
    """)
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", OK)
        user = {
            "exec": entry(
                plugin,
                command="./plugin",
                args=["a"],
                env=[{"name": "WORD", "value": "b"}],
                provideClusterInfo=True,
            )
        }
        extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "z"}}
        content = config(server.url, server.ca_pem, user, extensions=[extension])
        credentials = await kubeconfig(write(tmp_path / "k", content))
        # The plugin runs when it is needed, and not before.
        assert plugin.runs == []
        async with Transport(credentials) as transport:
            assert await transport.request("GET", "/x") == b"here"
        assert server.requests[0].headers["authorization"] == "Bearer a-b"
        told = json.loads((tmp_path / "told").read_text())["spec"]["cluster"]
        authority_data = told.pop("certificate-authority-data")
        assert base64.b64decode(authority_data).decode() == server.ca_pem
        assert told == {"server": server.url, "config": {"audience": "z"}}


async def test_what_a_user_is_given_outright_goes_before_a_plugin(
    plugin: Plugin, authority: CertificateAuthority, tmp_path: Path
) -> None:
    plugin.does("answer(token='asked')")
    user = {"exec": entry(plugin), "token": "given"}
    content = config("https://127.0.0.1:1", authority.ca_pem.read_text(), user)
    credentials = await kubeconfig(write(tmp_path / "k", content))
    assert (await credentials.authorization()).header == "Bearer given"
    assert plugin.runs == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "exec.apiVersion must be one of"),
        ({"apiVersion": None}, "exec.apiVersion must be one of"),
        ({"interactiveMode": "Always"}, "there is no terminal here"),
        ({"command": ""}, "exec.command '' is no program here"),
        (
            {"command": "no-such-plugin", "installHint": "get it from us"},
            "exec.command 'no-such-plugin' is no program here: get it from us",
        ),
        ({"env": [{"nome": "a"}]}, "not the shape of a kubeconfig"),
        ({"args": 7}, "not the shape of a kubeconfig"),
    ],
)
async def test_a_plugin_that_cannot_work_is_refused_with_the_file_named(
    plugin: Plugin,
    authority: CertificateAuthority,
    tmp_path: Path,
    fields: Tree,
    reason: str,
) -> None:
    plugin.does("answer(token='t')")
    user = {"exec": entry(plugin, **fields)}
    path = write(tmp_path / "k", config("https://x", authority.ca_pem.read_text(), user))
    with pytest.raises(ConfigurationError, match=reason) as caught:
        await kubeconfig(path)
    assert path in str(caught.value)
    assert plugin.runs == []


def test_a_token_is_not_asked_for_to_be_sent_in_clear(plugin: Plugin) -> None:
    plugin.does("answer(token='t')")
    found = parse(entry(plugin), {"server": "http://x"}, folder=plugin.folder, ca_pem=None)
    with pytest.raises(ConfigurationError, match="must be https"):
        RenewedCredentials("http://x", found, tls=TlsFiles(Trust()))
