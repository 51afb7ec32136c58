# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from controllers.model import names
from controllers.model.turns import Turn, holds_gpu, is_at_rest, take_turn
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import Tree, meta_from

REPLICA_SET: Tree = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "a-1",
    "uid": "u",
    "controller": True,
}
JOB = REPLICA_SET | {"apiVersion": "batch/v1", "kind": "Job"}


def pod(
    model: str, phase: str = "Running", *, going: bool = False, owner: Tree | None = REPLICA_SET
) -> Pod:
    metadata: Tree = {"name": f"{model}-1-x", "labels": {names.MODEL_LABEL: model}}
    if going:
        metadata["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    if owner:
        metadata["ownerReferences"] = [owner]
    return Pod.model_validate({"metadata": meta_from(metadata), "status": {"phase": phase}})


def deployment(name: str, replicas: int = 0, *, seen: int = 2, left: int = 0) -> Deployment:
    return Deployment.model_validate(
        {
            "metadata": meta_from({"name": name, "generation": 2}),
            "spec": {"replicas": replicas},
            "status": {"observedGeneration": seen, "replicas": left},
        }
    )


def turn(wanted: int, pods: list[Pod], deployments: list[Deployment] | None = None) -> Turn:
    return take_turn("a", wanted, pods=pods, deployments=deployments or [])


def test_it_starts_when_nobody_else_is_there() -> None:
    rest = [deployment("a"), deployment("b")]
    assert turn(2, [], rest) == Turn(replicas=2)
    assert turn(2, []) == Turn(replicas=2)


@pytest.mark.parametrize("phase", ["Running", "Pending", "Unknown", ""])
@pytest.mark.parametrize("going", [False, True])
def test_a_pod_of_another_is_waited_for_until_it_is_gone(phase: str, *, going: bool) -> None:
    waits = Turn(replicas=0, waiting="waiting for the pods of b to go: 1 left")
    assert turn(1, [pod("b", phase, going=going)], [deployment("b")]) == waits


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_ended_holds_nothing(phase: str) -> None:
    assert turn(1, [pod("b", phase)]) == Turn(replicas=1)
    assert turn(1, [pod("b", phase, going=True)]) == Turn(replicas=1)


def test_pods_of_several_are_counted() -> None:
    waits = "waiting for the pods of b and c to go: 3 left"
    assert turn(1, [pod("c"), pod("b"), pod("c")]).waiting == waits


def test_pods_of_jobs_hold_no_gpus_and_those_without_a_controller_may() -> None:
    assert not holds_gpu(pod("b", owner=JOB))
    assert holds_gpu(pod("b", owner=None))
    stray = Pod.model_validate({"metadata": meta_from({"name": "stray"})})
    assert turn(1, [stray]).waiting == "waiting for the pods of stray to go: 1 left"


@pytest.mark.parametrize(
    "other",
    [deployment("b", 1), deployment("b", seen=1), deployment("b", left=1)],
    ids=["asks for pods", "not seen by its controller", "its pods are not ended"],
)
def test_a_deployment_of_another_is_waited_for_until_it_rests(other: Deployment) -> None:
    assert not is_at_rest(other)
    waits = Turn(replicas=0, waiting="waiting for the Deployment of b to end its pods")
    assert turn(1, [], [other, deployment("c"), deployment("a", 1)]) == waits


def test_its_own_pods_and_deployment_are_never_in_its_way() -> None:
    """A rollout ends the old pod before it makes the new one; it must not wait for itself."""
    own = [deployment("a", 1, seen=1, left=1), deployment("b")]
    assert turn(1, [pod("a", going=True)], own) == Turn(replicas=1)
    assert turn(1, [pod("a", going=True), pod("a", "Pending")], own) == Turn(replicas=1)
    assert turn(1, [], own) == Turn(replicas=1)


def test_it_keeps_what_runs_when_somebody_scales_another() -> None:
    assert turn(2, [pod("a"), pod("b")], [deployment("b", 1)]) == Turn(replicas=2)
    assert turn(1, [pod("a", "Pending")], [deployment("b", 1)]) == Turn(replicas=1)


def test_pods_that_end_are_no_reason_to_start_again_beside_another() -> None:
    waits = "waiting for the pods of b to go: 1 left"
    assert turn(1, [pod("a", going=True), pod("b")]) == Turn(replicas=0, waiting=waits)
    assert turn(1, [pod("a", "Failed"), pod("b")]) == Turn(replicas=0, waiting=waits)


def test_who_wants_nothing_waits_for_nothing() -> None:
    assert turn(0, [pod("b")], [deployment("b", 1)]) == Turn(replicas=0)


def test_who_makes_way_starts_nothing_and_keeps_what_it_has() -> None:
    waits = Turn(replicas=0, waiting="making way for b")
    assert take_turn("a", 1, pods=[], deployments=[], yields_to="b") == waits
    going = [pod("a", going=True)]
    assert take_turn("a", 1, pods=going, deployments=[], yields_to="b") == waits
    assert take_turn("a", 1, pods=[pod("a")], deployments=[], yields_to="b") == Turn(replicas=1)
