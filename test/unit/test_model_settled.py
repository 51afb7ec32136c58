# SPDX-License-Identifier: Apache-2.0
"""What nodes decided once is kept: the table, and what holds for all nodes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model import desired, names
from controllers.model.decision import Blocked, Plan, Reading, decide, read
from controllers.model.placement import Spread
from controllers.model.settled import settle
from flexinfer.apply.intent import clean
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.node import Node
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import encode_sorted, meta_from

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flexinfer.meta.envelope import Tree

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GPU: Tree = {"backend": "vllm", "source": "HF://org/model", "gpu": {}}
TWO: Tree = {"serverless": {"minReplicas": 2}}
ADA = {"nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "9"}
HOPPER = {"nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0"}
MAXWELL = {"nvidia.com/gpu.compute.major": "5", "nvidia.com/gpu.compute.minor": "2"}
NO_PATIENCE = timedelta(seconds=30)


def model(spec: Tree, *, generation: int = 1) -> Model:
    meta = meta_from({"name": "m", "namespace": "ns", "generation": generation, "uid": "u"})
    return Model.model_validate(
        {"metadata": meta, "spec": {"serverless": {"enabled": False}} | spec}
    )


def node(
    labels: Mapping[str, str] = ADA,
    *,
    vendor: str = "nvidia",
    count: int = 8,
    cordoned: bool = False,
) -> Node:
    return Node.model_validate(
        {
            "metadata": meta_from({"name": "n", "labels": dict(labels)}),
            "spec": {"unschedulable": cordoned},
            "status": {
                "allocatable": {f"{vendor}.com/gpu": str(count)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def pod(unplaced_since: datetime | None = None) -> Pod:
    """A pod that was placed, or has found no node since then."""
    condition: Tree = {"type": "PodScheduled", "status": "True"}
    if unplaced_since is not None:
        condition = condition | {
            "status": "False",
            "lastTransitionTime": unplaced_since.isoformat(),
        }
    tree = {"metadata": meta_from({"name": "p"}), "status": {"conditions": [condition]}}
    return Pod.model_validate(tree)


def reading_of(of: Model) -> Reading:
    found = read(of)
    assert isinstance(found, Reading), found
    return found


def fresh(of: Model, nodes: Sequence[Node], **environment: str) -> Plan | Blocked:
    return decide(of, reading_of(of), nodes, environment)


def plan(of: Model, nodes: Sequence[Node]) -> Plan:
    found = fresh(of, nodes)
    assert isinstance(found, Plan), found
    return found


def template(of: Model, decided: Plan | Blocked) -> bytes:
    """Return the pods' template, byte for byte."""
    assert isinstance(decided, Plan), decided
    intent = desired.deployment(of, decided, names.selector_labels(of), {})
    return encode_sorted(clean(intent)["spec"]["template"])


def applied(of: Model, decided: Plan, replicas: int = 1) -> Deployment:
    """Return the Deployment as it is once *decided* was applied."""
    planned = replace(decided, replicas=replicas)
    intent = clean(desired.deployment(of, planned, names.selector_labels(of), {}))
    meta = intent.pop("metadata")
    del intent["spec"]["template"]  # only what is recorded of it counts
    return Deployment.model_validate({**intent, "metadata": meta_from(meta)})


def settled(
    of: Model,
    nodes: Sequence[Node],
    live: Deployment | None,
    pods: Sequence[Pod] = (pod(),),
    environment: Mapping[str, str] | None = None,
) -> Plan | Blocked:
    environment = environment or {}
    return settle(
        of,
        reading_of(of),
        decide(of, reading_of(of), nodes, environment),
        live=live,
        pods=pods,
        environment=environment,
        now=NOW,
    )


OF = model(GPU)
LIVE = applied(OF, plan(OF, [node(ADA)]))
ELSEWHERE = [node(HOPPER)]


# The table


def stripped(live: Deployment, annotation: str) -> Deployment:
    left = {k: v for k, v in live.metadata.annotations.items() if k != annotation}
    meta = meta_from({"name": "m", "annotations": left})
    return live.model_copy(update={"metadata": meta})


@pytest.mark.parametrize(
    "live",
    [
        None,
        applied(OF, plan(OF, [node(ADA)]), replicas=0),
        stripped(LIVE, names.PLACEMENT_ANNOTATION),
    ],
    ids=["no Deployment", "no replicas", "no placement recorded"],
)
def test_where_nothing_can_be_kept_the_nodes_of_now_decide(live: Deployment | None) -> None:
    assert settled(OF, ELSEWHERE, live) == fresh(OF, ELSEWHERE)


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"maxModelLen": 4096}},
        {"image": "mine:2"},
        {"gpu": {"count": 2}},
        {"gpu": {"vramEstimateMB": 1000}},
        {"gpu": {"vendor": "nvidia", "count": 3, "vramEstimateMB": 1000}},
        {"resources": {"requests": {"cpu": "1"}}},
    ],
)
def test_a_template_that_changes_anyway_is_made_for_the_nodes_of_now(change: Tree) -> None:
    changed = model(GPU | change, generation=2)
    found = settled(changed, ELSEWHERE, LIVE)
    assert found == fresh(changed, ELSEWHERE)
    assert isinstance(found, Plan)
    assert found.placement.accelerator.architecture == "sm_90"


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        ({"vendor": "amd"}, Reason.NO_MATCHING_NODES),
        ({"vendor": "cpu"}, Reason.BACKEND_UNSUPPORTED),
        ({"count": 8}, Reason.NO_MATCHING_NODES),
    ],
)
def test_other_gpus_that_the_spec_asks_for_are_not_what_was_recorded(
    gpu: Tree, reason: Reason
) -> None:
    found = settled(model(GPU | {"gpu": gpu}), [node(count=7)], LIVE)
    assert isinstance(found, Blocked)
    assert found.reason is reason


