# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a Model is said where the user looks: by kubectl apply, or by Ready."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from flexinfer.envtest.eventually import eventually, eventually_sync
from flexinfer.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import Tree

    Run = Callable[..., AbstractAsyncContextManager[Manager]]

GOOD: Tree = {
    "backend": "llamacpp",
    "source": "HF://Qwen/Qwen2.5-0.5B-Instruct-GGUF",
    "config": {"ggufFile": "qwen2.5-0.5b-instruct-q4_k_m.gguf"},
    "cache": {"strategy": "None"},
    "serverless": {"enabled": False},
}
CPU: Tree = {"vendor": "cpu"}

REFUSED = {
    "an unknown source scheme": (
        {"source": "s3://bucket/model"},
        "spec.source must be HF://org/name, ollama://name:tag, file:///path or pvc://claim/path",
    ),
    "a source that climbs": ({"source": "pvc://claim/../other"}, "without '..'"),
    "a pattern that climbs": (
        {"cache": {"allowPatterns": ["*.json", "../*"]}},
        "patterns of spec.cache name files inside the source; write them without '..'",
    ),
    "GPU limits": (
        {"resources": {"limits": {"nvidia.com/gpu": 1}}},
        "spec.resources.limits must not name nvidia.com/gpu, amd.com/gpu, gpu.intel.com/i915",
    ),
    "GPU requests": (
        {"resources": {"requests": {"amd.com/gpu": "1"}}},
        "spec.resources.requests must not name nvidia.com/gpu",
    ),
    "a negative amount": ({"resources": {"limits": {"cpu": "-1"}}}, "spec.resources.limits.cpu"),
    "an absurd amount": ({"resources": {"limits": {"cpu": "1e100"}}}, "spec.resources.limits.cpu"),
    "an endless amount": (
        {"resources": {"requests": {"memory": "9" * 129}}},
        "spec.resources.requests.memory: Too long",
    ),
    "a negative size": ({"cache": {"size": "-5Gi"}}, "spec.cache.size"),
    "a size of nothing": (
        {"cache": {"size": "0Gi"}},
        "spec.cache.size must be more than 0; write how much the weights need",
    ),
    "a size of 0": ({"cache": {"size": 0}}, "spec.cache.size must be more than 0"),
    "a class that none can be": (
        {"cache": {"storageClass": "Fast Disk"}},
        "spec.cache.storageClass must be the name of a StorageClass",
    ),
    "a claim that none can be": ({"cache": {"pvcName": "a..b"}}, "spec.cache.pvcName"),
    "a directory that climbs": (
        {"cache": {"strategy": "Local", "hostPath": "/srv/../etc"}},
        "write its whole path, from / on and without '..'",
    ),
    "a directory of nowhere": (
        {"cache": {"hostPath": "models"}},
        "spec.cache.hostPath must be a directory of the node",
    ),
    "a toleration of what is no taint": (
        {"tolerations": [{"key": "no taint"}]},
        "a key in spec.tolerations must be that of a taint",
    ),
    "count with vendor cpu": (
        {"gpu": {**CPU, "count": 1}},
        "spec.gpu.count must be absent when spec.gpu.vendor is cpu",
    ),
    "VRAM with vendor cpu": (
        {"gpu": {**CPU, "vramEstimateMB": 100}},
        "spec.gpu.vramEstimateMB must be absent when spec.gpu.vendor is cpu",
    ),
    "a group with vendor cpu": (
        {"gpu": {**CPU, "shared": "team"}},
        "spec.gpu.shared must be absent when spec.gpu.vendor is cpu",
    ),
    "nine GPUs": ({"gpu": {"count": 9}}, "spec.gpu.count"),
    "a digest that is none": ({"imageDigest": "sha256:abc"}, "spec.imageDigest"),
    "a digest of another kind": (
        {"imageDigest": f"sha512:{'a' * 128}"},
        "spec.imageDigest must be a SHA-256 digest: 64 digits 0-9 and a-f",
    ),
    "a digest in capitals": (
        {"imageDigest": f"sha256:{'A' * 64}"},
        "spec.imageDigest must be a SHA-256 digest: 64 digits 0-9 and a-f",
    ),
    "memory for a claim": (
        {"source": "pvc://weights/llama.gguf", "cache": {"strategy": "Memory"}},
        "spec.cache.strategy must not be Memory with a pvc:// source",
    ),
    "a claim that nobody mounts": (
        {"cache": {"strategy": "Local", "pvcName": "weights"}},
        "spec.cache.pvcName needs spec.cache.strategy SharedPVC",
    ),
    "an unknown strategy": ({"cache": {"strategy": "Disk"}}, "spec.cache.strategy"),
    "a toleration of nothing": (
        {"tolerations": [{"effect": "NoSchedule"}]},
        "spec.tolerations needs a key, unless its operator is Exists",
    ),
    "a toleration of any value but one": (
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        "remove value or use operator Equal",
    ),
    "seconds without eviction": (
        {"tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5}]},
        "set that effect or remove tolerationSeconds",
    ),
    "two aliases in one": ({"litellm": {"aliases": ["a,b"]}}, "spec.litellm.aliases[0]"),
    "a wrong type": ({"serverless": {"minReplicas": "two"}}, "spec.serverless.minReplicas"),
    "a duration that is none": (
        {"serverless": {"idleTimeout": "5d"}},
        "must be a duration of zero or more, such as 90s, 5m or 1h30m",
    ),
    "a negative duration": (
        {"serverless": {"coldStartTimeout": "-5m"}},
        "must be a duration of zero or more, such as 90s, 5m or 1h30m",
    ),
}


@pytest.mark.parametrize(("spec", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_the_api_server_refuses(models: Any, spec: Tree, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        models.create("refused", GOOD | spec)
    assert caught.value.status == 422
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["a" * 49, "dotted.name", "1st"])
def test_the_api_server_refuses_a_name_that_no_service_can_have(models: Any, name: str) -> None:
    with pytest.raises(ApiError) as caught:
        models.create(name, GOOD)
    assert "metadata.name must be a DNS-1035 label" in str(caught.value)
    assert "at most 48 characters" in str(caught.value)


def test_the_longest_name_is_accepted(models: Any) -> None:
    assert models.create("a" * 48, GOOD)["metadata"]["name"] == "a" * 48


@pytest.mark.parametrize(
    "spec",
    [
        {"cache": {"size": "1m", "storageClass": "", "hostPath": "/srv/a..b"}},
        {"cache": {"size": 1, "storageClass": "fast.example.com", "pvcName": "a.b"}},
        {"tolerations": [{"key": f"example.com/{'a' * 63}"}, {"operator": "Exists"}]},
    ],
)
def test_the_api_server_takes_what_is_just_right(models: Any, spec: Tree) -> None:
    assert models.create("right", GOOD | spec)["metadata"]["name"] == "right"


def test_an_unknown_field_is_refused_strictly_and_dropped_leniently(models: Any) -> None:
    admin, path = models.plane.admin, models.path("models")
    body = {
        "apiVersion": "ai.flexinfer/v1alpha2",
        "kind": "Model",
        "metadata": {"name": "typo"},
        "spec": GOOD | {"nodeSelektor": {"a": "b"}},
    }
    with pytest.raises(ApiError) as caught:
        admin.request("POST", path, params={"fieldValidation": "Strict"}, body=body)
    assert 'unknown field "spec.nodeSelektor"' in str(caught.value)
    created = admin.request("POST", path, params={"fieldValidation": "Ignore"}, body=body)
    assert "nodeSelektor" not in created["spec"]


def test_defaults_are_filled_in(models: Any) -> None:
    spec = models.create("defaults", GOOD | {"gpu": {}, "cache": {}, "litellm": {}})["spec"]
    assert spec["gpu"] == {"vendor": "auto", "priority": 100, "forcePromotion": False}
    assert spec["serverless"]["minReplicas"] == 0
    assert spec["serverless"]["coldStartTimeout"] in {"60s", "1m0s"}
    assert "storageClass" not in spec["cache"]
    assert spec["litellm"]["enabled"] is True
    assert "imagePullPolicy" not in spec


REPORTED = {
    "an unknown backend": (
        {"backend": "tensorrt"},
        "BackendUnsupported",
        "spec.backend 'tensorrt' is unknown; use comfyui, diffusers, llamacpp, mlc-llm, ollama",
    ),
    "a backend without GPUs": (
        {"backend": "vllm", "config": {}},
        "BackendUnsupported",
        "backend vllm does not run on CPUs and spec.gpu asks for no GPU",
    ),
    "a wrong type in config": (
        {"config": {"ggufFile": "model.gguf", "contextSize": "4096"}},
        "InvalidSpec",
        "spec.config.contextSize must be an integer, not the string '4096'",
    ),
    "a source that the backend cannot load": (
        {"source": "ollama://mistral:7b"},
        "InvalidSpec",
        "backend llamacpp cannot load ollama:// sources",
    ),
    "no GGUF file": (
        {"config": {}},
        "InvalidSpec",
        "set spec.config.ggufFile to a file of the source whose name ends in .gguf",
    ),
    "a node that nobody has": (
        {"gpu": {"vendor": "nvidia"}, "nodeSelector": {"gpu": "none-such"}},
        "NoMatchingNodes",
        "with the labels gpu=none-such that offers 1 nvidia.com/gpu",
    ),
}


@pytest.mark.parametrize(("spec", "reason", "words"), REPORTED.values(), ids=REPORTED.keys())
async def test_ready_says(
    models: Any, controller: Run, spec: Tree, reason: str, words: str
) -> None:
    models.create("reported", {**GOOD, **spec})
    async with controller():
        model = await models.reaches("reported", reason, phase="Failed", text=words)
    assert models.condition("reported")["status"] == "False"
    assert models.condition("reported", "Schedulable")["reason"] == reason
    assert model["status"]["observedGeneration"] == 1
    with pytest.raises(ApiError):
        models.get("services", "reported")


async def test_a_model_of_absurd_depth_harms_nobody(models: Any, controller: Run) -> None:
    kubectl, namespace = models.plane.kubectl, f"--namespace={models.namespace}"
    head = {"apiVersion": "ai.flexinfer/v1alpha2", "kind": "Model", "metadata": {"name": "deep"}}
    spec = GOOD | {"config": GOOD["config"] | {"deep": "bottomless"}}
    text = json.dumps(head | {"spec": spec})
    text = text.replace('"bottomless"', '{"a":' * 1500 + "1" + "}" * 1500)
    kubectl("create", "--raw", models.path("models"), "-f", "-", stdin=text)
    models.create("idle", GOOD | {"serverless": {}})
    async with controller():
        await models.reaches("idle", "WaitingForActivation")
        unread = "backend llamacpp does not read spec.config.deep"
        message = ("get", namespace, "mdl/deep", "-o", "jsonpath={.status.message}")
        await eventually(lambda: unread in kubectl(*message), within=30)
        kubectl("delete", namespace, "mdl/deep")


@pytest.mark.parametrize("plural", ["services", "deployments"])
async def test_an_object_of_somebody_else_is_left_untouched_and_named(
    models: Any, controller: Run, cpus: Tree, plural: str
) -> None:
    path = models.path(plural)
    before = models.plane.admin.create(path, foreign(plural))
    models.create("taken", GOOD | {"nodeSelector": cpus})
    async with controller():
        ready = (await models.reaches("taken", "NotOurs", phase="Failed"))["status"]["message"]
        assert f"{models.namespace}/taken" in ready
        version = models.get(plural, "taken")["metadata"]["resourceVersion"]
        if plural == "services":
            assert version == before["metadata"]["resourceVersion"]
        assert "ownerReferences" not in models.get(plural, "taken")["metadata"]
        models.plane.admin.delete(f"{path}/taken")
        await models.reaches("taken", "BackendReady", within=45)


def foreign(plural: str) -> Tree:
    labels = {"app": "taken"}
    if plural == "services":
        spec: Tree = {"selector": labels, "ports": [{"port": 80}]}
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "taken"}, "spec": spec}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "taken"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


LONG = "l" * 49
ACTIVE = "2026-01-01T00:00:00Z"


async def test_models_from_before_a_stricter_crd_say_what_is_wrong(
    models: Any, controller: Run
) -> None:
    with loose_schema(models):
        await eventually(lambda: models.create("many", GOOD | {"gpu": {"count": "many"}}))
        models.create(LONG, GOOD)
        models.create("older", GOOD | {"serverless": {}})
        models.create("oldest", GOOD | {"serverless": {}})
        for name in ("many", "older"):
            write_status(
                models, name, {"phase": "Downloading", "lastActiveTime": "2026-01-01T00:00:00Z"}
            )
        write_status(models, "oldest", {"gpu": {"memoryMB": "24Gi"}})
    async with controller():
        model = await models.reaches("many", "InvalidSpec", phase="Failed", text="spec.gpu.count")
        assert model["status"]["lastActiveTime"] == ACTIVE
        await models.reaches(LONG, "InvalidSpec", phase="Failed", text="at most 48 characters")
        for name in ("older", "oldest"):
            model = await models.reaches(name, "WaitingForActivation", phase="Idle")
            assert "gpu" not in model["status"]
        models.change("many", {"gpu": {"count": None, "vendor": "cpu"}, "serverless": None})
        await models.reaches("many", "WaitingForActivation", phase="Idle")


@contextmanager
def loose_schema(models: Any) -> Iterator[None]:
    """Let everything be stored, as an older CRD might have; then be strict again."""
    admin = models.plane.admin
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/models.ai.flexinfer"
    kept = admin.get(crd)["spec"]["versions"]
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": loose, "status": loose}}
    admin.merge(crd, {"spec": {"versions": [kept[0] | {"schema": {"openAPIV3Schema": schema}}]}})
    try:
        yield
    finally:
        admin.merge(crd, {"spec": {"versions": kept}})

    def is_strict_again() -> bool:
        body: Tree = {"apiVersion": "ai.flexinfer/v1alpha2", "kind": "Model"}
        body |= {"metadata": {"name": "loose"}, "spec": GOOD | {"gpu": {"count": "many"}}}
        try:
            admin.request("POST", models.path("models"), params={"dryRun": "All"}, body=body)
        except ApiError as error:
            return error.status in {400, 422}
        return False

    eventually_sync(is_strict_again)


def write_status(models: Any, name: str, status: Tree) -> None:
    models.plane.admin.request(
        "PATCH",
        f"{models.path('models', name)}/status",
        body={"status": status},
        content_type="application/merge-patch+json",
    )
