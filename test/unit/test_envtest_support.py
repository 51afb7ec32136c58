# SPDX-License-Identifier: Apache-2.0
"""The small parts of flexinfer.envtest: waiting, the audit log, the loopback guard, ports."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest import loopback, stages
from flexinfer.envtest.audit import AuditLog, policy
from flexinfer.envtest.controlplane import Options
from flexinfer.envtest.eventually import eventually, eventually_sync
from flexinfer.envtest.loopback import OutsideLoopbackError, loopback_only
from flexinfer.envtest.ports import free_ports
from flexinfer.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.meta.envelope import Tree


class Claim:
    """Raise or return one outcome after another."""

    def __init__(self, *results: object) -> None:
        self._results = list(results)

    def __call__(self) -> object:
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        if isinstance(result, Exception):
            raise result
        return result

    async def wait(self) -> object:
        return self()


async def test_eventually_retries_what_is_not_true_yet() -> None:
    results = (AssertionError("no"), NotFoundError("gone"), KeyError("status"), False, "value")
    assert await eventually(Claim(*results), every=0) == "value"
    assert await eventually(Claim(*results).wait, every=0) == "value"
    assert eventually_sync(Claim(*results), every=0) == "value"


async def test_eventually_shows_the_last_failure() -> None:
    claim = Claim(AssertionError("phase is Pending"))
    with pytest.raises(AssertionError, match=r"not true within 0.01 s.*phase is Pending"):
        await eventually(claim, within=0.01, every=0)
    with pytest.raises(AssertionError, match=r"not true within 0.01 s.*phase is Pending"):
        eventually_sync(claim, within=0.01, every=0)
    with pytest.raises(AssertionError, match="returned False"):
        eventually_sync(Claim(False), within=0.01, every=0)


async def test_eventually_does_not_hide_mistakes_in_the_claim() -> None:
    with pytest.raises(TypeError):
        await eventually(Claim(TypeError("wrong")), every=0)
    with pytest.raises(TypeError):
        eventually_sync(Claim(TypeError("wrong")), every=0)


def audit_line(verb: str, *, stage: str = "ResponseComplete", uri: str = "/", **ref: str) -> str:
    body: Tree = {
        "verb": verb,
        "stage": stage,
        "requestURI": uri,
        "auditID": "id",
        "user": {"username": "alice"},
        "responseStatus": {"code": 200},
        "objectRef": ref,
    }
    return json.dumps(body) + "\n"


def test_the_audit_log_is_read_from_a_mark_in_whole_lines(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    assert log.mark() == 0
    log.path.write_text(audit_line("get", resource="pods", namespace="a", name="x"))
    mark = log.mark()
    with log.path.open("a") as file:
        file.write(audit_line("patch", resource="pods", subresource="status", namespace="a"))
        file.write(audit_line("list", resource="nodes")[:-10])
    assert [event.verb for event in log.read()] == ["get", "patch"]
    assert [event.verb for event in log.read(mark)] == ["patch"]
    trail = log.read()
    assert len(trail.by("alice")) == 2
    assert trail.by("bob") == ()
    assert [event.verb for event in trail.of("pods", "status")] == ["patch"]
    assert len(trail.of("pods")) == 2
    assert [event.name for event in trail.at("a", "x")] == ["x"]
    assert [event.verb for event in trail.verbs("get")] == ["get"]
    assert [event.verb for event in trail.writes()] == ["patch"]


def test_a_watch_counts_once_when_it_begins(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    lines = [audit_line("watch", stage=stage) for stage in ("ResponseStarted", "ResponseComplete")]
    log.path.write_text("".join(lines) + audit_line("get", uri="/x?fieldManager=me"))
    assert [(event.verb, event.field_manager) for event in log.read()] == [
        ("watch", ""),
        ("get", "me"),
    ]


def test_the_audit_policy_logs_at_the_level_that_was_asked_for() -> None:
    assert policy("RequestResponse")["rules"][-1]["level"] == "RequestResponse"


def test_the_guard_lets_loopback_pass_and_nothing_else() -> None:
    with loopback_only(), socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("localhost", port), timeout=5):
            pass
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
            datagram.sendto(b"x", ("127.0.0.1", port))
            with pytest.raises(OutsideLoopbackError):
                datagram.sendto(b"x", ("192.0.2.1", 53))
        with socket.socket() as stream, pytest.raises(OutsideLoopbackError, match=r"192\.0\.2\.1"):
            stream.connect(("192.0.2.1", 80))
        with pytest.raises(OutsideLoopbackError, match="look"):
            socket.gethostbyname("registry.invalid")
        assert socket.getaddrinfo("192.0.2.1", 80)
        assert socket.getaddrinfo(b"localhost", 80)
        assert socket.getaddrinfo(None, 80)


@pytest.mark.parametrize(
    ("event", "args", "passes"),
    [
        ("socket.connect", (None, ("127.0.0.1", 80)), True),
        ("socket.connect", (None, ("127.9.9.9", 80)), True),
        ("socket.connect", (None, ("::1", 80, 0, 0)), True),
        ("socket.connect", (None, ("localhost", 80)), True),
        ("socket.connect", (None, "/run/socket"), True),
        ("socket.connect", (None, ("192.0.2.1", 80)), False),
        ("socket.connect", (None, ("fe80::1%eth0", 80, 0, 0)), False),
        ("socket.connect", (None, ("registry.invalid", 80)), False),
        ("socket.sendto", (None, ("192.0.2.1", 80)), False),
        ("socket.sendmsg", (None, None), True),
        ("socket.bind", (None, ("0.0.0.0", 80)), True),
        ("socket.getaddrinfo", (None, 80), True),
        ("socket.getaddrinfo", (b"localhost", 80), True),
        ("socket.getaddrinfo", ("192.0.2.1", 80), True),
        ("socket.gethostbyname", ("registry.invalid",), False),
    ],
)
def test_the_guard_judges_each_event(event: str, args: tuple[object, ...], *, passes: bool) -> None:
    with loopback_only():
        if passes:
            loopback._hook(event, args)
        else:
            with pytest.raises(OutsideLoopbackError):
                loopback._hook(event, args)


def test_free_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_free_ports_gives_up_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr("flexinfer.envtest.ports.FIRST", taken)
        monkeypatch.setattr("flexinfer.envtest.ports.LAST", taken)
        with pytest.raises(OSError, match="no 1 free ports"):
            free_ports(1)


def test_stages_have_different_names_and_leave_local_images_alone() -> None:
    parsed = [json.loads(text) for text in stages.configuration().split("---\n")]
    names = [stage["metadata"]["name"] for stage in parsed]
    assert len(set(names)) == len(names)
    for stage in parsed:
        if stage["spec"]["resourceRef"]["kind"] == "Pod":
            assert "flexinfer.local/" in json.dumps(stage["spec"]["selector"])


def test_options_name_what_runs_and_refuse_no_time() -> None:
    assert Options(controllers=False, kwok=False).components == ("etcd", "kube-apiserver")
    assert len(Options().components) == 5
    with pytest.raises(ConfigurationError, match="start_timeout"):
        Options(start_timeout=0)


def test_without_a_control_plane_a_test_fails_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(control_plane): pass\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "flexinfer.envtest.pytest_plugin"),
            *("-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path / "test_it.py")),
        ],
        env={
            **os.environ,
            "PATH": str(tmp_path),
            "FLEXINFER_CACHE": str(tmp_path),
            "KUBEBUILDER_ASSETS": "",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1
    assert "install Go 1.26 or newer" in done.stdout
    assert "skipped" not in done.stdout
