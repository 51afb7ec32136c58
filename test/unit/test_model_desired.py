# SPDX-License-Identifier: Apache-2.0
"""The Service and the Deployment of a Model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import desired, names
from controllers.model.decision import Plan, Reading, decide, read
from controllers.model.placement import Placement, Spread, template_hash
from flexinfer.apply.intent import clean
from flexinfer.errors import ConfigurationError
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.node import Node
from flexinfer.meta.envelope import encode_sorted, meta_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flexinfer.meta.envelope import Tree

GPU: Tree = {"backend": "vllm", "source": "HF://org/model", "gpu": {}}
CPU: Tree = {"backend": "llamacpp", "source": "HF://o/m", "config": {"ggufFile": "m.gguf"}}
BARE = CPU | {"cache": {"strategy": "None"}}
COMFY: Tree = {"backend": "comfyui", "source": "pvc://art/sdxl", "gpu": {}}
OLD = {"app": "old", "flexinfer.ai/gpu-group": "g", names.BACKEND_LABEL: "ollama"}
READY = [{"type": "Ready", "status": "True"}]
NO_SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def model(spec: Tree, *, generation: int = 3) -> Model:
    meta = meta_from({"name": "m", "namespace": "ns", "generation": generation, "uid": "u"})
    return Model.model_validate(
        {"metadata": meta, "spec": {"serverless": {"enabled": False}} | spec}
    )


def gpu_node(vendor: str = "nvidia.com/gpu", **labels: str) -> Node:
    status = {"allocatable": {vendor: "8"}, "conditions": READY}
    meta = meta_from({"name": vendor, "labels": labels})
    return Node.model_validate({"metadata": meta, "status": status})


def plan(of: Model, *nodes: Node, modes: Sequence[str] | None = None, **environment: str) -> Plan:
    reading = read(of)
    assert isinstance(reading, Reading), reading
    found = decide(of, reading, nodes or (gpu_node(),), environment, modes=modes)
    assert isinstance(found, Plan), found
    return found


def deployment(spec: Tree, *nodes: Node, modes: Sequence[str] | None = None, **env: str) -> Tree:
    of = model(spec)
    labels = desired.selector(of, None)
    tree: Tree = clean(desired.deployment(of, plan(of, *nodes, modes=modes, **env), labels, env))
    return tree


def pod(spec: Tree, *nodes: Node, modes: Sequence[str] | None = None, **environment: str) -> Tree:
    tree = deployment(spec, *nodes, modes=modes, **environment)
    found: Tree = tree["spec"]["template"]["spec"]
    return found


def container(spec: Tree, *nodes: Node, **environment: str) -> Tree:
    (found,) = pod(spec, *nodes, **environment)["containers"]
    assert isinstance(found, dict)
    return found


def live_deployment() -> Deployment:
    return Deployment.model_validate({"spec": {"selector": {"matchLabels": OLD}}})


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


def test_the_pull_policy_is_kubernetes_own_unless_it_is_said() -> None:
    assert "imagePullPolicy" not in container(GPU)
    assert container(GPU | {"imagePullPolicy": "Always"})["imagePullPolicy"] == "Always"


def test_ensure_deployment_cpu_does_not_request_gpu() -> None:
    spec = pod(BARE)
    (found,) = spec["containers"]
    assert {"runtimeClassName", "tolerations", "nodeSelector"}.isdisjoint(spec)
    assert not found["resources"]
    assert found["image"] == "ghcr.io/ggml-org/llama.cpp:server"
    assert "strategy" not in deployment(BARE)["spec"]
    assert "supplementalGroups" not in spec["securityContext"]


@pytest.mark.parametrize(
    "more",
    [{"serverless": {"minReplicas": 2}}, {"source": "pvc://weights/m.gguf"}, {"cache": {}}],
)
def test_no_pod_waits_for_the_node_or_the_volume_of_its_predecessor(more: Tree) -> None:
    assert deployment(BARE | more)["spec"]["strategy"] == NO_SURGE


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


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TWO: Tree = {"serverless": {"minReplicas": 2}}
TWIN_NODES = (gpu_node(), gpu_node())


def test_several_replicas_are_spread_by_their_selector() -> None:
    tree = deployment(GPU | TWO, *TWIN_NODES)
    assert tree["spec"]["replicas"] == 2
    spec, selector = tree["spec"]["template"]["spec"], tree["spec"]["selector"]
    (term,) = spec["affinity"]["podAntiAffinity"][REQUIRED]
    assert term == {
        "labelSelector": selector,
        "matchLabelKeys": ["pod-template-hash"],
        "topologyKey": "kubernetes.io/hostname",
    }
    (spread,) = spec["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["labelSelector"]) == (1, selector)
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"


@pytest.mark.parametrize(
    ("nodes", "modes", "mode"),
    [
        (TWIN_NODES, None, REQUIRED),
        (TWIN_NODES, ("ReadOnlyMany",), REQUIRED),
        (TWIN_NODES[:1], None, PREFERRED),
        (TWIN_NODES, ("ReadWriteOnce",), PREFERRED),
    ],
)
def test_point_29_a_rule_that_cannot_be_met_is_a_wish(
    nodes: tuple[Node, ...], modes: Sequence[str] | None, mode: str
) -> None:
    apart = pod(GPU | TWO, *nodes, modes=modes)["affinity"]["podAntiAffinity"]
    assert set(apart) == {mode}
    if mode == PREFERRED:
        (wish,) = apart[mode]
        assert wish["weight"] == 100
        assert wish["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"


def test_point_29_scaling_from_one_to_two_where_both_may_share_a_node_changes_no_template() -> None:
    one, two = deployment(GPU), deployment(GPU | TWO)
    assert one["spec"]["replicas"] == 1
    assert two["spec"]["replicas"] == 2
    assert set(pod(GPU)["affinity"]["podAntiAffinity"]) == {PREFERRED}
    assert encode_sorted(one["spec"]["template"]) == encode_sorted(two["spec"]["template"])


def test_what_nodes_decided_and_the_template_are_recorded() -> None:
    tree = desired.deployment(model(GPU), plan(model(GPU)), {"a": "b"}, {})
    annotations = tree["metadata"]["annotations"]
    assert annotations[names.TEMPLATE_ANNOTATION] == template_hash(tree["spec"]["template"])
    live = Deployment.model_validate({"metadata": meta_from({"annotations": annotations})})
    recorded = Placement.of(live)
    assert recorded is not None
    assert (recorded.accelerator.count, recorded.spread) == (1, Spread.PREFERRED)


def test_weights_lie_in_an_empty_dir_or_in_a_claim() -> None:
    volumes = {volume["name"]: volume for volume in pod(BARE)["volumes"]}
    assert volumes["model"] == {"name": "model", "emptyDir": {}}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    claimed = pod(CPU | {"source": "pvc://weights/m.gguf"}, DEFAULT_SHM_SIZE_LIMIT="1Gi")
    volumes = {volume["name"]: volume for volume in claimed["volumes"]}
    assert volumes["model"]["persistentVolumeClaim"] == {"claimName": "weights"}
    assert volumes["shm"]["emptyDir"]["sizeLimit"] == "1Gi"
    made = {volume["name"]: volume for volume in pod(CPU)["volumes"]}
    assert made["model"]["persistentVolumeClaim"] == {"claimName": "m-cache"}


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


def test_point_32_a_spec_is_never_changed_by_what_is_made_of_it() -> None:
    of = model(GPU | {"resources": {"limits": {"memory": "1Gi"}}, "nodeSelector": {"a": "b"}})
    labelled = gpu_node(a="b")
    before = encode_sorted(of.wire())
    first = desired.deployment(of, plan(of, labelled), desired.selector(of, None), {})
    again = desired.deployment(of, plan(of, labelled), desired.selector(of, None), {})
    assert first == again
    first["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"].clear()
    first["spec"]["selector"]["matchLabels"].clear()
    assert again["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert encode_sorted(of.wire()) == before


def test_point_32_the_pods_tolerate_what_the_spec_says_and_name_a_flag_once() -> None:
    own = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoExecute"}
    assert own in pod(CPU | {"tolerations": [own]})["tolerations"]
    spec = GPU | {"config": {"attentionBackend": "FLASH_ATTN"}}
    assert container(spec)["args"].count("--attention-backend") == 1


def test_point_25_nothing_a_user_writes_meets_a_shell_or_becomes_a_variable() -> None:
    found = container(GPU | {"litellm": {"servedModelName": "$(HOME); `id` && true"}})
    assert found["command"] == ["vllm", "serve"]
    assert "$$(HOME); `id` && true" in found["args"]


# Service


def test_a_service_names_nothing_that_the_server_allocates() -> None:
    of = model(CPU)
    tree = desired.service(of, plan(of), desired.selector(of, None))
    assert set(tree["spec"]) == {"selector", "ports"}
    port = {"name": "http", "port": 8080, "targetPort": 8080, "protocol": "TCP"}
    assert tree["spec"]["ports"] == [port]
    assert tree["metadata"]["labels"]["flexinfer.ai/model"] == "m"
    assert names.ACTIVE_SERVICES_ANNOTATION not in tree["metadata"]["annotations"]


@pytest.mark.parametrize("active", ["", "chat,textgen"])
def test_a_service_of_a_group_says_which_names_it_answers_for_now(active: str) -> None:
    of = model(CPU)
    tree = desired.service(of, plan(of), {}, active=active)
    assert tree["metadata"]["annotations"][names.ACTIVE_SERVICES_ANNOTATION] == active


def test_a_size_of_shared_memory_that_is_none_is_refused_with_its_variable() -> None:
    assert desired.shm_size({}) == desired.shm_size({"DEFAULT_SHM_SIZE_LIMIT": " "}) == "8Gi"
    with pytest.raises(ConfigurationError, match="DEFAULT_SHM_SIZE_LIMIT: 'lots' is no quantity"):
        desired.shm_size({"DEFAULT_SHM_SIZE_LIMIT": "lots"})


def test_the_memory_estimate_is_on_the_pods() -> None:
    tree = deployment(GPU | {"gpu": {"vramEstimateMB": 16000}})
    annotations = tree["spec"]["template"]["metadata"]["annotations"]
    assert annotations["flexinfer.ai/gpu.vram-estimate-mb"] == "16000"
