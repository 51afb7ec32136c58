# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model import desired, names
from controllers.model.decision import Blocked, Plan, claim_of, decide
from controllers.model.metadata import capabilities, managed_annotations
from controllers.model.ports import reclaim
from flexinfer.apply.intent import clean
from flexinfer.errors import ConfigurationError
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.node import Node
from flexinfer.meta.envelope import meta_from

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

GPU: Tree = {"backend": "vllm", "source": "HF://org/model", "gpu": {}}
CPU: Tree = {"backend": "llamacpp", "source": "HF://o/m", "config": {"ggufFile": "m.gguf"}}
OLD = {"app": "old", "flexinfer.ai/gpu-group": "g", names.BACKEND_LABEL: "ollama"}
READY = [{"type": "Ready", "status": "True"}]


def model(spec: Tree, *, generation: int = 3) -> Model:
    meta = meta_from({"name": "m", "namespace": "ns", "generation": generation, "uid": "u"})
    return Model.model_validate(
        {"metadata": meta, "spec": {"serverless": {"enabled": False}} | spec}
    )


NO_SURGE = {
    "type": "RollingUpdate",
    "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
}


def gpu_node(vendor: str = "nvidia.com/gpu", **labels: str) -> Node:
    status = {"allocatable": {vendor: "8"}, "conditions": READY}
    meta = meta_from({"name": vendor, "labels": labels})
    return Node.model_validate({"metadata": meta, "status": status})


def plan(of: Model, *nodes: Node, **environment: str) -> Plan:
    found = decide(of, nodes or (gpu_node(),), environment)
    assert isinstance(found, Plan), found
    return found


def blocked(spec: Tree, *nodes: Node, **environment: str) -> Blocked:
    found = decide(model(spec), nodes or (gpu_node(),), environment)
    assert isinstance(found, Blocked), found
    return found


def deployment(spec: Tree, *nodes: Node, **env: str) -> Tree:
    of = model(spec)
    labels = desired.selector(of, None)
    tree: Tree = clean(desired.deployment(of, plan(of, *nodes, **env), labels, env))
    return tree


def pod(spec: Tree, *nodes: Node, **environment: str) -> Tree:
    found: Tree = deployment(spec, *nodes, **environment)["spec"]["template"]["spec"]
    return found


def container(spec: Tree, *nodes: Node, **environment: str) -> Tree:
    (found,) = pod(spec, *nodes, **environment)["containers"]
    assert isinstance(found, dict)
    return found


def live_deployment() -> Deployment:
    return Deployment.model_validate({"spec": {"selector": {"matchLabels": OLD}}})


# Decision


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (GPU | {"backend": "nope"}, Reason.BACKEND_UNSUPPORTED),
        (GPU | {"gpu": {"vendor": "cpu"}}, Reason.BACKEND_UNSUPPORTED),
        (GPU | {"gpu": {"vendor": "amd"}}, Reason.NO_MATCHING_NODES),
        (GPU | {"source": "nowhere"}, Reason.INVALID_SPEC),
        (GPU | {"config": {"maxModelLen": "x"}}, Reason.INVALID_SPEC),
        (GPU | {"gpu": {"vendor": "cpu", "count": 1}}, Reason.INVALID_SPEC),
    ],
)
def test_what_blocks_a_model(spec: Tree, reason: Reason) -> None:
    found = decide(model(spec), [gpu_node()], {})
    assert isinstance(found, Blocked)
    assert found.reason is reason
    assert found.message


def test_two_vendors_are_ambiguous_until_one_is_named() -> None:
    both = [gpu_node(), gpu_node("amd.com/gpu")]
    found = decide(model(GPU), both, {})
    assert isinstance(found, Blocked)
    assert found.reason is Reason.AMBIGUOUS_GPU_VENDOR
    assert isinstance(decide(model(GPU | {"gpu": {"vendor": "amd"}}), both, {}), Plan)


VEGA = {"gpu.amd.com/gpu-architecture": "gfx906"}
COMFY: Tree = {"backend": "comfyui", "source": "pvc://art/sdxl", "gpu": {}}