def test_a_vendor_that_is_named_at_last_restarts_nothing_when_it_was_found_before() -> None:
    named = model(GPU | {"gpu": {"vendor": "nvidia"}}, generation=2)
    both = [node(HOPPER), node({}, vendor="amd")]
    assert template(named, settled(named, both, LIVE)) == template(OF, plan(OF, [node(ADA)]))


def test_another_default_image_changes_the_template_too() -> None:
    environment = {"DEFAULT_VLLM_IMAGE": "mine:2"}
    assert settled(OF, ELSEWHERE, LIVE, environment=environment) == fresh(
        OF, ELSEWHERE, **environment
    )


@pytest.mark.parametrize(("seconds", "kept"), [(29, True), (30, False), (300, False)])
def test_a_pod_that_has_found_no_node_for_30_s_has_it_decided_anew(
    seconds: int, *, kept: bool
) -> None:
    waiting = (pod(), pod(NOW - timedelta(seconds=seconds)))
    found = settled(OF, ELSEWHERE, LIVE, waiting)
    assert isinstance(found, Plan)
    assert found.placement.accelerator.architecture == ("sm_89" if kept else "sm_90")
    blocked = settled(OF, [], LIVE, waiting)
    assert isinstance(blocked, Plan) is kept


def test_a_pod_that_is_on_its_way_out_waits_for_no_node() -> None:
    since = NOW - NO_PATIENCE
    gone = pod(since).model_copy(
        update={"metadata": meta_from({"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"})}
    )
    assert template(OF, settled(OF, ELSEWHERE, LIVE, (gone,))) == template(
        OF, plan(OF, [node(ADA)])
    )


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([], Reason.NO_MATCHING_NODES),
        ([node(cordoned=True)], Reason.NO_MATCHING_NODES),
        ([node(), node({}, vendor="amd")], Reason.AMBIGUOUS_GPU_VENDOR),
        ([node(MAXWELL)], Reason.BACKEND_UNSUPPORTED),
    ],
)
def test_a_cordon_restarts_no_pod_and_is_said(nodes: Sequence[Node], reason: Reason) -> None:
    found = settled(OF, nodes, LIVE)
    assert isinstance(found, Plan)
    assert found.trouble is not None
    assert found.trouble.reason is reason
    assert template(OF, found) == template(OF, plan(OF, [node(ADA)]))


def test_what_the_nodes_of_now_say_stands_in_notes_and_warnings() -> None:
    spec = GPU | {
        "gpu": {"vendor": "amd"},
        "backend": "comfyui",
        "source": "pvc://a",
        "image": "x:1",
    }
    of = model(spec)
    before = [node({"gpu.amd.com/gpu-architecture": "gfx1100"}, vendor="amd")]
    now = [node({"gpu.amd.com/gpu-architecture": "gfx906"}, vendor="amd")]
    found = settled(of, now, applied(of, plan(of, before)))
    expected = plan(of, now)
    assert isinstance(found, Plan)
    assert expected.warnings
    assert (found.notes, found.warnings) == (expected.notes, expected.warnings)
    assert found.trouble is None
    assert template(of, found) == template(of, plan(of, before))


def test_point_29_scaling_from_one_to_two_keeps_the_template_whatever_the_nodes() -> None:
    nodes = [node(), node()]
    two = model(GPU | TWO, generation=2)
    assert plan(two, nodes).spread is Spread.REQUIRED
    found = settled(two, nodes, LIVE)
    assert isinstance(found, Plan)
    assert (found.spread, found.replicas) == (Spread.PREFERRED, 2)
    assert template(two, found) == template(OF, plan(OF, nodes))
    back = settled(OF, nodes, applied(two, plan(two, nodes), 2))
    assert isinstance(back, Plan)
    assert back.spread is Spread.REQUIRED


def inherited(annotations: Mapping[str, str]) -> Deployment:
    return LIVE.model_copy(
        update={"metadata": meta_from({"name": "m", "annotations": dict(annotations)})}
    )


