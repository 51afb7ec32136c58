# SPDX-License-Identifier: Apache-2.0
"""Exec plugins as they are: slow, chatty, failing, hanging, and real processes each time."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import structlog

from flexinfer.client.exec_plugin import API_VERSIONS, ExecPlugin, parse
from flexinfer.client.kubeconfig import kubeconfig
from flexinfer.client.renewal import Issued, RenewedCredentials
from flexinfer.client.tls import TlsFiles, Trust
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.script import Answer, Bytes, Until, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import ConfigurationError, CredentialError

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

V1 = API_VERSIONS[0]
OK = Answer(body="here")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path_factory.mktemp("ca"))


class Plugin:
    """A program in a folder of its own, which notes each of its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "plugin"

    def does(self, body: str) -> Plugin:
        """Make the program; `answer(**status)` prints, `runs` counts from 1."""
        head = f"""\
            #!{sys.executable} -I
            import json, os, pathlib, sys, time
            folder = pathlib.Path({str(self.folder)!r})
            with open(folder / "runs", "a") as file:
                file.write(f"{{os.getpid()}}\\n")
            runs = len((folder / "runs").read_text().splitlines())
            def answer(version={V1!r}, **status):
                print(json.dumps(dict(apiVersion=version, kind="ExecCredential", status=status)))
            """
        self.path.write_text(textwrap.dedent(head) + textwrap.dedent(body))
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)
        return self

    @property
    def runs(self) -> list[int]:
        """The process ids of its runs."""
        noted = self.folder / "runs"
        return [int(line) for line in noted.read_text().split()] if noted.exists() else []

    def command(self, **options: Any) -> ExecPlugin:
        return ExecPlugin(command=str(self.path), **options)

    def credentials(self, server: ScriptedServer, **options: Any) -> RenewedCredentials:
        tls = TlsFiles(Trust(ca=server.ca_pem))
        return RenewedCredentials(server.url, self.command(**options), tls=tls)


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return False


# --- one run ---


async def test_c67_a_token_and_its_expiry(plugin: Plugin) -> None:
    plugin.does("answer(token='t', expirationTimestamp='2030-01-31T12:00:00Z')")
    assert await plugin.command().issue() == Issued("t", expires=1896091200.0)
    plugin.does("answer('client.authentication.k8s.io/v1beta1', token='t')")
    assert await plugin.command(api_version=API_VERSIONS[1]).issue() == Issued("t")


async def test_c67_a_chatty_standard_error_does_not_stop_it(plugin: Plugin) -> None:
    plugin.does("sys.stderr.write('x' * (1 << 20)); answer(token='t')")
    assert (await plugin.command(timeout=20).issue()).token == "t"


async def test_c67_what_it_is_told(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "yes")
    plugin.does("""
        told = dict(os.environ, args=sys.argv[1:], input=sys.stdin.read())
        (folder / "told").write_text(json.dumps(told))
        answer(token="t")
    """)
    cluster = {"server": "https://x", "config": {"a": 1}}
    await plugin.command(args=("a b", "c"), env={"OWN": "1"}, cluster=cluster).issue()
    told = json.loads((plugin.folder / "told").read_text())
    assert (told["args"], told["input"]) == (["a b", "c"], "")
    assert (told["INHERITED"], told["OWN"]) == ("yes", "1")
    assert json.loads(told["KUBERNETES_EXEC_INFO"]) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": cluster},
    }
    await plugin.command().issue()
    told = json.loads((plugin.folder / "told").read_text())
    assert json.loads(told["KUBERNETES_EXEC_INFO"])["spec"] == {"interactive": False}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit('log in first')", "ended with 1: log in first"),
        ("os.kill(os.getpid(), 15)", "was ended by signal 15"),
        ("print('secret')", "is of no use: it is no ExecCredential"),
        ("print('[\"secret\"]')", "it is no ExecCredential"),
        ('print(\'{"kind": "secret"}\')', "it must be an ExecCredential"),
        ("answer('secret/v7', token='t')", f"it must be an ExecCredential of {V1}"),
        ("answer()", "it has neither a token nor a client certificate"),
        ("answer(token=['secret'])", "must be strings"),
        ("answer(clientCertificateData='secret')", "come together"),
        ("answer(token='t', expirationTimestamp='secret')", "expirationTimestamp must be a time"),
        ("answer(token='t', expirationTimestamp=7)", "it is no ExecCredential"),
        ("answer(token='secret' * 1_000_000)", "it is no ExecCredential"),
        ("sys.stderr.write('a\\x1b[31m\\nb'); answer()", "client certificate: a\\[31m b"),
    ],
)
async def test_c67_an_error_names_the_command_and_never_what_it_printed(
    plugin: Plugin, body: str, reason: str
) -> None:
    plugin.does(body)
    with pytest.raises(CredentialError, match=reason) as caught:
        await plugin.command().issue()
    assert f"exec plugin {plugin.path}" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_c67_the_end_of_a_long_standard_error_is_told(plugin: Plugin) -> None:
    plugin.does("sys.stderr.write('x' * (1 << 20) + 'the end'); sys.exit(3)")
    with pytest.raises(CredentialError, match=r"ended with 3: x+the end$") as caught:
        await plugin.command().issue()
    assert len(str(caught.value)) < 3000