def test_hardware_without_a_build_is_named() -> None:
    labels = {"nvidia.com/gpu.compute.major": "5", "nvidia.com/gpu.compute.minor": "2"}
    found = blocked(GPU, gpu_node(**labels))
    assert found.reason is Reason.BACKEND_UNSUPPORTED
    assert "vllm does not run on nvidia GPUs of architecture sm_52" in found.message


def test_an_image_that_nobody_publishes_has_to_be_named() -> None:
    node = gpu_node("amd.com/gpu", **VEGA)
    found = blocked(COMFY, node)
    assert found.reason is Reason.BACKEND_UNSUPPORTED
    assert "set spec.image, or DEFAULT_COMFYUI_IMAGE_GFX906" in found.message
    assert not found.concerns_spec
    assert plan(model(COMFY | {"image": "mine:1"}), node).image == "mine:1"
    assert plan(model(COMFY), node, DEFAULT_COMFYUI_IMAGE_AMD="mine:2").image == "mine:2"


def test_experimental_hardware_is_said_in_a_note_and_an_event() -> None:
    node = gpu_node("amd.com/gpu", **VEGA)
    found = plan(model(COMFY | {"image": "mine:1"}), node)
    (warning,) = found.warnings
    assert warning.reason == "ExperimentalGPUSupport"
    assert found.notes == (warning.text,)
    assert plan(model(COMFY | {"image": "mine:gfx906"}), node).warnings == ()


@pytest.mark.parametrize(
    ("estimate", "reason"), [(12000, ""), (21000, "VRAMPressure"), (24000, "VRAMInsufficient")]
)
def test_a_replica_has_to_fit_into_its_gpus(estimate: int, reason: str) -> None:
    node = gpu_node(**{"nvidia.com/gpu.memory": "24576"})
    found = decide(model(GPU | {"gpu": {"vramEstimateMB": estimate}}), [node], {})
    if isinstance(found, Blocked):
        assert found.reason == reason
        assert "24000 is more than 95 % of the 24576 MB" in found.message
    else:
        assert [warning.reason for warning in found.warnings] == [reason] * bool(reason)
        assert found.notes == ()


def test_what_a_job_fetches_is_served_from_there() -> None:
    spec = GPU | {"config": {"ggufFile": "m.gguf"}}
    assert blocked(spec).reason is Reason.INVALID_SPEC
    found = decide(model(spec), [gpu_node()], {}, fetched="/models/m")
    assert isinstance(found, Plan)
    assert found.backend.arguments(found.launch)[0] == "/models/m/m.gguf"


def test_the_spec_says_what_has_no_effect() -> None:
    spec = CPU | {
        "config": {"ggufFile": "m.gguf", "contextSise": 1},
        "cache": {"strategy": "Memory"},
    }
    notes = "; ".join(plan(model(spec)).notes)
    assert "does not read spec.config.contextSise" in notes
    assert "spec.cache.strategy Memory has no effect yet" in notes
    shared = plan(model(GPU | {"gpu": {"shared": "team"}})).notes
    assert "spec.gpu.shared 'team' has no effect yet" in shared[0]
    copied = CPU | {"source": "pvc://c/m.gguf", "cache": {"pvcName": "d"}}
    assert "the source's own claim is mounted" in plan(model(copied)).notes[0]


@pytest.mark.parametrize(
    ("spec", "claim"),
    [
        (CPU, ""),
        (CPU | {"source": "pvc://weights/m.gguf"}, "weights"),
        (CPU | {"cache": {"pvcName": "kept"}}, "kept"),
        (CPU | {"source": "pvc://weights/m.gguf", "cache": {"pvcName": "kept"}}, "weights"),
        (CPU | {"source": "junk", "cache": {"pvcName": "kept"}}, ""),
    ],
)
def test_which_claim_is_mounted(spec: Tree, claim: str) -> None:
    assert claim_of(model(spec)) == claim


# Image


def test_the_image_of_the_spec_wins_and_the_digest_pins_it() -> None:
    digest = "b" * 64
    env = {"DEFAULT_VLLM_IMAGE": "mine:5000/vllm:v1"}
    assert container(GPU)["image"] == "vllm/vllm-openai:latest"
    assert container(GPU, **env)["image"] == "mine:5000/vllm:v1"
    pinned = GPU | {"imageDigest": digest}
    assert container(pinned, **env)["image"] == f"mine:5000/vllm@sha256:{digest}"
    assert container(pinned | {"image": "x/y:z"}, **env)["image"] == f"x/y@sha256:{digest}"


