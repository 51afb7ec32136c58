# SPDX-License-Identifier: Apache-2.0
"""The control plane of the tests is real, isolated, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flexinfer.envtest.behaviour import (
    BEHAVIOUR,
    COMPLETE_AFTER,
    EXIT_CODE,
    MESSAGE,
    READY_AFTER,
    Behaviour,
)
from flexinfer.envtest.controlplane import ControlPlane, KubectlError, Options
from flexinfer.envtest.eventually import eventually_sync
from flexinfer.envtest.loopback import OutsideLoopbackError
from flexinfer.envtest.ports import free_ports
from flexinfer.envtest.processes import ProcessError
from flexinfer.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flexinfer.meta.envelope import Tree


@contextmanager
def nodes(plane: ControlPlane, *profiles: str, zone: str = "zone-a") -> Iterator[list[str]]:
    """Machines for one test."""
    names: list[str] = []
    try:
        names.extend(plane.add_node(profile, zone=zone) for profile in profiles)
        yield names
    finally:
        for name in names:
            plane.nodes.remove(name)


def pod_template(*, annotations: Mapping[str, str] | None = None, **spec: Any) -> Tree:
    container: Tree = {"name": "main", "image": "registry.invalid/main:1"}
    container.update(spec.pop("container", {}))
    return {
        "metadata": {"labels": {"app": "x"}, "annotations": dict(annotations or {})},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def create_deployment(
    plane: ControlPlane, namespace: str, *, replicas: int = 1, **template: Any
) -> None:
    plane.admin.create(
        f"/apis/apps/v1/namespaces/{namespace}/deployments",
        {
            "metadata": {"name": "x"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "x"}},
                "template": pod_template(**template),
            },
        },
    )


def create_job(plane: ControlPlane, namespace: str, **template: Any) -> None:
    plane.admin.create(
        f"/apis/batch/v1/namespaces/{namespace}/jobs",
        {
            "metadata": {"name": "x"},
            "spec": {
                "backoffLimit": 0,
                "template": pod_template(restartPolicy="Never", **template),
            },
        },
    )


def pods(plane: ControlPlane, namespace: str) -> list[Tree]:
    found: list[Tree] = plane.admin.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def the_pod(plane: ControlPlane, namespace: str) -> Tree:
    found = pods(plane, namespace)
    assert len(found) == 1
    return found[0]


def condition(body: Tree, kind: str) -> str | None:
    found: list[Tree] = body.get("status", {}).get("conditions", [])
    return next((entry["status"] for entry in found if entry["type"] == kind), None)


def waiting_reason(pod: Tree) -> str:
    return str(pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"])


def wait_ready(plane: ControlPlane, namespace: str, count: int) -> list[Tree]:
    def are_ready() -> list[Tree]:
        found = pods(plane, namespace)
        assert [condition(pod, "Ready") for pod in found] == ["True"] * count
        return found

    return eventually_sync(are_ready)


def test_a_deployment_becomes_ready_on_the_nodes_that_have_its_gpus(
    control_plane: ControlPlane, namespace: str
) -> None:
    with nodes(control_plane, "nvidia-h100", "cpu", "amd-mi300") as (gpu_node, _, _):
        container = {"resources": {"limits": {"nvidia.com/gpu": "4"}}}
        create_deployment(
            control_plane, namespace, replicas=2, container=container, runtimeClassName="nvidia"
        )
        found = wait_ready(control_plane, namespace, 2)
        assert {pod["spec"]["nodeName"] for pod in found} == {gpu_node}
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/x"
        eventually_sync(lambda: control_plane.admin.get(path)["status"]["readyReplicas"] == 2)
        assert all(pod["status"]["podIP"].startswith(("198.18.", "198.19.")) for pod in found)


def test_gpus_that_nobody_has_leave_a_pod_unschedulable(
    control_plane: ControlPlane, namespace: str
) -> None:
    with nodes(control_plane, "nvidia-h100"):
        create_deployment(
            control_plane, namespace, container={"resources": {"limits": {"nvidia.com/gpu": "9"}}}
        )
        eventually_sync(
            lambda: condition(the_pod(control_plane, namespace), "PodScheduled") == "False"
        )


def test_required_anti_affinity_puts_replicas_on_different_nodes(
    control_plane: ControlPlane, namespace: str
) -> None:
    term = {
        "labelSelector": {"matchLabels": {"app": "x"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    with nodes(control_plane, "nvidia-h100", "nvidia-a100") as names:
        create_deployment(control_plane, namespace, replicas=2, affinity=affinity)
        found = wait_ready(control_plane, namespace, 2)
        assert {pod["spec"]["nodeName"] for pod in found} == set(names)


def test_owned_objects_are_collected_with_their_owner(
    control_plane: ControlPlane, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    owner = control_plane.admin.create(path, {"metadata": {"name": "owner"}})
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
    }
    control_plane.admin.create(
        path, {"metadata": {"name": "child", "ownerReferences": [reference]}}
    )
    control_plane.admin.delete(f"{path}/owner")

    def is_gone() -> bool:
        try:
            control_plane.admin.get(f"{path}/child")
        except NotFoundError:
            return True
        return False

    eventually_sync(is_gone)


def test_a_claim_binds_to_a_local_volume_and_takes_its_pod_along(
    control_plane: ControlPlane, namespace: str
) -> None:
    with nodes(control_plane, "cpu", "cpu") as (_, with_disk):
        volume = control_plane.add_volume(with_disk, size="10Gi")
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "5Gi"}},
        }
        control_plane.admin.create(claims, {"metadata": {"name": "data"}, "spec": spec})
        mount = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
        create_deployment(control_plane, namespace, volumes=[mount])
        (pod,) = wait_ready(control_plane, namespace, 1)
        assert pod["spec"]["nodeName"] == with_disk
        claim = control_plane.admin.get(f"{claims}/data")
        assert claim["status"]["phase"] == "Bound"
        assert claim["spec"]["volumeName"] == volume
        control_plane.admin.delete(f"/api/v1/persistentvolumes/{volume}")


def test_an_immediate_claim_binds_without_a_pod(
    control_plane: ControlPlane, namespace: str
) -> None:
    with nodes(control_plane, "cpu") as (node,):
        volume = control_plane.add_volume(node, size="10Gi", storage_class="local-immediate")
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local-immediate",
            "resources": {"requests": {"storage": "5Gi"}},
        }
        control_plane.admin.create(claims, {"metadata": {"name": "data"}, "spec": spec})
        eventually_sync(
            lambda: control_plane.admin.get(f"{claims}/data")["status"]["phase"] == "Bound"
        )
        control_plane.admin.delete(f"/api/v1/persistentvolumes/{volume}")


def test_a_crash_loop_and_its_recovery(control_plane: ControlPlane, namespace: str) -> None:
    annotations = {BEHAVIOUR: Behaviour.CRASH_LOOP, EXIT_CODE: "137", MESSAGE: "out of memory"}
    with nodes(control_plane, "cpu"):
        create_deployment(control_plane, namespace, annotations=annotations)

        def crashes() -> Tree:
            pod = the_pod(control_plane, namespace)
            assert waiting_reason(pod) == "CrashLoopBackOff"
            return pod

        pod = eventually_sync(crashes)
        assert condition(pod, "Ready") == "False"
        (status,) = pod["status"]["containerStatuses"]
        assert status["restartCount"] >= 1
        assert status["lastState"]["terminated"]["exitCode"] == 137
        assert status["lastState"]["terminated"]["message"] == "out of memory"
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
        control_plane.admin.merge(path, {"metadata": {"annotations": {BEHAVIOUR: None}}})
        wait_ready(control_plane, namespace, 1)


def test_an_image_that_cannot_be_pulled(control_plane: ControlPlane, namespace: str) -> None:
    with nodes(control_plane, "cpu"):
        create_deployment(
            control_plane, namespace, annotations={BEHAVIOUR: Behaviour.IMAGE_PULL_FAILURE}
        )
        eventually_sync(
            lambda: waiting_reason(the_pod(control_plane, namespace)) == "ImagePullBackOff"
        )
        pod = the_pod(control_plane, namespace)
        assert pod["status"]["phase"] == "Pending"
        message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
        assert "registry.invalid/main:1" in message


def test_never_ready_and_ready_after_a_delay(control_plane: ControlPlane, namespace: str) -> None:
    with nodes(control_plane, "cpu"):
        create_deployment(control_plane, namespace, annotations={READY_AFTER: "1s"})
        eventually_sync(lambda: the_pod(control_plane, namespace)["status"]["phase"] == "Running")
        assert condition(the_pod(control_plane, namespace), "Ready") == "False"
        (pod,) = wait_ready(control_plane, namespace, 1)
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
        annotations = {BEHAVIOUR: Behaviour.NEVER_READY}
        control_plane.admin.merge(path, {"metadata": {"annotations": annotations}})
        eventually_sync(lambda: condition(the_pod(control_plane, namespace), "Ready") == "False")


def test_a_job_completes_with_its_message(control_plane: ControlPlane, namespace: str) -> None:
    with nodes(control_plane, "cpu"):
        annotations = {COMPLETE_AFTER: "200ms", MESSAGE: "42 files"}
        create_job(control_plane, namespace, annotations=annotations)
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs/x"
        eventually_sync(lambda: condition(control_plane.admin.get(path), "Complete") == "True")
        state = the_pod(control_plane, namespace)["status"]["containerStatuses"][0]["state"]
        assert state["terminated"]["message"] == "42 files"
        assert state["terminated"]["exitCode"] == 0


def test_a_job_fails_with_its_exit_code(control_plane: ControlPlane, namespace: str) -> None:
    with nodes(control_plane, "cpu"):
        annotations = {BEHAVIOUR: Behaviour.FAIL, EXIT_CODE: "3"}
        create_job(control_plane, namespace, annotations=annotations)
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs/x"
        eventually_sync(lambda: condition(control_plane.admin.get(path), "Failed") == "True")
        pod = the_pod(control_plane, namespace)
        assert pod["status"]["phase"] == "Failed"
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_images_of_this_machine_are_left_to_it(control_plane: ControlPlane, namespace: str) -> None:
    with nodes(control_plane, "cpu"):
        create_deployment(control_plane, namespace, container={"image": "flexinfer.local/sim:1"})
        eventually_sync(
            lambda: condition(the_pod(control_plane, namespace), "PodScheduled") == "True"
        )
        control_plane.admin.create(
            f"/api/v1/namespaces/{namespace}/pods",
            {"metadata": {"name": "after"}, "spec": pod_template()["spec"]},
        )

        def other_runs() -> Tree:
            by_name = {pod["metadata"]["name"]: pod for pod in pods(control_plane, namespace)}
            assert by_name.pop("after")["status"]["phase"] == "Running"
            (local,) = by_name.values()
            return local

        assert eventually_sync(other_runs)["status"]["phase"] == "Pending"


def test_nodes_can_be_cordoned_and_broken_and_repaired(
    control_plane: ControlPlane, namespace: str
) -> None:
    with nodes(control_plane, "cpu") as (node,):
        control_plane.nodes.cordon(node)
        create_deployment(control_plane, namespace)
        eventually_sync(
            lambda: condition(the_pod(control_plane, namespace), "PodScheduled") == "False"
        )
        control_plane.nodes.uncordon(node)
        wait_ready(control_plane, namespace, 1)

        control_plane.nodes.make_not_ready(node)
        path = f"/api/v1/nodes/{node}"

        def is_tainted() -> bool:
            taints = control_plane.admin.get(path)["spec"].get("taints", [])
            return "node.kubernetes.io/not-ready" in {taint["key"] for taint in taints}

        eventually_sync(is_tainted)
        scale = {"spec": {"replicas": 2}}
        control_plane.admin.merge(f"/apis/apps/v1/namespaces/{namespace}/deployments/x", scale)

        def one_waits() -> None:
            scheduled = {condition(pod, "PodScheduled") for pod in pods(control_plane, namespace)}
            assert scheduled == {"True", "False"}

        eventually_sync(one_waits)
        # It sticks, although kwok goes on making other nodes Ready.
        with nodes(control_plane, "nvidia-h100") as (other,):
            control_plane.nodes.cordon(other)
            assert condition(control_plane.admin.get(path), "Ready") == "False"

        control_plane.nodes.make_ready(node)
        wait_ready(control_plane, namespace, 2)
        eventually_sync(lambda: not is_tainted())


def test_an_unknown_profile_is_refused_with_the_known_ones(control_plane: ControlPlane) -> None:
    with pytest.raises(ConfigurationError, match="nvidia-h100, nvidia-a100, amd-mi300, cpu"):
        control_plane.add_node("tpu")


def test_gpu_nodes_carry_the_labels_of_their_vendors(control_plane: ControlPlane) -> None:
    with nodes(control_plane, "nvidia-h100", "amd-mi300", zone="zone-b") as names:
        h100, mi300 = (control_plane.admin.get(f"/api/v1/nodes/{name}") for name in names)
        labels = h100["metadata"]["labels"]
        assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
        assert labels["nvidia.com/gpu.compute.major"] == "9"
        assert labels["topology.kubernetes.io/zone"] == "zone-b"
        assert h100["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        assert mi300["metadata"]["labels"]["gpu.amd.com/gpu-architecture"] == "gfx942"
        assert mi300["status"]["capacity"]["amd.com/gpu"] == "8"


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
        shutil.rmtree(folder)


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