async def test_c67_a_program_that_cannot_be_run_is_named(plugin: Plugin) -> None:
    plugin.path.write_text("no program")
    with pytest.raises(CredentialError, match="cannot be run: Permission denied"):
        await plugin.command().issue()


async def test_c67_one_that_hangs_is_killed_with_its_children(plugin: Plugin) -> None:
    plugin.does("""
        child = os.fork()
        if child:
            (folder / "child").write_text(str(child))
            sys.stderr.write("waiting for a browser")
            sys.stderr.flush()
        time.sleep(600)
    """)
    with pytest.raises(CredentialError, match=r"within 1 s and was killed: waiting for a browser"):
        await plugin.command(timeout=1).issue()
    pids = [*plugin.runs, int((plugin.folder / "child").read_text())]
    await eventually(lambda: not any(map(is_alive, pids)), within=5)


async def test_c67_one_that_leaves_a_child_behind_is_not_waited_for(plugin: Plugin) -> None:
    plugin.does("""
        answer(token="t")
        sys.stdout.flush()
        if os.fork() == 0:
            (folder / "child").write_text(str(os.getpid()))
            time.sleep(600)
        while not (folder / "child").exists():
            time.sleep(0.01)
    """)
    with anyio.fail_after(30):
        assert (await plugin.command().issue()).token == "t"
    os.kill(int((plugin.folder / "child").read_text()), 9)


async def test_c67_the_loop_goes_on_while_it_runs(plugin: Plugin) -> None:
    plugin.does("""
        while not (folder / "go").exists():
            time.sleep(0.01)
        answer(token="t")
    """)
    issued: list[Issued] = []

    async def issue() -> None:
        issued.append(await plugin.command().issue())

    async with anyio.create_task_group() as group:
        group.start_soon(issue)
        await eventually(lambda: bool(plugin.runs), within=10)
        assert issued == []
        (plugin.folder / "go").touch()
    assert issued == [Issued("t")]


async def test_c67_it_runs_in_the_loop_of_another_thread_too(plugin: Plugin) -> None:
    plugin.does("answer(token='t')")
    issued = await anyio.to_thread.run_sync(anyio.run, plugin.command().issue)
    assert issued == Issued("t")


async def test_c67_one_that_nobody_waits_for_is_killed(plugin: Plugin) -> None:
    plugin.does("time.sleep(600)")
    async with anyio.create_task_group() as group:
        group.start_soon(plugin.command().issue)
        await eventually(lambda: bool(plugin.runs), within=10)
        group.cancel_scope.cancel()
    await eventually(lambda: not any(map(is_alive, plugin.runs)), within=5)


# --- in a transport ---


