# SPDX-License-Identifier: Apache-2.0
"""One run of an exec plugin: slow, chatty, failing or hanging, and a real process each time."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import anyio
import pytest

from flexinfer.client.exec_plugin import API_VERSIONS
from flexinfer.client.renewal import Issued
from flexinfer.envtest.eventually import eventually
from flexinfer.errors import CredentialError

if TYPE_CHECKING:
    from test.unit.exec_plugin.conftest import Plugin

V1 = API_VERSIONS[0]


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
    await eventually(lambda: not any(map(plugin.is_alive, pids)), within=5)


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
    await eventually(lambda: not any(map(plugin.is_alive, plugin.runs)), within=5)