@pytest.mark.parametrize(
    ("annotations", "is_kept"),
    [
        ({}, True),
        ({names.GENERATION_ANNOTATION: "1"}, True),
        ({names.GENERATION_ANNOTATION: "0"}, False),
        ({names.TEMPLATE_ANNOTATION: names.INHERITED, names.GENERATION_ANNOTATION: "1"}, True),
        ({names.TEMPLATE_ANNOTATION: names.INHERITED, names.GENERATION_ANNOTATION: "0"}, False),
        ({names.TEMPLATE_ANNOTATION: names.INHERITED}, False),
    ],
)
def test_a_template_of_another_version_stays_until_the_spec_changes(
    annotations: Mapping[str, str], *, is_kept: bool
) -> None:
    found = settled(OF, ELSEWHERE, inherited(annotations))
    assert isinstance(found, Plan)
    assert found.keeps_template is is_kept
    assert settled(OF, [], inherited(annotations)) == fresh(OF, [])


def test_a_recorded_placement_that_no_server_runs_on_is_decided_anew() -> None:
    impossible = plan(OF, [node(ADA)]).placement
    maxwell = replace(impossible, accelerator=replace(impossible.accelerator, architecture="sm_52"))
    annotations = LIVE.metadata.annotations | {names.PLACEMENT_ANNOTATION: maxwell.encode()}
    meta = meta_from({"name": "m", "annotations": annotations})
    live = LIVE.model_copy(update={"metadata": meta})
    assert settled(OF, ELSEWHERE, live) == fresh(OF, ELSEWHERE)


# Whatever nodes come, go and change

LABELS: tuple[Mapping[str, str], ...] = (
    {},
    ADA,
    HOPPER,
    MAXWELL,
    ADA | {"nvidia.com/gpu.memory": "24576"},
    HOPPER | {"nvidia.com/gpu.memory": "81920"},
    {"gpu.amd.com/gpu-architecture": "gfx906"},
    {"gpu.amd.com/gpu-architecture": "gfx1100"},
    {"gpu.amd.com/gpu-architecture": "gfx942"},
)
SPECS: tuple[Tree, ...] = (
    GPU,
    GPU | TWO,
    GPU | {"gpu": {"vendor": "nvidia", "vramEstimateMB": 22000}},
    GPU | {"gpu": {"vendor": "amd", "count": 2, "shared": "g"}},
    {"backend": "vllm-omni", "source": "HF://o/m", "gpu": {}},
    {"backend": "mlc-llm", "source": "HF://o/m-q4f16_1-MLC", "gpu": {}},
    {"backend": "mlc-llm", "source": "HF://o/m-q4f32_1-MLC", "gpu": {}, "image": "mine:1"},
    {"backend": "diffusers", "source": "HF://o/m", "gpu": {}, "image": "mine:1"},
    {"backend": "comfyui", "source": "pvc://art/sdxl", "gpu": {}, "image": "mine:1"},
    {"backend": "ollama", "source": "ollama://m:1b", "gpu": {}},
    {"backend": "ollama", "source": "ollama://m:1b", **TWO},
    {"backend": "llamacpp", "source": "HF://o/m", "config": {"ggufFile": "m.gguf"}, "gpu": {}},
    {"backend": "llamacpp", "source": "pvc://w/m.gguf", **TWO},
)
nodes_of_a_moment = st.lists(
    st.builds(
        node,
        st.sampled_from(LABELS),
        vendor=st.sampled_from(["nvidia", "amd"]),
        count=st.integers(0, 3),
        cordoned=st.booleans(),
    ),
    max_size=4,
)
recent = st.integers(0, 29).map(lambda seconds: NOW - timedelta(seconds=seconds))


@settings(deadline=None)
@given(
    st.sampled_from(SPECS),
    nodes_of_a_moment,
    nodes_of_a_moment,
    st.integers(1, 3),
    st.lists(st.builds(pod, st.none() | recent), max_size=3),
)
def test_no_nodes_of_now_change_the_template_of_pods_that_were_placed(
    spec: Tree, before: Sequence[Node], now: Sequence[Node], replicas: int, pods: Sequence[Pod]
) -> None:
    of = model(spec)
    first = fresh(of, before)
    assume(isinstance(first, Plan))
    assert isinstance(first, Plan)
    found = settled(of, now, applied(of, first, replicas), pods)
    expected = fresh(of, now)
    assert template(of, found) == template(of, first)
    assert isinstance(found, Plan)
    assert found.trouble == (expected if isinstance(expected, Blocked) else None)
    assert found.replicas == first.replicas


@settings(deadline=None)
@given(st.sampled_from(SPECS), nodes_of_a_moment, nodes_of_a_moment, st.integers(1, 3))
def test_no_number_of_replicas_changes_the_template_of_pods_that_were_placed(
    spec: Tree, before: Sequence[Node], now: Sequence[Node], wanted: int
) -> None:
    of = model(spec)
    first = fresh(of, before)
    assume(isinstance(first, Plan))
    assert isinstance(first, Plan)
    scaled = model(spec | {"serverless": {"minReplicas": wanted}}, generation=2)
    found = settled(scaled, now, applied(of, first, first.most))
    assert template(scaled, found) == template(of, first)
    assert isinstance(found, Plan)
    assert found.replicas == wanted