def test_the_pull_policy_is_kubernetes_own_unless_it_is_said() -> None:
    assert "imagePullPolicy" not in container(GPU)
    assert container(GPU | {"imagePullPolicy": "Always"})["imagePullPolicy"] == "Always"


# Deployment


def test_a_gpu_pod() -> None:
    spec = pod(GPU)
    (found,) = spec["containers"]
    assert spec["runtimeClassName"] == "nvidia"
    assert found["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    gpu = {"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}
    assert spec["tolerations"] == [gpu]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert deployment(GPU)["spec"]["strategy"] == NO_SURGE


def test_ensure_deployment_cpu_does_not_request_gpu() -> None:
    spec = pod(CPU)
    (found,) = spec["containers"]
    assert {"runtimeClassName", "tolerations", "nodeSelector", "affinity"}.isdisjoint(spec)
    assert found["image"] == "ghcr.io/ggml-org/llama.cpp:server"
    assert "strategy" not in deployment(CPU)["spec"]
    assert "supplementalGroups" not in spec["securityContext"]


@pytest.mark.parametrize(
    "more", [{"serverless": {"minReplicas": 2}}, {"source": "pvc://weights/m.gguf"}]
)
def test_no_pod_waits_for_the_node_or_the_volume_of_its_predecessor(more: Tree) -> None:
    assert deployment(CPU | more)["spec"]["strategy"] == NO_SURGE