async def test_c67_one_run_serves_fifty_requests_at_once(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    plugin.does("time.sleep(0.2); answer(token=f'token-{runs}')")
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", OK)
        async with Transport(plugin.credentials(server)) as transport:
            async with anyio.create_task_group() as calls:
                for _ in range(50):
                    calls.start_soon(transport.request, "GET", "/x")
            assert {r.headers["authorization"] for r in server.requests} == {"Bearer token-1"}
        assert (len(server.requests), len(plugin.runs)) == (50, 1)


async def test_c70_fifty_refusals_at_once_are_one_run_and_no_call_fails(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    plugin.does("answer(token=f'token-{runs}')")
    async with ScriptedServer.start(authority) as server:
        refused = Answer(401, body=[Until("all are here")])
        server.script("GET", "/x", *[refused] * 50, OK)
        answers: list[bytes] = []

        async def call() -> None:
            answers.append(await transport.request("GET", "/x"))

        async with (
            Transport(plugin.credentials(server)) as transport,
            anyio.create_task_group() as calls,
        ):
            for _ in range(50):
                calls.start_soon(call)
            await server.received(50)
            server.release("all are here")
        assert answers == [b"here"] * 50
        sent = [r.headers["authorization"] for r in server.requests]
        assert sent == ["Bearer token-1"] * 50 + ["Bearer token-2"] * 50
        assert len(plugin.runs) == 2


async def test_c67_a_request_that_gives_up_does_not_stop_the_run_that_others_wait_for(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    plugin.does("""
        while not (folder / "go").exists():
            time.sleep(0.01)
        answer(token="t")
    """)
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", OK)
        async with (
            Transport(plugin.credentials(server)) as transport,
            anyio.create_task_group() as calls,
        ):
            calls.start_soon(transport.request, "GET", "/x")
            with pytest.raises(TimeoutError), anyio.fail_after(0.2):
                await transport.request("GET", "/x")
            await eventually(lambda: bool(plugin.runs), within=10)
            (plugin.folder / "go").touch()
        assert (len(server.requests), len(plugin.runs)) == (1, 1)


async def test_c67_an_error_reaches_the_caller_and_the_next_run_heals(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    plugin.does("""
        if runs == 1:
            sys.exit("no network")
        answer(token="t")
    """)
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", OK)
        with structlog.testing.capture_logs() as logs:
            async with Transport(plugin.credentials(server)) as transport:
                for _ in range(20):
                    with pytest.raises(CredentialError, match=r"ended with 1: no network"):
                        await transport.request("GET", "/x")
                # Nobody hammers a plugin that fails: these twenty were one run.
                assert len(plugin.runs) == 1

                async def answered() -> None:
                    assert await transport.request("GET", "/x") == b"here"

                with anyio.fail_after(20):
                    while True:
                        with suppress(CredentialError):
                            await answered()
                            break
                        await anyio.sleep(0.05)
        assert len(plugin.runs) == 2
        assert [e["event"] for e in logs if e["log_level"] == "warning"] == [
            "credential not renewed"
        ]


async def test_c67_client_certificates_are_shown_and_replaced_when_refused(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    for number in (1, 2):
        certificate, key = authority.issue(["x"], common_name=f"user-{number}")
        (plugin.folder / f"{number}.crt").write_bytes(certificate.read_bytes())
        (plugin.folder / f"{number}.key").write_bytes(key.read_bytes())
    plugin.does("""
        answer(
            clientCertificateData=(folder / f"{runs}.crt").read_text(),
            clientKeyData=(folder / f"{runs}.key").read_text(),
        )
    """)
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", OK, status_answer(401, "Unauthorized", "expired"), OK)
        async with Transport(plugin.credentials(server)) as transport:
            for _ in range(2):
                assert await transport.request("GET", "/x") == b"here"
        assert [r.client for r in server.requests] == ["user-1", "user-1", "user-2"]
        assert all("authorization" not in r.headers for r in server.requests)
        assert len(plugin.runs) == 2


async def test_c70_certificates_that_change_under_many_calls_close_nothing_under_them(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    for number in (1, 2):
        certificate, key = authority.issue(["x"], common_name=f"user-{number}")
        (plugin.folder / f"{number}.crt").write_bytes(certificate.read_bytes())
        (plugin.folder / f"{number}.key").write_bytes(key.read_bytes())
    plugin.does("""
        answer(
            clientCertificateData=(folder / f"{runs}.crt").read_text(),
            clientKeyData=(folder / f"{runs}.key").read_text(),
        )
    """)
    async with ScriptedServer.start(authority) as server:
        slow = Answer(body=[Until("renewed"), Bytes(b"here")])
        server.script("GET", "/slow", slow)
        server.script("GET", "/x", *[Answer(401, body=[Until("all are here")])] * 20, OK)
        answers: list[bytes] = []

        async def call(path: str) -> None:
            answers.append(await transport.request("GET", path))

        async with (
            Transport(plugin.credentials(server)) as transport,
            anyio.create_task_group() as calls,
        ):
            for path in ["/slow"] * 10 + ["/x"] * 20:
                calls.start_soon(call, path)
            await server.received(30)
            server.release("all are here")
            await server.received(40, path="/x")
            server.release("renewed")
        assert answers == [b"here"] * 30
        assert len(plugin.runs) == 2


async def test_c67_a_certificate_without_its_key_is_an_error_of_the_plugin(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    certificate, _ = authority.issue(["x"], common_name="a")
    _, key = authority.issue(["x"], common_name="b")
    plugin.does(f"""
        pem = [pathlib.Path(name).read_text() for name in ({str(certificate)!r}, {str(key)!r})]
        answer(clientCertificateData=pem[0], clientKeyData=pem[1])
    """)
    async with (
        ScriptedServer.start(authority) as server,
        Transport(plugin.credentials(server)) as transport,
    ):
        with pytest.raises(CredentialError, match="do not belong together"):
            await transport.request("GET", "/x")


async def test_c67_a_run_ends_with_its_transport(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    plugin.does("time.sleep(600)")
    async with (
        ScriptedServer.start(authority) as server,
        Transport(plugin.credentials(server)) as transport,
    ):
        with pytest.raises(TimeoutError), anyio.fail_after(0.5):
            await transport.request("GET", "/x")
        await eventually(lambda: bool(plugin.runs), within=10)
        assert is_alive(plugin.runs[0])
    await eventually(lambda: not any(map(is_alive, plugin.runs)), within=5)


# --- from a kubeconfig ---


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
