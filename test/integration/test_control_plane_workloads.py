# SPDX-License-Identifier: Apache-2.0
"""Pods, Jobs, claims and nodes on the control plane of the tests go the way they would for real."""

from __future__ import annotations

from contextlib import contextmanager
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
from flexinfer.envtest.eventually import eventually_sync
from flexinfer.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from flexinfer.envtest.controlplane import ControlPlane
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
