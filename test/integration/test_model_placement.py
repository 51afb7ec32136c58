# SPDX-License-Identifier: Apache-2.0
"""Nodes that come, go and change: what waits is placed at once, what runs is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flexinfer.envtest import volumes
from flexinfer.envtest.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import Tree

    Run = Callable[..., AbstractAsyncContextManager[Manager]]


def replica_sets(models: Any) -> dict[str, int]:
    path = f"/apis/apps/v1/namespaces/{models.namespace}/replicasets"
    items = models.plane.admin.get(path)["items"]
    return {item["metadata"]["name"]: item["spec"]["replicas"] for item in items}


async def test_a_cordon_under_a_ready_model_leaves_its_replica_set_as_it_is(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("calm", models.gpu_spec(h100s))
    async with controller():
        await models.reaches("calm", "BackendReady", phase="Ready")
        before = replica_sets(models)
        generation = models.get("deployments", "calm")["metadata"]["generation"]
        await models.cordon_zones("calm")
        await models.reaches("calm", "BackendReady", text="new pods have no place")
        models.plane.nodes.uncordon(f"{models.namespace}-zone-a")
        await eventually(lambda: models.condition("calm", "Schedulable")["status"] == "True")
    assert replica_sets(models) == before
    assert models.get("deployments", "calm")["metadata"]["generation"] == generation


async def test_point_28_a_node_that_comes_is_used_at_once(
    models: Any, controller: Run, control_plane: ControlPlane, namespace: str
) -> None:
    labels = {"test.flexinfer.ai/namespace": namespace}
    models.create("hopeful", models.gpu_spec(labels))
    async with controller():
        await models.reaches("hopeful", "NoMatchingNodes", phase="Failed")
        control_plane.nodes.add("nvidia-h100", f"{namespace}-late", zone="zone-a", labels=labels)
        try:
            await models.reaches("hopeful", "BackendReady", phase="Ready")
        finally:
            control_plane.nodes.remove(f"{namespace}-late")


async def test_nodes_of_two_vendors_are_ambiguous_until_the_spec_names_one(
    models: Any, controller: Run, h100s: Tree
) -> None:
    name = f"{models.namespace}-amd"
    models.plane.nodes.add("amd-mi300", name, zone="zone-a", labels=h100s)
    # A node that is still tainted as not Ready takes no pods, and so makes nothing ambiguous.
    await eventually(
        lambda: not models.plane.admin.get(f"/api/v1/nodes/{name}")["spec"].get("taints")
    )
    models.create("torn", models.gpu_spec(h100s, gpu={"vendor": "auto"}))
    try:
        async with controller():
            text = "Set spec.gpu.vendor to amd or nvidia"
            await models.reaches("torn", "AmbiguousGPUVendor", phase="Failed", text=text)
            models.change("torn", {"gpu": {"vendor": "amd"}})
            await models.reaches("torn", "BackendReady", phase="Ready")
        template = models.get("deployments", "torn")["spec"]["template"]["spec"]
        limits = template["containers"][0]["resources"]["limits"]
        assert limits == {"amd.com/gpu": "1"}
        assert "runtimeClassName" not in template
    finally:
        models.plane.nodes.remove(name)


async def test_point_29_replicas_whose_claim_one_node_mounts_share_that_node_and_say_so(
    models: Any, controller: Run, h100s: Tree
) -> None:
    volume = volumes.add(models.plane.admin, f"{models.namespace}-zone-b", size="50Gi")
    spec = models.gpu_spec(
        h100s,
        source="file:///models/llama",
        cache={"strategy": "SharedPVC"},
        serverless={"minReplicas": 2},
    )
    models.create("huddle", spec)
    try:
        async with controller():
            text = "2 of 2 replicas are ready; PersistentVolumeClaim huddle-cache has ReadWriteOnce"
            await models.reaches("huddle", "BackendReady", phase="Ready", text=text)
        nodes = {pod["spec"]["nodeName"] for pod in models.pods("huddle")}
        assert nodes == {f"{models.namespace}-zone-b"}
    finally:
        models.plane.admin.delete(f"/api/v1/persistentvolumes/{volume}")


async def test_a_second_replica_restarts_no_pod_and_goes_to_another_node(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("grower", models.gpu_spec(h100s))
    async with controller():
        await models.reaches("grower", "BackendReady", phase="Ready")
        (first,) = models.pods("grower")
        models.change("grower", {"serverless": {"minReplicas": 2}})
        await models.reaches("grower", "BackendReady", text="2 of 2 replicas are ready")
    pods = models.pods("grower")
    assert first["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in pods}
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2


async def test_a_pod_that_finds_no_node_for_half_a_minute_has_its_rule_relaxed(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("stuck", models.gpu_spec(h100s, serverless={"minReplicas": 2}))
    async with controller():
        await models.reaches("stuck", "BackendReady", text="2 of 2 replicas are ready")
        # One of the two nodes goes: with the rule of now the second replica has no place.
        gone = f"{models.namespace}-zone-b"
        models.plane.nodes.cordon(gone)
        (on_it,) = [p for p in models.pods("stuck") if p["spec"]["nodeName"] == gone]
        models.plane.admin.delete(models.path("pods", on_it["metadata"]["name"]))
        await models.reaches("stuck", "BackendReady", text="1 of 2 replicas are ready")
        text = "1 node fits 2 replicas"
        await models.reaches(
            "stuck", "BackendReady", text=f"2 of 2 replicas are ready; {text}", within=90
        )
    nodes = {pod["spec"]["nodeName"] for pod in models.pods("stuck")}
    assert nodes == {f"{models.namespace}-zone-a"}


async def test_an_older_selector_and_cluster_ip_upgrade_without_a_restart(
    models: Any, controller: Run, h100s: Tree
) -> None:
    admin = models.plane.admin
    model = models.create("old", models.gpu_spec(h100s))
    async with controller():
        await models.reaches("old", "BackendReady", phase="Ready")
    admin.delete(models.path("deployments", "old"))
    admin.delete(models.path("services", "old"))
    await eventually(lambda: not models.pods("old"))
    deployment, service = as_older(model)
    admin.create(models.path("deployments"), deployment)
    address = admin.create(models.path("services"), service)["spec"]["clusterIP"]
    await eventually(lambda: is_ready(models.pods("old")))
    (pod,) = models.pods("old")
    async with controller():
        await eventually(lambda: has_our_record(models.get("deployments", "old")))
        await models.reaches("old", "BackendReady", phase="Ready")
        assert [p["metadata"]["uid"] for p in models.pods("old")] == [pod["metadata"]["uid"]]
        service_now = models.get("services", "old")["spec"]
        assert service_now["clusterIP"] == address
        assert service_now["selector"] == OLD_LABELS
        # A change of the spec is the first reason to make new pods, by the rules of now.
        models.change("old", {"config": {"maxModelLen": 4096}})
        await eventually(lambda: pod["metadata"]["uid"] not in uids(models.pods("old")))
        await models.reaches("old", "BackendReady", phase="Ready")
    live = models.get("deployments", "old")["spec"]
    assert live["selector"] == {"matchLabels": OLD_LABELS}
    assert OLD_LABELS.items() <= live["template"]["metadata"]["labels"].items()


OLD_LABELS = {
    "app.kubernetes.io/name": "model",
    "app.kubernetes.io/instance": "old",
    "app.kubernetes.io/managed-by": "flexinfer",
    "flexinfer.ai/model": "old",
    "flexinfer.ai/backend": "vllm",
    "flexinfer.ai/gpu-group": "desk",
}


def as_older(model: Tree) -> tuple[Tree, Tree]:
    """What an older version made of the model: more labels in the selector, other pods."""
    owner = {
        "apiVersion": model["apiVersion"],
        "kind": "Model",
        "name": "old",
        "uid": model["metadata"]["uid"],
        "controller": True,
    }
    container = {"name": "model", "image": "vllm/vllm-openai:v0.6.0", "args": ["--port=8000"]}
    metadata = {"name": "old", "labels": OLD_LABELS, "ownerReferences": [owner]}
    template = {"metadata": {"labels": OLD_LABELS}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": OLD_LABELS}, "template": template}
    ports = [{"name": "http", "port": 8000, "targetPort": 8000}]
    service = {"metadata": metadata, "spec": {"selector": OLD_LABELS, "ports": ports}}
    return {"metadata": metadata, "spec": spec}, service


def uids(pods: list[Tree]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def has_our_record(deployment: Tree) -> bool:
    return "flexinfer.ai/placement" in deployment["metadata"].get("annotations", {})


def is_ready(pods: list[Tree]) -> bool:
    conditions = [c for pod in pods for c in pod.get("status", {}).get("conditions", ())]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
