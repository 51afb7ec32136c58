# SPDX-License-Identifier: Apache-2.0
"""How many replicas a Model has now: alone, and in its turn on shared GPUs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model import names
from controllers.model.activity import Use, use_of
from controllers.model.decision import Blocked, Plan, Reading, decide, read
from controllers.model.demand import Demand, Group, demand
from controllers.model.member import GroupState
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.node import Node
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import meta_from

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SPEC: Tree = {"backend": "vllm", "source": "HF://o/m", "gpu": {}}
BLOCKED = Blocked(reason=Reason.NO_MATCHING_NODES, message="no node")
STATUS: Tree = {
    "allocatable": {"nvidia.com/gpu": "8"},
    "conditions": [{"type": "Ready", "status": "True"}],
}
NODE = Node.model_validate({"metadata": meta_from({"name": "n"}), "status": STATUS})
IDLE_SECONDS = 300


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def model(
    name: str = "m", asked: float | None = None, *, status: Tree | None = None, **spec: object
) -> Model:
    """A Model that was asked for so many seconds ago, or never."""
    signal = {} if asked is None else {"lastActiveTime": ago(asked)}
    meta = meta_from({"name": name, "namespace": "ns", "uid": name, "generation": 3})
    tree = {"metadata": meta, "spec": SPEC | spec, "status": signal | (status or {})}
    return Model.model_validate(tree)


def member(
    name: str = "m",
    asked: float | None = None,
    *,
    shared: Tree | None = None,
    phase: str = "Idle",
    **gpu: object,
) -> Model:
    """A Model of the group whose weights are there; *shared* is how it stood."""
    stood = {"sharedGroup": {"groupName": "g"} | shared} if shared else {}
    status: Tree = {"phase": phase, "cache": {"ready": True}, **stood}
    return model(name, asked, status=status, gpu={"shared": "g", **gpu})


def pod(of: str) -> Pod:
    meta = {"name": f"{of}-1-a", "uid": f"{of}-1-a", "labels": {names.MODEL_LABEL: of}}
    return Pod.model_validate({"metadata": meta_from(meta), "status": {"phase": "Running"}})


def deployment(of: str, replicas: int = 1) -> Deployment:
    tree = {"metadata": meta_from({"name": of}), "spec": {"replicas": replicas}}
    return Deployment.model_validate(tree | {"status": {"replicas": replicas}})


ACTIVE: Tree = {"state": "Active", "queuePosition": 0}


def decided(of: Model) -> Plan:
    reading = read(of)
    assert isinstance(reading, Reading)
    found = decide(of, reading, [NODE], {})
    assert isinstance(found, Plan), found
    return found


def want(of: Model, group: Group | None = None, use: Use | None = None) -> Demand:
    return demand(of, decided(of), use or use_of(of.status, ()), group, now=NOW)


# Alone


def test_a_model_that_nobody_asked_for_wants_none_and_says_why() -> None:
    found = want(model())
    assert (found.replicas, found.wanted, found.until) == (0, 0, None)
    assert "it was not asked for yet" in found.idle
    assert (found.standing, found.swapped, found.waiting) == (None, None, "")


def test_a_model_that_was_asked_for_is_awake_until_its_backend_counts_as_idle() -> None:
    found = want(model(asked=100))
    assert (found.replicas, found.wanted, found.idle) == (1, 1, "")
    assert found.until == ago(100 - IDLE_SECONDS)
    assert want(model(asked=IDLE_SECONDS)).replicas == 0
    images: Tree = {"backend": "comfyui", "image": "mine:1", "source": "pvc://art/sdxl"}
    assert want(model(asked=IDLE_SECONDS, **images)).until == ago(-300)


def test_a_start_may_take_its_whole_budget() -> None:
    slow = model(asked=400, serverless={"coldStartTimeout": "30m"})
    use = Use(last_active=ago(400), loading_since=ago(390))
    assert want(slow, use=use).until == ago(390 - 1800)


@pytest.mark.parametrize(
    ("serverless", "replicas"),
    [({"enabled": False}, 1), ({"minReplicas": 2}, 2), ({"enabled": False, "minReplicas": 3}, 3)],
)
def test_point_29_replicas_that_are_always_wanted_need_no_request(
    serverless: Tree, replicas: int
) -> None:
    found = want(model(serverless=serverless))
    assert (found.replicas, found.wanted, found.until) == (replicas, replicas, None)


def test_what_cannot_be_rolled_out_wants_nothing() -> None:
    of = model(asked=0)
    found = demand(of, BLOCKED, use_of(of.status, ()), None, now=NOW)
    assert found == Demand(replicas=0, wanted=0)


# In a group


def test_the_leader_has_its_replicas_when_nobody_is_in_its_way() -> None:
    of = member(asked=10)
    other = member("b")
    group = Group(models=(of, other), pods=(pod("m"),), deployments=(deployment("b", 0),))
    found = want(of, group)
    assert (found.replicas, found.wanted, found.waiting) == (1, 1, "")
    assert found.standing is not None
    assert (found.standing.status.state, found.standing.status.group_name) == ("Active", "g")
    assert found.swapped is None


def test_the_leader_waits_until_the_pods_of_the_others_are_gone() -> None:
    of, other = member(asked=10), member("b")
    found = want(of, Group(models=(of, other), pods=(pod("b"),)))
    assert (found.replicas, found.wanted) == (0, 1)
    assert found.waiting == "waiting for the pods of b to go: 1 left"
    found = want(of, Group(models=(of, other), deployments=(deployment("b"),)))
    assert found.replicas == 0
    assert "Deployment of b" in found.waiting


def test_one_that_is_to_yield_starts_nothing_and_keeps_what_it_runs() -> None:
    of = member(asked=10, shared=ACTIVE, phase="Pending", priority=1)
    leader = member("b", 5)
    found = want(of, Group(models=(of, leader)))
    assert (found.replicas, found.wanted, found.waiting) == (0, 1, "making way for b")
    assert want(of, Group(models=(of, leader), pods=(pod("m"),))).replicas == 1


@pytest.mark.parametrize(("phase", "goes_on"), [("Loading", True), ("Pending", False)])
def test_a_leader_that_was_asked_for_lately_goes_on_loading(phase: str, *, goes_on: bool) -> None:
    of = member(asked=10, shared=ACTIVE, phase=phase)
    assert want(of, Group(models=(of,))).keeps_loading is goes_on
    assert not want(of).keeps_loading


def test_all_but_the_leader_have_none_however_they_are_asked_for() -> None:
    of, leader = member(asked=10), member("b", 5, shared=ACTIVE, phase="Ready")
    found = want(of, Group(models=(of, leader), pods=(pod("b"), pod("m"))))
    assert (found.replicas, found.wanted, found.waiting) == (0, 1, "")
    assert found.standing is not None
    assert (found.standing.status.state, found.standing.status.preempted_by) == ("Queued", "b")
    text = "b is in use; the turn of m comes at 2026-01-02T03:06:00Z at the earliest"
    assert found.outlook == text


def test_one_that_nobody_asks_for_is_told_of_the_others_only_if_they_took_its_gpus() -> None:
    leader = member("b", 5, shared=ACTIVE, phase="Ready")
    assert want(member(), Group(models=(leader,))).outlook == ""
    lost: Tree = {"state": GroupState.PREEMPTED, "preemptedBy": "b", "preemptedAt": ago(400)}
    found = want(member(shared=lost, phase="Preempted"), Group(models=(leader,)))
    assert found.outlook.startswith("b is in use; the turn of m comes at ")
    idle = member("b", 200, shared=ACTIVE, phase="Ready")
    found = want(member(shared=lost, phase="Preempted"), Group(models=(idle,)))
    assert "wake it with `flexinfer wake m -n ns`" in found.outlook
    assert want(idle, Group(models=(idle,))).outlook == ""


def test_one_that_waits_is_looked_at_again_when_what_it_was_told_may_change() -> None:
    leader = member("b", 5, shared=ACTIVE, phase="Ready")
    lost: Tree = {"groupName": "g", "state": GroupState.PREEMPTED, "preemptedAt": ago(400)}
    for failed, until in (({}, ago(5 - 120)), ({"failedAt": ago(60)}, ago(60 - 600))):
        status: Tree = {"phase": "Preempted", "cache": {"ready": True}, "observedGeneration": 3}
        of = model(status=status | {"sharedGroup": lost | failed}, gpu={"shared": "g"})
        assert want(of, Group(models=(leader,))).until == until


def test_the_model_counts_as_it_is_read_now_and_not_as_its_group_was_listed() -> None:
    of, stale, other = member(asked=10), member(), member("b", priority=200)
    assert want(of, Group(models=(stale, other))).replicas == 1
    assert want(of, Group(models=(other,))).replicas == 1


def test_a_model_that_cannot_be_rolled_out_stands_in_its_group_all_the_same() -> None:
    of, other = member(asked=10, phase="Failed"), member("b")
    group = Group(models=(of, other))
    found = demand(of, BLOCKED, use_of(of.status, ()), group, now=NOW)
    assert (found.replicas, found.wanted) == (0, 0)
    assert found.standing is not None
    assert found.standing.status.preempted_by == "b"


def test_the_answer_changes_when_that_of_the_activity_or_of_the_election_does() -> None:
    of, leader = member(asked=5), member("b", 10, shared=ACTIVE, phase="Ready")
    assert want(of).until == ago(5 - IDLE_SECONDS)
    assert want(of, Group(models=(of, leader))).until == ago(10 - 120)
    warm = model(gpu={"shared": "g"}, serverless={"enabled": False})
    assert want(warm, Group(models=(warm,))).until is None


def test_a_swap_began_when_another_member_lost_its_gpus_to_this_one() -> None:
    of = member(asked=10)
    lost: Tree = {"state": GroupState.PREEMPTED}
    others = (
        member("b", shared=lost | {"preemptedBy": "m", "preemptedAt": ago(9)}),
        member("c", shared=lost | {"preemptedBy": "m", "preemptedAt": ago(99)}),
        member("d", shared=lost | {"preemptedBy": "b", "preemptedAt": ago(1)}),
        member("e", shared=lost | {"preemptedBy": "m"}),
        member("f"),
    )
    assert want(of, Group(models=(of, *others))).swapped == ago(9)
    assert want(of, Group(models=(of, *others[2:]))).swapped is None


@pytest.mark.parametrize(
    ("cooldown", "replicas"), [("10s", 1), ("0s", 1), (None, 0), ("1m", 0), ("10m", 0)]
)
def test_point_31_a_cooldown_shortens_the_wait_of_a_group_as_well(
    cooldown: str | None, replicas: int
) -> None:
    """The incumbent swapped in 30 s ago; one of a higher priority is asked for since."""
    gpu: Tree = {} if cooldown is None else {"swapCooldown": cooldown}
    incumbent = member("b", 30, shared=ACTIVE, phase="Ready", **gpu)
    lost: Tree = {"state": GroupState.PREEMPTED, "preemptedBy": "b", "preemptedAt": ago(30)}
    of = member(asked=1, priority=200, shared=lost, phase="Preempted")
    found = want(of, Group(models=(of, incumbent)))
    assert (found.replicas, found.wanted) == (replicas, 1)
    if not replicas:
        assert found.until is not None
        assert found.until > NOW