def test_an_amd_pod_may_open_the_devices() -> None:
    spec = pod(GPU, gpu_node("amd.com/gpu"))
    assert "runtimeClassName" not in spec
    assert spec["securityContext"]["supplementalGroups"] == [109, 992]
    assert spec["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "1"}
    assert spec["containers"][0]["image"] == "rocm/vllm:latest"


def test_tolerations_stand_beside_the_built_in_one() -> None:
    own = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoExecute"}
    gpu = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
    spec = GPU | {"tolerations": [own, gpu, {"operator": "Exists"}]}
    found = pod(spec)["tolerations"]
    assert len(found) == 3
    assert found[0]["key"] == "dedicated"
    assert found[1:] == [own, {"operator": "Exists"}]


def test_resources_keep_what_the_user_asked_for() -> None:
    spec = GPU | {
        "gpu": {"count": 2},
        "resources": {"limits": {"memory": "32Gi"}, "requests": {"cpu": "4"}},
    }
    found = container(spec)["resources"]
    assert found["limits"] == {"memory": "32Gi", "nvidia.com/gpu": "2"}
    assert found["requests"] == {"cpu": "4"}


def test_new_selectors_hold_what_never_changes() -> None:
    tree = deployment(GPU | {"gpu": {"shared": "team"}})
    expected = {
        "app.kubernetes.io/name": "model",
        "app.kubernetes.io/instance": "m",
        "app.kubernetes.io/managed-by": "flexinfer",
        "flexinfer.ai/model": "m",
    }
    assert tree["spec"]["selector"] == {"matchLabels": expected}
    labels = tree["spec"]["template"]["metadata"]["labels"]
    extra = {"flexinfer.ai/backend": "vllm", "flexinfer.ai/gpu-group": "team"}
    assert labels == expected | extra


def test_an_existing_selector_is_kept_and_carried_by_the_template() -> None:
    of, live = model(GPU), live_deployment()
    labels = desired.selector(of, live)
    tree = desired.deployment(of, plan(of), labels, {})
    assert tree["spec"]["selector"] == {"matchLabels": OLD}
    template = tree["spec"]["template"]["metadata"]["labels"]
    assert OLD.items() <= template.items()
    assert template["flexinfer.ai/model"] == "m"
    assert desired.service(of, plan(of), labels)["spec"]["selector"] == OLD


def test_one_replica_is_not_spread() -> None:
    assert {"affinity", "topologySpreadConstraints"}.isdisjoint(pod(GPU))


def test_several_replicas_are_spread_by_their_selector() -> None:
    tree = deployment(GPU | {"serverless": {"minReplicas": 2}})
    assert tree["spec"]["replicas"] == 2
    spec, selector = tree["spec"]["template"]["spec"], tree["spec"]["selector"]
    (term,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term == {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    (spread,) = spec["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["labelSelector"]) == (1, selector)
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"


def test_weights_lie_in_an_empty_dir_or_in_a_claim() -> None:
    volumes = {volume["name"]: volume for volume in pod(CPU)["volumes"]}
    assert volumes["model"] == {"name": "model", "emptyDir": {}}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    claimed = pod(CPU | {"source": "pvc://weights/m.gguf"}, DEFAULT_SHM_SIZE_LIMIT="1Gi")
    volumes = {volume["name"]: volume for volume in claimed["volumes"]}
    assert volumes["model"]["persistentVolumeClaim"] == {"claimName": "weights"}
    assert volumes["shm"]["emptyDir"]["sizeLimit"] == "1Gi"


def test_hugging_face_caches_on_the_model_volume() -> None:
    env = {entry["name"]: entry["value"] for entry in container(GPU)["env"]}
    assert env["HF_HOME"] == "/models/.cache/huggingface"
    assert env["HF_HUB_CACHE"] == env["HUGGINGFACE_HUB_CACHE"] == env["TRANSFORMERS_CACHE"]
    local = {entry["name"] for entry in container(CPU | {"source": "file:///m.gguf"})["env"]}
    assert "HF_HOME" not in local


def test_probes_give_the_server_its_time() -> None:
    found = container(GPU | {"serverless": {"enabled": False, "coldStartTimeout": "11m"}})
    startup, readiness = found["startupProbe"], found["readinessProbe"]
    assert startup["httpGet"] == readiness["httpGet"] == {"path": "/health", "port": "http"}
    assert startup["periodSeconds"] * startup["failureThreshold"] == 660
    assert "livenessProbe" not in found


def test_a_server_without_http_is_probed_by_a_connection() -> None:
    found = container(COMFY)
    tcp = {"tcpSocket": {"port": "http"}, "timeoutSeconds": 5}
    assert found["readinessProbe"] == tcp | {"periodSeconds": 10, "failureThreshold": 3}
    assert found["startupProbe"] == tcp | {"periodSeconds": 5, "failureThreshold": 36}
    served = container(COMFY | {"backend": "diffusers", "image": "mine:1"})
    assert served["startupProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert served["readinessProbe"]["tcpSocket"] == {"port": "http"}
    assert served["readinessProbe"]["periodSeconds"] == 5


def test_the_pod_may_do_little() -> None:
    assert pod(CPU)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    limits = container(CPU)["securityContext"]
    assert limits == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_the_deployment_says_which_generation_it_renders() -> None:
    annotations = deployment(GPU)["metadata"]["annotations"]
    assert annotations[names.GENERATION_ANNOTATION] == "3"
    template = deployment(GPU)["spec"]["template"]["metadata"]["annotations"]
    assert names.GENERATION_ANNOTATION not in template


def test_intents_are_built_fresh() -> None:
    of = model(GPU | {"resources": {"limits": {"memory": "1Gi"}}})
    first = desired.deployment(of, plan(of), desired.selector(of, None), {})
    again = desired.deployment(of, plan(of), desired.selector(of, None), {})
    assert first == again
    first["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"].clear()
    assert again["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]


# Service


def test_a_service_names_nothing_that_the_server_allocates() -> None:
    of = model(CPU)
    tree = desired.service(of, plan(of), desired.selector(of, None))
    assert set(tree["spec"]) == {"selector", "ports"}
    port = {"name": "http", "port": 8080, "targetPort": 8080, "protocol": "TCP"}
    assert tree["spec"]["ports"] == [port]
    assert tree["metadata"]["labels"]["flexinfer.ai/model"] == "m"


def live_service(*ports: Tree) -> Tree:
    return {"metadata": {"uid": "u"}, "spec": {"ports": list(ports)}}


def test_a_renumbered_port_is_taken_back() -> None:
    of = model(CPU)
    intent = desired.service(of, plan(of), {})
    extra = {"name": "metrics", "port": 9090, "protocol": "TCP"}
    moved = {"name": "http", "port": 9999, "protocol": "TCP"}
    assert reclaim(live_service(extra, moved), intent) == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/spec/ports/1/port", "value": 9999},
        {"op": "replace", "path": "/spec/ports/1", "value": intent["spec"]["ports"][0]},
    ]


def test_a_renumbered_port_of_a_container_is_taken_back() -> None:
    of = model(CPU)
    intent = desired.deployment(of, plan(of), {}, {})
    live = copy.deepcopy(intent)
    live["metadata"]["uid"] = "u"
    assert reclaim(live, intent) == []
    sidecar = {"name": "proxy", "ports": [{"name": "http", "containerPort": 1}]}
    containers = live["spec"]["template"]["spec"]["containers"]
    containers.insert(0, sidecar)
    containers[1]["ports"][0]["containerPort"] = 9999
    path = "/spec/template/spec/containers/1/ports/0"
    wanted = intent["spec"]["template"]["spec"]["containers"][0]["ports"][0]
    assert reclaim(live, intent) == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": f"{path}/containerPort", "value": 9999},
        {"op": "replace", "path": path, "value": wanted},
    ]


def test_a_port_that_is_ours_needs_no_patch() -> None:
    of = model(CPU)
    intent = desired.service(of, plan(of), {})
    ours = {"name": "http", "port": 8080, "protocol": "TCP", "nodePort": 30000}
    assert reclaim(live_service(ours), intent) == []
    assert reclaim({"metadata": {"uid": "u"}, "spec": {}}, intent) == []


def test_a_size_of_shared_memory_that_is_none_is_refused_with_its_variable() -> None:
    assert desired.shm_size({}) == desired.shm_size({"DEFAULT_SHM_SIZE_LIMIT": " "}) == "8Gi"
    with pytest.raises(ConfigurationError, match="DEFAULT_SHM_SIZE_LIMIT: 'lots' is no quantity"):
        desired.shm_size({"DEFAULT_SHM_SIZE_LIMIT": "lots"})


# Annotations


def test_annotations_are_there_when_they_are_wanted() -> None:
    of = model(
        GPU
        | {
            "litellm": {"servedModelName": "chat", "aliases": ["b", "chat"], "copilotAlias": "c"},
            "serviceLabels": ["textgen", "a"],
        }
    )
    found = managed_annotations(of, plan(of))
    said = json.loads(found.pop(names.CAPABILITIES_ANNOTATION))
    assert said == {"toolCalling": True, "vision": False, "imageGeneration": False}
    assert found == {
        "flexinfer.ai/service-labels": "a,textgen",
        "litellm.flexinfer.ai/served-model": "chat",
        "litellm.flexinfer.ai/aliases": "a,b,textgen",
        "litellm.flexinfer.ai/copilot-model": "c",
    }


@pytest.mark.parametrize("litellm", [{}, {"litellm": {"enabled": False}}])
def test_without_litellm_there_are_none(litellm: Tree) -> None:
    of = model(GPU | litellm)
    assert managed_annotations(of, plan(of)) == {}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {"toolCalling": False, "vision": False}),
        ({"jinja": True, "mmproj": "p.gguf"}, {"toolCalling": True, "vision": True}),
    ],
)
def test_capabilities_of_llamacpp_follow_its_config(spec: Tree, expected: Tree) -> None:
    of = model(CPU | {"config": {"ggufFile": "m.gguf"} | spec})
    assert expected.items() <= capabilities(of, plan(of)).items()


def test_backends_for_images_make_images() -> None:
    of = model(COMFY)
    expected = {"imageGeneration": True, "toolCalling": False, "vision": False}
    assert capabilities(of, plan(of)) == expected


def test_what_the_spec_says_of_capabilities_wins() -> None:
    of = model(GPU | {"capabilities": {"toolCalling": False, "vision": True}})
    found = capabilities(of, plan(of))
    assert (found["toolCalling"], found["vision"]) == (False, True)


def test_the_memory_estimate_is_on_the_pods() -> None:
    tree = deployment(GPU | {"gpu": {"vramEstimateMB": 16000}})
    annotations = tree["spec"]["template"]["metadata"]["annotations"]
    assert annotations["flexinfer.ai/gpu.vram-estimate-mb"] == "16000"
