# SPDX-License-Identifier: Apache-2.0
"""The control plane of the tests is real, isolated, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.controlplane import ControlPlane, KubectlError, Options
from flexinfer.envtest.eventually import eventually_sync
from flexinfer.envtest.loopback import OutsideLoopbackError
from flexinfer.envtest.ports import free_ports
from flexinfer.envtest.processes import ProcessError
from flexinfer.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_the_audit_log_sees_a_write_with_its_user_and_verb(
    control_plane: ControlPlane, namespace: str
) -> None:
    mark = control_plane.audit_log.mark()
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    control_plane.admin.apply(
        f"{path}/x", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    )
    control_plane.admin.get(f"{path}/x")
    trail = control_plane.audit(mark).by("admin").of("configmaps").at(namespace)
    assert [(event.verb, event.code) for event in trail] == [("patch", 201), ("get", 200)]
    (write,) = trail.writes()
    assert write.field_manager == "envtest"
    assert control_plane.audit(control_plane.audit_log.mark()).by("admin") == ()


def test_a_service_account_has_the_rights_of_its_role_and_no_others(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    control_plane.kubectl("-n", namespace, "create", "serviceaccount", "reader")
    rights = ["--verb=get,list", "--resource=configmaps"]
    control_plane.kubectl("-n", namespace, "create", "role", "reader", *rights)
    subject = ["--role=reader", f"--serviceaccount={namespace}:reader"]
    control_plane.kubectl("-n", namespace, "create", "rolebinding", "reader", *subject)
    control_plane.write_kubeconfig(
        tmp_path / "config", token=control_plane.token_for(namespace, "reader")
    )
    as_reader = ["--kubeconfig", str(tmp_path / "config"), "-n", namespace]
    assert "kube-root-ca.crt" in control_plane.kubectl(
        *as_reader, "get", "configmaps", "-o", "name"
    )
    with pytest.raises(KubectlError, match="forbidden"):
        control_plane.kubectl(*as_reader, "get", "secrets")
    user = f"system:serviceaccount:{namespace}:reader"
    assert {event.code for event in control_plane.audit().by(user).of("secrets")} == {403}

    control_plane.write_service_account(tmp_path / "account", namespace, "reader")
    assert (tmp_path / "account" / "namespace").read_text() == namespace
    assert (tmp_path / "account" / "token").stat().st_mode & 0o777 == 0o600


def test_kubectl_answers_with_the_version_of_the_server(control_plane: ControlPlane) -> None:
    version = json.loads(control_plane.kubectl("version", "-o", "json"))["serverVersion"]
    assert (version["gitVersion"], version["major"], version["minor"]) == ("v1.37.2", "1", "37")


def test_a_client_certificate_is_accepted(control_plane: ControlPlane, tmp_path: Path) -> None:
    certificate, key = control_plane.authority.issue(
        ["client.invalid"], common_name="alice", organization="system:masters"
    )
    bare = {"apiVersion": "v1", "kind": "Config"}
    (tmp_path / "config").write_text(json.dumps(bare))
    answer = control_plane.kubectl(
        *("--kubeconfig", str(tmp_path / "config"), "--server", control_plane.url),
        *("--certificate-authority", str(control_plane.ca_file)),
        *("--client-certificate", str(certificate), "--client-key", str(key)),
        *("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"),
    )
    assert answer == "alice"


def test_nothing_connects_outside_loopback() -> None:
    with socket.socket() as outside, pytest.raises(OutsideLoopbackError, match=r"198\.18\.0\.1"):
        outside.connect(("198.18.0.1", 80))
    with pytest.raises(OutsideLoopbackError, match=r"registry\.invalid"):
        socket.getaddrinfo("registry.invalid", 443)


def test_planes_side_by_side_restart_and_are_apart(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    options = Options(controllers=False, kwok=False)
    with ControlPlane.start(tmp_path / "other", options=options) as other:
        assert other.url != control_plane.url
        body = {"metadata": {"name": "mine"}}
        other.admin.create("/api/v1/namespaces", body)
        with pytest.raises(NotFoundError):
            control_plane.admin.get("/api/v1/namespaces/mine")

        url = other.url
        other.restart("kube-apiserver")
        assert other.url == url
        assert other.admin.get("/api/v1/namespaces/mine")["metadata"]["name"] == "mine"
        assert other.compact() > 0

        other.processes.kill("kube-apiserver")
        other.processes.check()
        os.kill(_pid_of(other, "etcd"), signal.SIGKILL)
        with pytest.raises(ProcessError, match="etcd ended by itself"):
            eventually_sync(lambda: not _is_well(other))
    assert (tmp_path / "other" / "audit.log").exists()
    with pytest.raises(ConfigurationError, match="holds a control plane already"):
        ControlPlane.start(tmp_path / "other", options=options)


def test_a_watch_from_before_a_restart_gets_a_410(tmp_path: Path) -> None:
    options = Options(controllers=False, kwok=False)
    with ControlPlane.start(tmp_path / "plane", options=options) as plane:
        path = "/api/v1/namespaces/default/configmaps"
        old = plane.admin.get(path)["metadata"]["resourceVersion"]
        for number in range(3):
            plane.admin.create(path, {"metadata": {"name": f"x{number}"}})
        plane.restart("kube-apiserver")
        watch = plane.admin.get(path, watch="true", resourceVersion=old, timeoutSeconds="1")
        assert watch["type"] == "ERROR"
        assert watch["object"]["code"] == 410


def test_a_port_that_was_taken_meanwhile_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(controllers=False, kwok=False)
    tries = []

    def ports(count: int) -> list[int]:
        found = free_ports(count)
        tries.append(found)
        return [taken.getsockname()[1], *found[1:]] if len(tries) == 1 else found

    monkeypatch.setattr("flexinfer.envtest.controlplane.free_ports", ports)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        ControlPlane.start(tmp_path / "plane", options=options) as plane,
    ):
        assert len(tries) == 2
        plane.admin.get("/api/v1/namespaces/default")


def test_keep_envtest_leaves_the_control_plane_up_and_says_how_to_reach_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(control_plane): pass\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "flexinfer.envtest.pytest_plugin"),
            *("-o", "asyncio_default_fixture_loop_scope=function", "-W", "error"),
            *("-p", "no:cacheprovider", "--rootdir", str(tmp_path)),
            str(tmp_path / "test_it.py"),
        ],
        env={**os.environ, "KEEP_ENVTEST": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    told = re.search(r"KUBECONFIG=(\S+)\n.*kill (\d+)", done.stdout)
    assert told is not None, done.stdout + done.stderr
    try:
        assert done.returncode == 0
        kubectl = str(Path(sys.executable).parent / "kubectl")
        asked = subprocess.run(
            [kubectl, "--kubeconfig", told[1], "get", "--raw", "/readyz"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert asked.stdout == "ok"
    finally:
        os.kill(int(told[2]), signal.SIGTERM)
        folder = Path(told[1]).parent
        eventually_sync(lambda: _processes_naming(str(folder)) == [], within=30)
    eventually_sync(lambda: not folder.exists(), within=10)


def test_a_shell_gets_a_control_plane_until_ctrl_c() -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "flexinfer.envtest"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        with program.stdout:
            line = program.stdout.readline()
        path = Path(line.removeprefix("export KUBECONFIG=").strip())
        answer = subprocess.run(
            [
                "bash",
                "-ec",
                f'{line}"$0" get --raw /readyz',
                Path(sys.executable).with_name("kubectl"),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert answer.stdout == "ok"
    finally:
        program.send_signal(signal.SIGINT)
        assert program.wait(timeout=30) == 0
    assert not path.parent.exists()
    assert _processes_naming(str(path.parent)) == []


def test_a_shell_is_told_why_there_is_no_control_plane(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flexinfer.envtest"],
        env={"PATH": "", "FLEXINFER_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "install Go" in line


def test_an_impossible_flag_fails_the_start_with_the_log(tmp_path: Path) -> None:
    options = Options(controllers=False, kwok=False, apiserver_flags=("--no-such-flag",))
    with pytest.raises(ProcessError, match="unknown flag: --no-such-flag"):
        ControlPlane.start(tmp_path / "plane", options=options)
    assert _processes_naming(str(tmp_path)) == []


def test_a_killed_parent_leaves_no_process_behind(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from flexinfer.envtest.controlplane import ControlPlane\n"
        "plane = ControlPlane.start(Path(sys.argv[1]))\n"
        "print('up', flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "plane")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        with parent.stdout:
            assert parent.stdout.readline() == "up\n"
        assert len(_processes_naming(str(tmp_path))) >= 5
    finally:
        parent.kill()
        parent.wait()
    eventually_sync(lambda: _processes_naming(str(tmp_path)) == [], within=30)


def _is_well(plane: ControlPlane) -> bool:
    plane.processes.check()
    return True


def _pid_of(plane: ControlPlane, name: str) -> int:
    (pid,) = (
        pid
        for pid, line in _command_lines()
        if Path(line[0]).name == name and any(str(plane.layout.folder) in arg for arg in line)
    )
    return pid


def _processes_naming(text: str) -> list[str]:
    mine = os.getpid()
    return [
        " ".join(line)
        for pid, line in _command_lines()
        if pid != mine and any(text in arg for arg in line)
    ]


def _command_lines() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                content = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if content:
                yield int(entry.name), content.decode(errors="replace").split("\0")
