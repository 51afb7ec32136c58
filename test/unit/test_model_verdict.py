# SPDX-License-Identifier: Apache-2.0
"""Does a Model serve, and if not, why: the table of verdicts, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_status import CacheStatus, SharedGroupStatus
from api.flexinfer.v1alpha2.reasons import Phase, Reason
from controllers.model import names
from controllers.model.cache_state import CacheState
from controllers.model.decision import Blocked, Plan
from controllers.model.demand import Demand
from controllers.model.member import GroupState
from controllers.model.standing import Standing
from controllers.model.verdict import Observed, Problem, judge
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import meta_from
from hack.modelcases import NOW
from hack.modelcases.plans import META, NO_NODES, plan

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

BAD_SPEC = Blocked(reason=Reason.INVALID_SPEC, message="bad spec")


def deployment(
    ready: int = 0, wanted: int = 1, *, paused: bool = False, generation: int = 3, **more: object
) -> Deployment:
    metadata = {"name": "m", "annotations": {names.GENERATION_ANNOTATION: str(generation)}}
    return Deployment.model_validate(
        {
            "metadata": meta_from(metadata),
            "spec": {"replicas": wanted, "paused": paused},
            "status": {"readyReplicas": ready, **more},
        }
    )


def pod(state: Tree | None = None, *, node: str = "n", **status: object) -> Pod:
    containers = [{"name": "model", "state": state, "restartCount": 4}] if state else []
    return Pod.model_validate(
        {
            "metadata": meta_from({"name": "m-1-a", "creationTimestamp": "2026-01-01T00:00:00Z"}),
            "spec": {"nodeName": node, "containers": [{"name": "model", "image": "img:1"}]},
            "status": {"phase": "Running", "containerStatuses": containers, **status},
        }
    )


def cache(
    message: str = "fetching", *, may_start: bool = False, failed: bool = False
) -> CacheState:
    return CacheState(
        is_cached=False,
        reason=Reason.CACHE_NOT_READY,
        message=message,
        may_start=may_start,
        is_failed=failed,
        status=CacheStatus(),
    )


def standing(state: GroupState, **more: object) -> Standing:
    by = None if state is GroupState.ACTIVE else "b"
    values: Tree = {"preempted_by": by, "queue_position": 1, **more}
    return Standing(status=SharedGroupStatus(group_name="g", state=state, **values))


def in_group(
    at: Standing, wanted: int = 1, *, replicas: int = 0, waiting: str = "", outlook: str = ""
) -> Demand:
    return Demand(
        replicas=replicas,
        wanted=wanted,
        idle="" if wanted else "nobody asked",
        waiting=waiting,
        outlook=outlook,
        standing=at,
    )


CACHED = CacheState(
    is_cached=True,
    reason=Reason.PREFETCH_SUCCEEDED,
    message="The weights are there",
    may_start=True,
    status=CacheStatus(ready=True),
)
WANTED, IDLE = Demand(replicas=1, wanted=1), Demand(replicas=0, wanted=0, idle="nobody asked")
LOST = in_group(standing(GroupState.PREEMPTED, preempted_at=NOW), outlook="b is in use")
QUEUED = in_group(standing(GroupState.QUEUED), outlook="b is in use")
WAITING = in_group(standing(GroupState.ACTIVE), waiting="waiting for the pods of b to go: 1 left")
LEADS = in_group(standing(GroupState.ACTIVE), replicas=1)

RUNNING = pod({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
UNSCHEDULED = pod(
    node="",
    phase="Pending",
    conditions=[
        {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: no cpu."}
    ],
)
PULLING = pod({"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling "img:1"'}})
CRASHING = pod({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}})
FAILURE: Tree = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods"}
SILENT = Problem(Reason.APPLY_FAILED, "a webhook is silent", is_passing=True)
THEIRS = Problem(Reason.NOT_OURS, "theirs")


def see(decision: Plan | Blocked | None = None, **more: object) -> Observed:
    """What there is to see of a Model that is wanted and has its weights, unless told otherwise."""
    values: Tree = {"cache": CACHED, "demand": WANTED, **more}
    return Observed(decision=decision or plan(), **values)


def verdict(observed: Observed) -> tuple[Phase, Reason, str]:
    found = judge(META, observed)
    assert found.is_ready is (found.phase is Phase.READY)
    return found.phase, found.reason, found.message


# The table, row by row; each is seen together with what a later row speaks of.
ROWS: dict[str, tuple[Observed, Phase, Reason, str]] = {
    "the spec is wrong": (
        see(BAD_SPEC, deployment=deployment(1)),
        Phase.FAILED,
        Reason.INVALID_SPEC,
        "bad spec",
    ),
    "no node fits": (see(NO_NODES), Phase.FAILED, Reason.NO_MATCHING_NODES, "no node"),
    "no node fits and nothing serves yet": (
        see(NO_NODES, deployment=deployment(0), pods=(CRASHING,)),
        Phase.FAILED,
        Reason.NO_MATCHING_NODES,
        "no node",
    ),
    "no node fits and pods of an earlier spec serve": (
        see(NO_NODES, deployment=deployment(1, generation=2)),
        Phase.FAILED,
        Reason.NO_MATCHING_NODES,
        "no node",
    ),
    "nodes were cordoned and pods of this very spec serve": (
        see(NO_NODES, deployment=deployment(1)),
        Phase.READY,
        Reason.BACKEND_READY,
        "1 of 1 replicas are ready; new pods have no place: no node",
    ),
    "an object could not be applied": (
        see(problem=THEIRS, deployment=deployment(1), cache=None),
        Phase.FAILED,
        Reason.NOT_OURS,
        "theirs",
    ),
    "a passing trouble and no replica is ready": (
        see(problem=SILENT, deployment=deployment(), cache=cache(), pods=(CRASHING,)),
        Phase.PENDING,
        Reason.APPLY_FAILED,
        "a webhook is silent",
    ),
    "a passing trouble and a replica is ready": (
        see(problem=SILENT, deployment=deployment(1)),
        Phase.READY,
        Reason.BACKEND_READY,
        "1 of 1 replicas are ready; a webhook is silent",
    ),
    "the weights are not there": (
        see(cache=cache(), demand=LOST, pods=(UNSCHEDULED,)),
        Phase.PENDING,
        Reason.CACHE_NOT_READY,
        "fetching; pod m-1-a: 0/3 nodes are available: no cpu.",
    ),
    "the weights are not there, and waking would fail": (
        see(cache=cache(failed=True), demand=IDLE),
        Phase.FAILED,
        Reason.CACHE_NOT_READY,
        "fetching",
    ),
    "the weights of this spec are not there, and pods of an earlier one serve": (
        see(cache=cache(), deployment=deployment(1, generation=2)),
        Phase.PENDING,
        Reason.CACHE_NOT_READY,
        "fetching",
    ),
    "the weights went while pods of this very spec serve": (
        see(cache=cache("weights is gone"), deployment=deployment(1)),
        Phase.READY,
        Reason.BACKEND_READY,
        "1 of 1 replicas are ready; weights is gone",
    ),
    "another Model took the GPUs": (
        see(demand=LOST, deployment=deployment(1)),
        Phase.PREEMPTED,
        Reason.PREEMPTED,
        "Preempted at 2026-01-02T03:04:05Z: b has its turn in group g; b is in use",
    ),
    "another Model took the GPUs and nobody asks for this one": (
        see(demand=replace(LOST, wanted=0)),
        Phase.PREEMPTED,
        Reason.PREEMPTED,
        "b has its turn in group g; b is in use",
    ),
    "another Model has the GPUs": (
        see(demand=QUEUED),
        Phase.PENDING,
        Reason.PREEMPTED,
        "Waiting for its turn in group g, place 1 in the queue: b is first; b is in use",
    ),
    "another Model has the GPUs, and this one is not asked for": (
        see(demand=in_group(standing(GroupState.QUEUED), 0)),
        Phase.IDLE,
        Reason.WAITING_FOR_ACTIVATION,
        "nobody asked",
    ),
    "no replica is wanted": (
        see(demand=IDLE, deployment=deployment(1)),
        Phase.IDLE,
        Reason.WAITING_FOR_ACTIVATION,
        "nobody asked",
    ),
    "the pods of another Model have to go first": (
        see(demand=WAITING, deployment=deployment(0, 0)),
        Phase.PENDING,
        Reason.STARTING_BACKEND,
        "waiting for the pods of b to go: 1 left",
    ),
    "a replica is ready": (
        see(plan(2), deployment=deployment(1, 2, conditions=[FAILURE]), pods=(UNSCHEDULED,)),
        Phase.READY,
        Reason.BACKEND_READY,
        "1 of 2 replicas are ready; Pods cannot be created: exceeded quota: pods; pod m-1-a: 0/3",
    ),
    "a replica of the leader is ready": (
        see(demand=LEADS, deployment=deployment(1)),
        Phase.READY,
        Reason.BACKEND_READY,
        "1 of 1 replicas are ready",
    ),
    "pods cannot be created": (
        see(deployment=deployment(conditions=[FAILURE]), pods=(CRASHING,)),
        Phase.FAILED,
        Reason.REPLICA_FAILURE,
        "Pods cannot be created: exceeded quota: pods",
    ),
    "a container crashes": (
        see(deployment=deployment(), pods=(CRASHING,)),
        Phase.FAILED,
        Reason.CRASH_LOOP,
        "0 of 1 replicas are ready; pod m-1-a: container model ends again and again",
    ),
    "an image cannot be pulled": (
        see(deployment=deployment(), pods=(PULLING,)),
        Phase.FAILED,
        Reason.IMAGE_PULL_FAILED,
        'image img:1 cannot be pulled: Back-off pulling "img:1"',
    ),
    "the scheduler finds no place": (
        see(deployment=deployment(), pods=(UNSCHEDULED,)),
        Phase.PENDING,
        Reason.UNSCHEDULABLE,
        "0 of 1 replicas are ready; pod m-1-a: 0/3 nodes are available: no cpu.",
    ),
    "pods are to start": (
        see(),
        Phase.PENDING,
        Reason.STARTING_BACKEND,
        "0 of 1 replicas are ready; no pod was placed yet",
    ),
    "pods start": (
        see(deployment=deployment(), pods=(RUNNING,)),
        Phase.LOADING,
        Reason.STARTING_BACKEND,
        "waiting up to 60 s for /health on port 8080 to answer",
    ),
    "a pod that starts is held up": (
        see(
            deployment=deployment(),
            pods=(pod({"waiting": {"reason": "CreateContainerConfigError", "message": "x"}}),),
        ),
        Phase.LOADING,
        Reason.STARTING_BACKEND,
        "container model does not start: CreateContainerConfigError: x",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_table_row_by_row(row: str) -> None:
    observed, phase, reason, words = ROWS[row]
    found = verdict(observed)
    assert found[:2] == (phase, reason)
    assert words in found[2]


def test_point_28_each_failure_has_a_reason_and_is_final_only_where_it_is() -> None:
    unknown = Blocked(reason=Reason.BACKEND_UNSUPPORTED, message="spec.backend 'x' is unknown")
    assert verdict(see(unknown)) == (Phase.FAILED, Reason.BACKEND_UNSUPPORTED, unknown.message)
    small = Blocked(reason=Reason.VRAM_INSUFFICIENT, message="too much")
    assert verdict(see(small))[:2] == (Phase.FAILED, Reason.VRAM_INSUFFICIENT)
    crashing = see(deployment=deployment(), pods=(CRASHING,))
    assert verdict(crashing)[:2] == (Phase.FAILED, Reason.CRASH_LOOP)
    assert verdict(see(deployment=deployment(1), pods=(RUNNING,)))[0] is Phase.READY


def test_point_31_a_loser_is_preempted_by_whom_and_when_and_one_that_waits_is_not() -> None:
    assert verdict(see(demand=LOST))[0] is Phase.PREEMPTED
    assert verdict(see(demand=QUEUED))[0] is Phase.PENDING
    untold = in_group(standing(GroupState.PREEMPTED))
    assert verdict(see(demand=untold))[2] == "Preempted: b has its turn in group g"


@pytest.mark.parametrize(
    ("live", "words"),
    [
        (deployment(1, 2, conditions=[FAILURE]), "Pods cannot be created: exceeded quota: pods"),
        (deployment(1, 2, replicas=2, updatedReplicas=1), "pods that run an earlier spec: 1"),
        (deployment(1, 2, paused=True), "is paused: run `kubectl rollout resume deployment/m`"),
        (deployment(0, 2, paused=True), "is paused: run `kubectl rollout resume deployment/m`"),
    ],
)
def test_what_keeps_a_change_from_taking_effect_is_said(live: Deployment, words: str) -> None:
    message = verdict(see(plan(2), deployment=live))[2]
    assert message.startswith(f"{live.status.ready_replicas} of 2 replicas are ready; ")
    assert words in message


def test_a_rollout_that_is_done_is_not_spoken_of() -> None:
    live = deployment(1, 2, replicas=1, updatedReplicas=1)
    assert verdict(see(plan(2), deployment=live))[2] == "1 of 2 replicas are ready"


def test_a_failure_to_create_pods_is_said_by_its_reason_at_least() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    message = verdict(see(deployment=deployment(conditions=[failure])))[2]
    assert message == "Pods cannot be created: FailedCreate"
    healed = deployment(conditions=[failure | {"status": "False"}])
    assert verdict(see(deployment=healed))[1] is Reason.STARTING_BACKEND


@pytest.mark.parametrize(
    ("status", "words"), [("False", "timed out progressing."), ("True", "to answer")]
)
def test_a_rollout_without_progress_is_said(status: str, words: str) -> None:
    late = {"type": "Progressing", "status": status, "message": "timed out progressing."}
    observed = see(deployment=deployment(conditions=[late]), pods=(RUNNING,))
    assert verdict(observed)[2].endswith(words)
    assert verdict(replace(observed, deployment=None))[2].endswith("to answer")


def test_what_a_user_should_know_is_said_of_a_ready_model_too() -> None:
    noted = plan(1, config={"ggufFile": "m.gguf", "typo": 1})
    observed = see(noted, deployment=deployment(1), notes=("the claim stays larger",))
    assert verdict(observed)[2] == (
        "1 of 1 replicas are ready; backend llamacpp does not read spec.config.typo; "
        "the claim stays larger"
    )


@pytest.mark.parametrize(
    ("live", "pods", "phase"),
    [(deployment(1), (), Phase.READY), (deployment(), (RUNNING,), Phase.LOADING)],
)
def test_nodes_that_would_take_no_new_pod_fail_no_model_whose_pods_can_stay(
    live: Deployment, pods: tuple[Pod, ...], phase: Phase
) -> None:
    found = verdict(see(replace(plan(), trouble=NO_NODES), deployment=live, pods=pods))
    assert found[0] is phase
    assert found[2].endswith("; new pods have no place: no node")


def test_a_leader_that_loads_goes_on_while_its_weights_are_made_anew() -> None:
    loads = see(cache=cache(), demand=replace(LEADS, keeps_loading=True), pods=(RUNNING,))
    assert verdict(loads)[:2] == (Phase.LOADING, Reason.STARTING_BACKEND)
    earlier = replace(loads, deployment=deployment(1, generation=2))
    assert verdict(earlier)[:2] == (Phase.PENDING, Reason.CACHE_NOT_READY)


def test_without_an_answer_from_cache_and_group_pods_alone_decide() -> None:
    observed = Observed(decision=plan(), deployment=deployment(1))
    assert verdict(observed) == (Phase.READY, Reason.BACKEND_READY, "1 of 1 replicas are ready")


@pytest.mark.parametrize(
    ("spec", "message", "is_said"),
    [
        ({"cache": {}}, "1 node(s) didn't match PersistentVolume's node affinity", True),
        ({"cache": {}}, "3 Insufficient nvidia.com/gpu", False),
        (
            {"cache": {"strategy": "None"}},
            "1 node(s) didn't match PersistentVolume's node affinity",
            False,
        ),
    ],
)
def test_a_claim_on_a_node_that_does_not_fit_is_named_with_the_cure(
    spec: Tree, message: str, *, is_said: bool
) -> None:
    unplaced = {"type": "PodScheduled", "status": "False", "message": message}
    waiting = pod(node="", conditions=[unplaced], phase="Pending")
    found = see(decision=plan(**spec), deployment=deployment(), pods=(waiting,))
    assert ("delete the claim to have it made anew" in verdict(found)[2]) is is_said
