# SPDX-License-Identifier: Apache-2.0
"""Troubles of pods, volumes and nodes reach Ready's message in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flexinfer.envtest.behaviour import BEHAVIOUR, EXIT_CODE, MESSAGE, Behaviour
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import Tree

    Run = Callable[..., AbstractAsyncContextManager[Manager]]

MISBEHAVIOUR = {
    Behaviour.CRASH_LOOP: ("Failed", "CrashLoopBackOff", "ended with exit code 137"),
    Behaviour.IMAGE_PULL_FAILURE: ("Failed", "ImagePullFailed", "cannot be pulled"),
    Behaviour.NEVER_READY: ("Loading", "StartingBackend", "waiting up to 60 s for /health"),
}


@pytest.mark.parametrize("behaviour", MISBEHAVIOUR)
async def test_what_a_pod_does_reaches_ready(
    models: Any, controller: Run, cpus: Tree, behaviour: Behaviour
) -> None:
    phase, reason, text = MISBEHAVIOUR[behaviour]
    models.create("sick", models.cpu_spec(cpus))
    async with controller():
        await eventually(lambda: models.get("deployments", "sick"))
        annotations = {BEHAVIOUR: behaviour, EXIT_CODE: "137", MESSAGE: "out of memory"}
        template = {"metadata": {"annotations": annotations}}
        models.plane.admin.merge(
            models.path("deployments", "sick"),
            {
                "spec": {
                    "strategy": {"type": "Recreate", "rollingUpdate": None},
                    "template": template,
                }
            },
        )
        await models.reaches("sick", reason, phase=phase, text=text, within=40)
        if behaviour is Behaviour.NEVER_READY:
            status = await eventually(lambda: checking(models.get("models", "sick")))
            assert status["loadingProgressAt"]


def checking(model: Tree) -> Tree:
    status: Tree = model["status"]
    assert status["loadingSubstage"] == "HealthCheckPending"
    return status


async def test_a_third_replica_shares_a_node_where_only_two_fit(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("triplets", models.gpu_spec(h100s, serverless={"minReplicas": 3}))
    async with controller():
        text = "3 of 3 replicas are ready; 2 nodes fit 3 replicas"
        await models.reaches("triplets", "BackendReady", phase="Ready", text=text)
    nodes = [pod["spec"]["nodeName"] for pod in models.pods("triplets")]
    assert len(nodes) == 3
    assert len(set(nodes)) == 2


async def test_a_webhook_that_does_not_answer_is_named(
    models: Any, controller: Run, cpus: Tree
) -> None:
    admin, path = models.plane.admin, "/apis/admissionregistration.k8s.io/v1"
    path = f"{path}/validatingwebhookconfigurations"
    serves = models.create("serves", models.cpu_spec(cpus))
    async with controller():
        await models.reaches("serves", "BackendReady")
        admin.create(path, silent_webhook(serves["metadata"]["namespace"]))
        try:
            models.create("starts", models.cpu_spec(cpus))
            text = 'failed calling webhook "silent.example.com"'
            await models.reaches("starts", "ApplyFailed", phase="Pending", text=text)
            models.change("serves", {"config": {"contextSize": 4096}})
            await models.reaches("serves", "BackendReady", phase="Ready", text=text)
        finally:
            admin.delete(f"{path}/silent")
        await models.reaches("starts", "BackendReady", text="1 of 1 replicas are ready")


def silent_webhook(namespace: str) -> Tree:
    """Nobody listens at its address, so that no Deployment of the namespace can be written."""
    (port,) = free_ports(1)
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["deployments"],
    }
    webhook = {
        "name": "silent.example.com",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
        "namespaceSelector": selector,
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1"}
    kind = {"kind": "ValidatingWebhookConfiguration", "metadata": {"name": "silent"}}
    return {**head, **kind, "webhooks": [webhook]}


async def test_replicas_on_every_node_there_is_take_a_change(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("full", models.cpu_spec(h100s, serverless={"minReplicas": 2}))
    async with controller():
        await models.reaches("full", "BackendReady", text="2 of 2 replicas are ready")
        before = {pod["metadata"]["name"] for pod in models.pods("full")}
        models.change("full", {"config": {"contextSize": 4096}})

        def is_changed() -> None:
            pods = models.pods("full")
            assert before.isdisjoint(pod["metadata"]["name"] for pod in pods)
            assert models.condition("full")["message"] == "2 of 2 replicas are ready"

        await eventually(is_changed, within=40)


async def test_a_pod_too_large_for_every_node_is_unschedulable(
    models: Any, controller: Run, cpus: Tree
) -> None:
    resources = {"requests": {"cpu": "1000"}}
    models.create("giant", models.cpu_spec(cpus, resources=resources))
    async with controller():
        await models.reaches("giant", "Unschedulable", phase="Pending", text="Insufficient cpu")


async def test_a_missing_runtime_class_is_named(models: Any, controller: Run, h100s: Tree) -> None:
    admin = models.plane.admin
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    kept = admin.get(f"{path}/nvidia")
    admin.delete(f"{path}/nvidia")
    try:
        models.create("classless", models.gpu_spec(h100s))
        async with controller():
            await models.reaches(
                "classless",
                "ReplicaFailure",
                phase="Failed",
                text='RuntimeClass "nvidia" not found',
            )
    finally:
        body = {k: kept[k] for k in ("apiVersion", "kind", "handler")}
        admin.create(path, body | {"metadata": {"name": "nvidia"}})


async def test_cordoned_nodes_take_no_new_pods_and_end_no_service(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("steady", models.gpu_spec(h100s))
    async with controller():
        await models.reaches("steady", "BackendReady", phase="Ready")
        await models.cordon_zones("steady")
        ready = models.condition("steady")
        assert ready["status"] == "True"
        assert "cordoned" in ready["message"]
        models.change("steady", {"gpu": {"count": 2}})
        await models.reaches("steady", "NoMatchingNodes", phase="Failed", text="2 cordoned")


@pytest.mark.parametrize(
    ("plural", "number"),
    [
        ("services", "spec/ports/0/port"),
        ("deployments", "spec/template/spec/containers/0/ports/0/containerPort"),
    ],
)
async def test_a_port_that_somebody_changed_is_put_back(
    models: Any, controller: Run, h100s: Tree, plural: str, number: str
) -> None:
    models.create("ported", models.gpu_spec(h100s))
    async with controller():
        await models.reaches("ported", "BackendReady")
        path = models.path(plural, "ported")
        models.plane.admin.request(
            "PATCH",
            path,
            body=[{"op": "replace", "path": f"/{number}", "value": 9999}],
            content_type="application/json-patch+json",
        )
        *way, _, last = number.split("/")

        def ports() -> list[int]:
            found: Any = models.plane.admin.get(path)
            for field in way:
                found = found[int(field) if field.isdecimal() else field]
            return [port[last] for port in found]

        await eventually(lambda: ports() == [8000])
        models.change("ported", {"litellm": {"aliases": ["x"]}})
        await models.reaches("ported", "BackendReady")
        models.change("ported", {"backend": "ollama"})
        await eventually(lambda: ports() == [11434])
