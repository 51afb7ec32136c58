# SPDX-License-Identifier: Apache-2.0
"""Kubeconfigs whose user is an exec plugin, and a proxy, against the real API server."""

from __future__ import annotations

import base64
import json
import stat
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from flexinfer.client.direct import DirectClient
from flexinfer.client.exchange import ConnectionLostError
from flexinfer.client.kubeconfig import kubeconfig
from flexinfer.client.transport import Transport
from flexinfer.envtest.connect_proxy import ConnectProxy
from flexinfer.envtest.eventually import eventually
from flexinfer.errors import AlreadyExistsError, CredentialError
from flexinfer.meta.envelope import decode_tree, encode
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree

SERVICES = Resource(GroupVersionKind("", "v1", "Service"), "services")
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
V1 = "client.authentication.k8s.io/v1"
ACCOUNT = "worker"
# What a plugin of a cloud does: ask who issues tokens, and print what comes.
TOKEN_PLUGIN = """
    import http.client, json, os, ssl
    cluster = json.loads(os.environ["KUBERNETES_EXEC_INFO"])["spec"]["cluster"]
    tls = ssl.create_default_context(cadata=__import__("base64").b64decode(
        cluster["certificate-authority-data"]).decode())
    host = cluster["server"].removeprefix("https://")
    connection = http.client.HTTPSConnection(host, context=tls, timeout=20)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 600}}
    connection.request("POST", os.environ["TOKEN_PATH"], json.dumps(body), {
        "Authorization": "Bearer " + os.environ["ADMIN_TOKEN"],
        "Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 201:
        raise SystemExit(answer["message"])
    status = {key: answer["status"][key] for key in ("token", "expirationTimestamp")}
"""
CERTIFICATE_PLUGIN = """
    import os, pathlib
    names = ("clientCertificateData", "CRT"), ("clientKeyData", "KEY")
    status = {name: pathlib.Path(os.environ[place]).read_text() for name, place in names}
"""


def program(path: Path, body: str) -> None:
    tail = f"""
        import json
        with open({str(path) + ".runs"!r}, "a") as file:
            file.write("x")
        print(json.dumps(dict(apiVersion={V1!r}, kind="ExecCredential", status=status)))
    """
    path.write_text(f"#!{sys.executable} -I\n{textwrap.dedent(body)}{textwrap.dedent(tail)}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def runs(folder: Path) -> int:
    noted = folder / "plugin.runs"
    return len(noted.read_text()) if noted.exists() else 0


def write_config(
    plane: ControlPlane, folder: Path, body: str, env: dict[str, str], **cluster: Any
) -> str:
    """Write the plugin, and a kubeconfig beside it that names it."""
    program(folder / "plugin", body)
    ca = base64.b64encode(plane.ca_file.read_bytes()).decode()
    plugin = {
        "apiVersion": V1,
        "command": "./plugin",
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": True,
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }
    cluster = {"server": plane.url, "certificate-authority-data": ca, **cluster}
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
    }
    (folder / "kubeconfig").write_text(json.dumps(content))
    return str(folder / "kubeconfig")


@pytest.fixture
def account(control_plane: ControlPlane, namespace: str) -> str:
    """Make a service account; return the path of its tokens."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    control_plane.admin.create(path, {"metadata": {"name": ACCOUNT}})
    return f"{path}/{ACCOUNT}"


async def who_am_i(transport: Transport) -> Tree:
    body = encode({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    answer = decode_tree(await transport.request("POST", REVIEWS, body=body))
    user: Tree = answer["status"]["userInfo"]
    return user


async def test_c67_a_plugin_that_gets_tokens_by_tokenrequest_and_again_on_401(
    control_plane: ControlPlane, namespace: str, account: str, tmp_path: Path
) -> None:
    env = {"ADMIN_TOKEN": control_plane.admin_token, "TOKEN_PATH": f"{account}/token"}
    path = write_config(control_plane, tmp_path, TOKEN_PLUGIN, env)
    user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    async with Transport(await kubeconfig(path)) as transport:
        first = await who_am_i(transport)
        assert (first["username"], runs(tmp_path)) == (user, 1)
        # Another account of the same name: tokens of the first are refused, once the API
        # server's own memory of them, ten seconds, is over.
        control_plane.admin.delete(account)
        again = {"metadata": {"name": ACCOUNT}}
        control_plane.admin.create(account.rpartition("/")[0], again)

        async def renewed() -> None:
            found = await who_am_i(transport)
            assert (found["username"], found["uid"] == first["uid"]) == (user, False)

        await eventually(renewed, within=30, every=0.5)
        assert runs(tmp_path) == 2


async def test_c67_a_plugin_that_gives_client_certificates(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    issued = control_plane.authority.issue(["x"], common_name="someone", organization="some-group")
    env = {"CRT": str(issued[0]), "KEY": str(issued[1])}
    path = write_config(control_plane, tmp_path, CERTIFICATE_PLUGIN, env)
    async with Transport(await kubeconfig(path)) as transport:
        found = await who_am_i(transport)
    assert found["username"] == "someone"
    assert "some-group" in found["groups"]


async def test_c67_what_the_plugin_says_in_its_trouble_is_in_the_error(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    missing = f"/api/v1/namespaces/{namespace}/serviceaccounts/nobody/token"
    env = {"ADMIN_TOKEN": control_plane.admin_token, "TOKEN_PATH": missing}
    path = write_config(control_plane, tmp_path, TOKEN_PLUGIN, env)
    async with Transport(await kubeconfig(path)) as transport:
        with pytest.raises(CredentialError, match=r'plugin ended with 1: .*"nobody" not f') as e:
            await who_am_i(transport)
    assert control_plane.admin_token not in str(e.value)


async def test_c69_a_kubeconfig_with_proxy_url_reaches_the_api_server_through_it(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    target = "api.example.org:6443"
    issued = control_plane.authority.issue(["x"], common_name="someone")
    env = {"CRT": str(issued[0]), "KEY": str(issued[1])}
    async with ConnectProxy.start({target: control_plane.url}) as proxy:
        path = write_config(
            control_plane,
            tmp_path,
            CERTIFICATE_PLUGIN,
            env,
            **{
                "server": f"https://{target}",
                "tls-server-name": "127.0.0.1",
                "proxy-url": proxy.url,
            },
        )
        async with Transport(await kubeconfig(path)) as transport:
            assert (await who_am_i(transport))["username"] == "someone"
        assert [tunnel.target for tunnel in proxy.tunnels] == [target]


class LosesOneAnswer(Transport):
    """A transport whose connection is lost when the first POST was answered."""

    lost = False

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        answer = await super().request(method, path, **options)
        if method == "POST" and not self.lost:
            self.lost = True
            raise ConnectionLostError(f"POST {path}: the test lost the answer")
        return answer


async def test_c72_a_create_that_is_sent_again_finds_what_the_api_server_made_of_it(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    control_plane.write_kubeconfig(tmp_path / "k")
    spec = {"selector": {"app": "a"}, "ports": [{"name": "http", "port": 80}]}
    intent = {"metadata": {"name": "a", "namespace": namespace}, "spec": spec}
    async with LosesOneAnswer(await kubeconfig(str(tmp_path / "k"))) as transport:
        client = DirectClient(transport)
        made = await client.create(SERVICES, intent, field_manager="tests")
        assert transport.lost
        found = await client.read(SERVICES, NamespacedName(namespace, "a"))
        assert found is not None
        assert found.meta.uid == made.meta.uid
        with pytest.raises(AlreadyExistsError):
            await client.create(SERVICES, intent, field_manager="tests")
