# SPDX-License-Identifier: Apache-2.0
"""What a Model comes to on the nodes of now: a plan, or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model.cache import Work
from controllers.model.cache_claim import ACCESS_MODES
from controllers.model.decision import Blocked, Plan, claims_of, decide, read
from controllers.model.placement import Placement, Spread
from flexinfer.kinds.node import Node
from flexinfer.meta.envelope import meta_from
from internal.backends.registry import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flexinfer.meta.envelope import Tree

GPU: Tree = {"backend": "vllm", "source": "HF://org/model", "gpu": {}}
CPU: Tree = {"backend": "llamacpp", "source": "HF://o/m", "config": {"ggufFile": "m.gguf"}}
COMFY: Tree = {"backend": "comfyui", "source": "pvc://art/sdxl", "gpu": {}}
READY = [{"type": "Ready", "status": "True"}]
VEGA = {"gpu.amd.com/gpu-architecture": "gfx906"}
MAXWELL = {"nvidia.com/gpu.compute.major": "5", "nvidia.com/gpu.compute.minor": "2"}
ADA = {"nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "9"}
TWO: Tree = {"serverless": {"minReplicas": 2}}


def model(spec: Tree) -> Model:
    meta = meta_from({"name": "m", "namespace": "ns", "generation": 3, "uid": "u"})
    return Model.model_validate(
        {"metadata": meta, "spec": {"serverless": {"enabled": False}} | spec}
    )


def gpu_node(
    labels: Mapping[str, str] | None = None,
    vendor: str = "nvidia.com/gpu",
    *,
    count: str = "8",
    spec: Tree | None = None,
    ready: str = "True",
) -> Node:
    return Node.model_validate(
        {
            "metadata": meta_from({"name": vendor, "labels": dict(labels or {})}),
            "spec": spec or {},
            "status": {
                "capacity": {vendor: "8"},
                "allocatable": {vendor: count},
                "conditions": [{"type": "Ready", "status": ready}],
            },
        }
    )


def decided(
    spec: Tree, *nodes: Node, modes: Sequence[str] | None = None, **environment: str
) -> Plan | Blocked:
    of = model(spec)
    reading = read(of)
    if isinstance(reading, Blocked):
        return reading
    return decide(of, reading, nodes or (gpu_node(),), environment, modes=modes)


def plan(spec: Tree, *nodes: Node, modes: Sequence[str] | None = None, **environment: str) -> Plan:
    found = decided(spec, *nodes, modes=modes, **environment)
    assert isinstance(found, Plan), found
    return found


def blocked(spec: Tree, *nodes: Node, **environment: str) -> Blocked:
    found = decided(spec, *nodes, **environment)
    assert isinstance(found, Blocked), found
    return found


# What the spec says by itself


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (GPU | {"backend": "nope"}, Reason.BACKEND_UNSUPPORTED, "use comfyui, diffusers, "),
        (GPU | {"source": "nowhere"}, Reason.INVALID_SPEC, "spec.source"),
        (GPU | {"config": {"maxModelLen": "x"}}, Reason.INVALID_SPEC, "spec.config.maxModelLen"),
        (GPU | {"gpu": {"vendor": "cpu", "count": 1}}, Reason.INVALID_SPEC, "spec.gpu.count"),
    ],
)
def test_point_28_what_is_wrong_whatever_the_nodes_is_said(
    spec: Tree, reason: Reason, words: str
) -> None:
    found = read(model(spec))
    assert isinstance(found, Blocked)
    assert found.reason is reason
    assert words in found.message
    assert found.concerns_spec is (reason is Reason.INVALID_SPEC)


def test_what_a_job_fetches_is_served_from_there_and_nothing_else_is() -> None:
    spec = GPU | {"config": {"ggufFile": "m.gguf"}}
    found = plan(spec)
    assert found.cache.work is Work.PREFETCH
    assert found.backend.arguments(found.launch)[0] == "/models/m/m.gguf"
    unfetched = blocked(spec | {"cache": {"strategy": "None"}})
    assert unfetched.reason is Reason.INVALID_SPEC


@pytest.mark.parametrize(
    ("spec", "claims", "mounted"),
    [
        (CPU, ("m-cache",), "m-cache"),
        (CPU | {"cache": {"strategy": "Memory"}}, (), ""),
        (CPU | {"source": "pvc://weights/m.gguf"}, ("weights",), "weights"),
        (CPU | {"cache": {"pvcName": "kept"}}, ("kept",), "kept"),
        (
            CPU | {"source": "pvc://weights/m.gguf", "cache": {"pvcName": "kept"}},
            ("kept", "weights"),
            "kept",
        ),
    ],
)
def test_which_claims_concern_the_model_and_which_one_is_mounted(
    spec: Tree, claims: tuple[str, ...], mounted: str
) -> None:
    assert claims_of(model(spec)) == claims
    assert plan(spec).claim == mounted


def test_of_a_spec_that_is_wrong_no_claim_is_of_concern() -> None:
    assert claims_of(model(CPU | {"source": "junk", "cache": {"pvcName": "kept"}})) == ()


def test_what_has_no_effect_is_said() -> None:
    config = {"ggufFile": "m.gguf", "contextSise": 1, "port": 1}
    spec = CPU | {"config": config, "cache": {"strategy": "None", "revision": "v1"}}
    notes = plan(spec).notes
    assert "spec.cache.revision without effect" in notes[0]
    assert notes[1] == "backend llamacpp does not read spec.config.contextSise, spec.config.port"
    assert plan(CPU).notes == ()


# What nodes have a say in


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (GPU | {"gpu": {"vendor": "cpu"}}, Reason.BACKEND_UNSUPPORTED),
        (GPU | {"gpu": {"vendor": "amd"}}, Reason.NO_MATCHING_NODES),
        (GPU | {"gpu": {"count": 8}, "nodeSelector": {"pool": "a"}}, Reason.NO_MATCHING_NODES),
    ],
)
def test_what_nodes_do_not_offer_blocks_a_model(spec: Tree, reason: Reason) -> None:
    found = blocked(spec)
    assert found.reason is reason
    assert found.message
    assert not found.concerns_spec


def test_two_vendors_are_ambiguous_until_one_is_named() -> None:
    both = [gpu_node(), gpu_node(vendor="amd.com/gpu")]
    assert blocked(GPU, *both).reason is Reason.AMBIGUOUS_GPU_VENDOR
    assert plan(GPU | {"gpu": {"vendor": "amd"}}, *both).launch.accelerator.vendor == "amd"


def test_hardware_without_a_build_is_named() -> None:
    found = blocked(GPU, gpu_node(MAXWELL))
    assert found.reason is Reason.BACKEND_UNSUPPORTED
    assert "vllm does not run on nvidia GPUs of architecture sm_52" in found.message


def test_point_30_the_nodes_that_can_take_a_pod_decide_together() -> None:
    assert plan(GPU, gpu_node(ADA)).launch.accelerator.architecture == "sm_89"
    useless = (
        gpu_node(MAXWELL, count="0"),
        gpu_node(MAXWELL, ready="False"),
        gpu_node(MAXWELL, spec={"unschedulable": True}),
        gpu_node(MAXWELL, spec={"taints": [{"key": "t", "effect": "NoSchedule"}]}),
    )
    assert blocked(GPU, *useless).reason is Reason.NO_MATCHING_NODES
    assert plan(GPU, *useless, gpu_node(ADA)).launch.accelerator.architecture == "sm_89"
    mixed = plan(GPU, gpu_node(MAXWELL), gpu_node(ADA))
    assert mixed.launch.accelerator.architecture == ""
    assert [warning.reason for warning in mixed.warnings] == ["PartialGPUSupport"]


def test_point_32_tolerations_open_tainted_nodes() -> None:
    tainted = gpu_node(spec={"taints": [{"key": "t", "value": "a", "effect": "NoSchedule"}]})
    assert blocked(GPU, tainted).reason is Reason.NO_MATCHING_NODES
    spec = GPU | {"tolerations": [{"key": "t", "operator": "Equal", "value": "a"}]}
    assert plan(spec, tainted).trouble is None


@pytest.mark.parametrize(
    ("estimate", "reason"), [(12000, ""), (21000, "VRAMPressure"), (24000, "VRAMInsufficient")]
)
def test_a_replica_has_to_fit_into_its_gpus(estimate: int, reason: str) -> None:
    node = gpu_node({"nvidia.com/gpu.memory": "24576"})
    found = decided(GPU | {"gpu": {"vramEstimateMB": estimate}}, node)
    if isinstance(found, Blocked):
        assert found.reason == reason
        assert "24000 is more than 95 % of the 24576 MB" in found.message
    else:
        assert [warning.reason for warning in found.warnings] == [reason] * bool(reason)
        assert found.notes == ()


def test_experimental_hardware_is_said_in_a_note_and_an_event() -> None:
    node = gpu_node(VEGA, "amd.com/gpu")
    found = plan(COMFY | {"image": "mine:1"}, node)
    (warning,) = found.warnings
    assert warning.reason == "ExperimentalGPUSupport"
    assert found.notes == (warning.text,)
    assert plan(COMFY | {"image": "mine:gfx906"}, node).warnings == ()


# How many, and how far apart


def test_point_29_one_replica_more_is_no_other_rule_for_pods() -> None:
    nodes = [gpu_node()] * 4
    assert plan(GPU, *nodes).spread is Spread.PREFERRED
    assert plan(GPU, *nodes).notes == ()
    two = plan(GPU | TWO, *nodes)
    assert (two.replicas, two.most, two.spread, two.notes) == (2, 2, Spread.REQUIRED, ())
    assert two.placement == Placement(accelerator=two.launch.accelerator, spread=Spread.REQUIRED)


def test_point_29_with_fewer_nodes_than_replicas_the_rule_is_a_wish_and_a_note_says_so() -> None:
    cordoned = gpu_node(spec={"unschedulable": True})
    found = plan(GPU | TWO, gpu_node(), cordoned)
    assert found.spread is Spread.PREFERRED
    note = "1 node fits 2 replicas, so that replicas may share a node; add nodes to spread them"
    assert found.spread_note == note
    assert plan(CPU | TWO, gpu_node(), gpu_node()).spread is Spread.REQUIRED
    assert plan(CPU | TWO, gpu_node(), cordoned).spread is Spread.PREFERRED


@pytest.mark.parametrize(
    ("modes", "spread"),
    [
        (ACCESS_MODES, Spread.PREFERRED),
        (("ReadWriteMany",), Spread.REQUIRED),
        (None, Spread.REQUIRED),
    ],
)
def test_point_29_replicas_on_a_volume_of_one_node_may_share_it_and_a_note_says_so(
    modes: Sequence[str] | None, spread: Spread
) -> None:
    found = plan(GPU | TWO, gpu_node(), gpu_node(), modes=modes)
    assert found.spread is spread
    is_said = "PersistentVolumeClaim m-cache has ReadW" in found.spread_note
    assert is_said is (spread is Spread.PREFERRED)


@pytest.mark.parametrize(
    ("serverless", "replicas", "most"),
    [
        ({}, 0, 1),
        ({"minReplicas": 2}, 2, 2),
        ({"enabled": False}, 1, 1),
        ({"enabled": False, "minReplicas": 3}, 3, 3),
    ],
)
def test_point_29_replicas_that_are_asked_for_count_without_serverless_too(
    serverless: Tree, replicas: int, most: int
) -> None:
    found = plan(GPU | {"serverless": serverless})
    assert (found.replicas, found.most) == (replicas, most)


def test_a_start_takes_what_the_backend_needs_or_what_is_said() -> None:
    assert plan(CPU | {"serverless": {"coldStartTimeout": "1h"}}).startup_seconds == 3600
    assert plan(CPU | {"serverless": {"coldStartTimeout": "1s"}}).startup_seconds >= 60


# Image


def test_the_image_of_the_spec_wins_and_the_digest_pins_it() -> None:
    digest = "b" * 64
    env = {"DEFAULT_VLLM_IMAGE": "mine:5000/vllm:v1"}
    assert plan(GPU).image == "vllm/vllm-openai:latest"
    assert plan(GPU, **env).image == "mine:5000/vllm:v1"
    pinned = GPU | {"imageDigest": digest}
    assert plan(pinned, **env).image == f"mine:5000/vllm@sha256:{digest}"
    assert plan(pinned | {"image": "x/y:z"}, **env).image == f"x/y@sha256:{digest}"


def test_an_image_that_nobody_publishes_has_to_be_named() -> None:
    node = gpu_node(VEGA, "amd.com/gpu")
    found = blocked(COMFY, node)
    assert found.reason is Reason.BACKEND_UNSUPPORTED
    assert "set spec.image, or DEFAULT_COMFYUI_IMAGE_GFX906" in found.message
    assert plan(COMFY | {"image": "mine:1"}, node).image == "mine:1"
    assert plan(COMFY, node, DEFAULT_COMFYUI_IMAGE_AMD="mine:2").image == "mine:2"


@pytest.mark.parametrize("backend", [backend.name for backend in BACKENDS])
def test_point_34_no_default_is_of_somebody_s_own_cluster(backend: str) -> None:
    source = "pvc://art/m" if backend in {"comfyui", "llamacpp"} else "HF://o/m"
    found = decided({"backend": backend, "source": source, "gpu": {}})
    image = found.image if isinstance(found, Plan) else ""
    registry = image.split("/")[0]
    assert ":" not in registry or "/" not in image
    assert not registry.endswith((".local", ".lan", ".internal"))
