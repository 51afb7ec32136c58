# SPDX-License-Identifier: Apache-2.0
"""What makes Models safe to operate: immutable fields, spreading, and conditions that tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flexinfer.envtest.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import Tree

    Run = Callable[..., AbstractAsyncContextManager[Manager]]

OLD_SELECTOR = {
    "app.kubernetes.io/name": "model",
    "flexinfer.ai/model": "veteran",
    "flexinfer.ai/backend": "vllm",
    "flexinfer.ai/gpu-group": "old-group",
}


async def test_ensure_service_preserves_cluster_ip(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("mover", models.gpu_spec(h100s, backend="ollama", source="ollama://mistral:7b"))
    async with controller():
        await models.reaches("mover", "BackendReady")
        before = models.get("services", "mover")["spec"]
        models.change("mover", {"backend": "vllm", "source": "HF://Qwen/Qwen2.5-7B-Instruct"})
        await models.reaches("mover", "BackendReady")
        after = await eventually(lambda: ports_of(models.get("services", "mover"), 8000))
    assert after["clusterIP"] == before["clusterIP"] != "None"
    assert after["clusterIPs"] == before["clusterIPs"]
    assert after["selector"]["flexinfer.ai/model"] == "mover"
    (port,) = after["ports"]
    assert (port["name"], port["port"], port["targetPort"]) == ("http", 8000, 8000)


def ports_of(service: Tree, number: int) -> Tree:
    spec: Tree = service["spec"]
    assert [port["port"] for port in spec["ports"]] == [number]
    return spec


async def test_ensure_deployment_preserves_selector_and_matches_template(
    models: Any, controller: Run, h100s: Tree
) -> None:
    model = models.create("veteran", models.gpu_spec(h100s))
    models.plane.admin.create(models.path("deployments"), old_deployment(model))
    old = await eventually(lambda: models.pods("veteran")[0]["metadata"]["name"])
    async with controller():
        await models.reaches("veteran", "BackendReady")
        assert old in [p["metadata"]["name"] for p in models.pods("veteran")]
        models.change("veteran", {"config": {"maxModelLen": 4096}})
        await eventually(lambda: old not in [p["metadata"]["name"] for p in models.pods("veteran")])
        deployment = models.get("deployments", "veteran")
        service = models.get("services", "veteran")
    assert deployment["spec"]["selector"] == {"matchLabels": OLD_SELECTOR}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert OLD_SELECTOR.items() <= labels.items()
    assert labels["app.kubernetes.io/managed-by"] == "flexinfer"
    for pod in models.pods("veteran"):
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    conditions = models.get("models", "veteran")["status"]["conditions"]
    assert "ImmutableFieldDrift" not in {c["type"] for c in conditions}


def old_deployment(model: Tree) -> Tree:
    """What an earlier version made: other selector labels, another field manager."""
    container = {"name": "model", "image": "vllm/vllm-openai:v0.6.0"}
    owner = {
        "apiVersion": model["apiVersion"],
        "kind": "Model",
        "name": "veteran",
        "uid": model["metadata"]["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "veteran", "ownerReferences": [owner]},
        "spec": {
            "selector": {"matchLabels": OLD_SELECTOR},
            "template": {
                "metadata": {"labels": OLD_SELECTOR},
                "spec": {"containers": [container]},
            },
        },
    }


async def test_ensure_deployment_multi_replica_includes_spreading_constraints(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("twins", models.gpu_spec(h100s, serverless={"minReplicas": 2}))
    async with controller():
        model = await models.reaches("twins", "BackendReady", text="2 of 2 replicas are ready")
        deployment = models.get("deployments", "twins")
        pods = models.pods("twins")
    selector = deployment["spec"]["selector"]
    template = deployment["spec"]["template"]["spec"]
    anti_affinity = template["affinity"]["podAntiAffinity"]
    (term,) = anti_affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term == {
        "labelSelector": selector,
        "matchLabelKeys": ["pod-template-hash"],
        "topologyKey": "kubernetes.io/hostname",
    }
    (spread,) = template["topologySpreadConstraints"]
    assert spread["labelSelector"] == selector
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    assert {pod["spec"]["runtimeClassName"] for pod in pods} == {"nvidia"}
    assert model["status"]["gpu"]["vendor"] == "NVIDIA"
    assert model["status"]["gpu"]["architecture"] == "sm_90"
    assert model["status"]["endpoint"] == f"http://twins.{models.namespace}.svc:8000"


async def test_set_model_condition(models: Any, controller: Run, cpus: Tree) -> None:
    models.create("flipper", models.cpu_spec(cpus, serverless={}))
    async with controller():
        await models.reaches("flipper", "WaitingForActivation", phase="Idle")
        idle = models.condition("flipper")
        models.change("flipper", {"litellm": {"aliases": ["flip"]}})
        same = await eventually(lambda: models.condition("flipper"))
        models.change("flipper", {"serverless": {"enabled": False}})
        await models.reaches("flipper", "BackendReady", phase="Ready")
        ready = models.condition("flipper")
        cached = models.condition("flipper", "Cached")
        schedulable = models.condition("flipper", "Schedulable")
    assert idle["status"] == same["status"] == "False"
    assert same["lastTransitionTime"] == idle["lastTransitionTime"]
    assert same["observedGeneration"] == idle["observedGeneration"] + 1
    assert (ready["status"], ready["observedGeneration"]) == ("True", 3)
    assert ready["lastTransitionTime"] >= idle["lastTransitionTime"]
    assert (cached["status"], cached["reason"]) == ("True", "NoCacheJob")
    assert (schedulable["status"], schedulable["reason"]) == ("True", "Schedulable")
