# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.model_status import GPUStatus, ModelStatus
from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Phase, Reason
from controllers.model import names, status
from controllers.model.decision import Blocked, Plan, decide
from controllers.model.pods import living, troubles
from controllers.model.rollout import Rollout
from controllers.model.verdict import Observed, Problem, judge
from flexinfer import conditions
from flexinfer.errors import (
    BadRequestError,
    Cause,
    ForbiddenError,
    InvalidError,
    NotOursError,
    ServerError,
    TerminalError,
)
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import meta_from
from flexinfer.reconcile import Result
from internal.gpu.accelerator import Accelerator, Vendor

if TYPE_CHECKING:
    from flexinfer.meta.condition import Condition
    from flexinfer.meta.envelope import Tree

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
META = meta_from({"name": "m", "namespace": "ns", "generation": 3, "uid": "u"})
SPEC: Tree = {"backend": "llamacpp", "source": "HF://o/m", "config": {"ggufFile": "m.gguf"}}
H100 = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_90")
NO_NODES = Blocked(reason=Reason.NO_MATCHING_NODES, message="no node")
BAD_SPEC = Blocked(reason=Reason.INVALID_SPEC, message="bad spec")


def plan(replicas: int = 1, **spec: object) -> Plan:
    serverless = {"minReplicas": replicas}
    found = decide(
        Model.model_validate(
            {"metadata": META, "spec": {**SPEC, "serverless": serverless, **spec}}
        ),
        (),
        {},
    )
    assert isinstance(found, Plan), found
    return found


def deployment(
    ready: int = 0,
    wanted: int = 1,
    *,
    paused: bool = False,
    generation: int = 3,
    **more: object,
) -> Deployment:
    metadata = {"name": "m", "annotations": {names.GENERATION_ANNOTATION: str(generation)}}
    return Deployment.model_validate(
        {
            "metadata": meta_from(metadata),
            "spec": {"replicas": wanted, "paused": paused},
            "status": {"readyReplicas": ready, **more},
        }
    )


def pod(name: str = "m-1-a", *, node: str = "n", created: str = "", **status: object) -> Pod:
    metadata: Tree = {"name": name, "creationTimestamp": created or "2026-01-01T00:00:00Z"}
    container = {"name": "model", "image": "img:1"}
    return Pod.model_validate(
        {
            "metadata": meta_from(metadata),
            "spec": {"nodeName": node, "containers": [container]},
            "status": {"phase": "Running", **status},
        }
    )


def with_container(state: Tree, *, name: str = "m-1-a", **more: object) -> Pod:
    return pod(name, containerStatuses=[{"name": "model", "state": state, **more}])


def claim(phase: str = "Bound", *modes: str) -> PersistentVolumeClaim:
    return PersistentVolumeClaim.model_validate(
        {"spec": {"accessModes": modes or ("ReadWriteMany",)}, "status": {"phase": phase}}
    )


RUNNING = with_container({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
UNSCHEDULED = pod(
    node="",
    phase="Pending",
    conditions=[
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient cpu.",
        }
    ],
)
PULLING = with_container(
    {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "img:1"'}}
)
CRASHING = with_container(
    {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
    restartCount=4,
    lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "no  memory\n"}},
)


def verdict(observed: Observed) -> tuple[Phase, Reason, str]:
    found = judge(META, observed)
    return found.phase, found.reason, found.message


# The table of verdicts


@pytest.mark.parametrize(
    ("observed", "phase", "reason", "words"),
    [
        (Observed(decision=NO_NODES), Phase.FAILED, Reason.NO_MATCHING_NODES, "no node"),
        (Observed(decision=BAD_SPEC), Phase.FAILED, Reason.INVALID_SPEC, "bad spec"),
        (
            Observed(decision=NO_NODES, deployment=deployment(1)),
            Phase.READY,
            Reason.BACKEND_READY,
            "1 of 1 replicas are ready; new pods have no place: no node",
        ),
        (
            Observed(decision=BAD_SPEC, deployment=deployment(1)),
            Phase.FAILED,
            Reason.INVALID_SPEC,
            "bad spec",
        ),
        (
            Observed(decision=plan(), problem=Problem(Reason.NOT_OURS, "theirs")),
            Phase.FAILED,
            Reason.NOT_OURS,
            "theirs",
        ),
        (
            Observed(decision=plan(0), deployment=deployment(0, 0)),
            Phase.IDLE,
            Reason.WAITING_FOR_ACTIVATION,
            "No replica is wanted",
        ),
        (
            Observed(decision=plan(2), deployment=deployment(2, 2)),
            Phase.READY,
            Reason.BACKEND_READY,
            "2 of 2 replicas are ready",
        ),
        (
            Observed(decision=plan(2), deployment=deployment(1, 2), pods=(UNSCHEDULED,)),
            Phase.READY,
            Reason.BACKEND_READY,
            "1 of 2 replicas are ready; pod m-1-a: 0/3 nodes are available",
        ),
        (
            Observed(decision=plan(), deployment=deployment(), pods=(UNSCHEDULED,)),
            Phase.PENDING,
            Reason.UNSCHEDULABLE,
            "3 Insufficient cpu",
        ),
        (
            Observed(decision=plan(), deployment=deployment(), pods=(PULLING,)),
            Phase.FAILED,
            Reason.IMAGE_PULL_FAILED,
            'image img:1 cannot be pulled: Back-off pulling image "img:1"',
        ),
        (
            Observed(decision=plan(), deployment=deployment(), pods=(CRASHING,)),
            Phase.FAILED,
            Reason.CRASH_LOOP,
            "the last time it ended with exit code 137 (OOMKilled): no memory",
        ),
        (
            Observed(decision=plan(), deployment=deployment(), pods=(RUNNING,)),
            Phase.LOADING,
            Reason.STARTING_BACKEND,
            "waiting up to 60 s for /health on port 8080 to answer",
        ),
        (
            Observed(decision=plan()),
            Phase.PENDING,
            Reason.STARTING_BACKEND,
            "0 of 1 replicas are ready; no pod was placed yet",
        ),
    ],
)
def test_verdicts(observed: Observed, phase: Phase, reason: Reason, words: str) -> None:
    found = verdict(observed)
    assert found[:2] == (phase, reason)
    assert words in found[2]


FAILURE: Tree = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods"}


@pytest.mark.parametrize(
    ("live", "words"),
    [
        (deployment(1, 2, conditions=[FAILURE]), "Pods cannot be created: exceeded quota: pods"),
        (deployment(1, 2, replicas=2, updatedReplicas=1), "pods that run an earlier spec: 1"),
        (deployment(1, 2, paused=True), "is paused: run kubectl rollout resume deployment/m"),
        (deployment(0, 2, paused=True), "is paused: run kubectl rollout resume deployment/m"),
    ],
)
def test_what_keeps_a_change_from_taking_effect_is_said(live: Deployment, words: str) -> None:
    message = verdict(Observed(decision=plan(2), deployment=live))[2]
    assert message.startswith(f"{live.status.ready_replicas} of 2 replicas are ready; ")
    assert words in message


def test_a_passing_trouble_fails_no_model_that_serves() -> None:
    trouble = Problem(Reason.APPLY_FAILED, "a webhook is silent", is_passing=True)
    found = verdict(Observed(decision=plan(), deployment=deployment(1), problem=trouble))
    text = "1 of 1 replicas are ready; a webhook is silent"
    assert found == (Phase.READY, Reason.BACKEND_READY, text)
    found = verdict(Observed(decision=plan(), deployment=deployment(), problem=trouble))
    assert found == (Phase.PENDING, Reason.APPLY_FAILED, "a webhook is silent")


@pytest.mark.parametrize(
    ("error", "reason", "wait"),
    [
        (NotOursError("theirs"), Reason.NOT_OURS, 10.0),
        (TerminalError("fixed"), Reason.FIELD_IMMUTABLE, None),
        (InvalidError("wrong"), Reason.APPLY_FAILED, 300.0),
        (BadRequestError("unreadable"), Reason.APPLY_FAILED, 300.0),
        (ForbiddenError("no right"), Reason.APPLY_FAILED, None),
        (ServerError("failed calling webhook"), Reason.APPLY_FAILED, None),
    ],
)
def test_what_stopped_a_rollout_is_told_and_tried_again(
    error: Exception, reason: Reason, wait: float | None
) -> None:
    rollout = Rollout(error=error)
    passing = isinstance(error, ServerError)
    assert rollout.problem == Problem(reason, str(error), is_passing=passing)
    if wait is None:
        with pytest.raises(type(error)):
            rollout.look_again(plan())
    else:
        assert rollout.look_again(plan()) == Result(requeue_after=wait)


def test_what_nodes_decide_is_looked_at_again_and_the_rest_is_not() -> None:
    assert Rollout().problem is None
    assert Rollout().look_again(NO_NODES) == Result(requeue_after=30.0)
    assert Rollout().look_again(BAD_SPEC) == Rollout().look_again(plan()) == Result()
    ending = ForbiddenError("ends", causes=[Cause("NamespaceTerminating", "", "")])
    assert Rollout(error=ending).look_again(plan()) == Result()


def test_a_missing_claim_is_said_whatever_serves() -> None:
    mounts = plan(source="pvc://weights/m.gguf")
    missing = "PersistentVolumeClaim weights does not exist"
    phase, reason, message = verdict(Observed(decision=mounts, deployment=deployment(1)))
    assert (phase, reason) == (Phase.READY, Reason.BACKEND_READY)
    assert message.startswith(f"1 of 1 replicas are ready; {missing}")
    earlier = deployment(1, generation=2)
    phase, reason, message = verdict(Observed(decision=mounts, deployment=earlier))
    assert (phase, reason) == (Phase.PENDING, Reason.CACHE_NOT_READY)
    assert message.startswith(missing)
    pending = Observed(decision=mounts, claim=claim("Pending"), deployment=earlier)
    assert verdict(pending)[1] is Reason.BACKEND_READY
    assert "is not bound to a volume (phase Pending)" in verdict(pending)[2]


def test_a_rollout_that_is_done_is_not_spoken_of() -> None:
    live = deployment(1, 2, replicas=1, updatedReplicas=1)
    message = verdict(Observed(decision=plan(2), deployment=live))[2]
    assert message == "1 of 2 replicas are ready"


def test_a_failure_to_create_pods_is_said() -> None:
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": 'pod rejected: RuntimeClass "nvidia" not found',
    }
    observed = Observed(decision=plan(), deployment=deployment(conditions=[failure]))
    phase, reason, message = verdict(observed)
    assert (phase, reason) == (Phase.FAILED, Reason.REPLICA_FAILURE)
    assert message == 'Pods cannot be created: pod rejected: RuntimeClass "nvidia" not found'


def test_a_rollout_without_progress_is_said() -> None:
    late = {"type": "Progressing", "status": "False", "message": "has timed out progressing."}
    observed = Observed(decision=plan(), deployment=deployment(conditions=[late]), pods=(RUNNING,))
    assert verdict(observed)[2].endswith("has timed out progressing.")


@pytest.mark.parametrize(
    ("found", "phase", "reason", "words"),
    [
        (None, Phase.PENDING, Reason.CACHE_NOT_READY, "weights does not exist; create it"),
        (claim("Pending"), Phase.PENDING, Reason.CACHE_NOT_READY, "not bound to a volume (phase P"),
        (claim("Lost"), Phase.PENDING, Reason.CACHE_NOT_READY, "(phase Lost)"),
        (claim(), Phase.PENDING, Reason.STARTING_BACKEND, "no pod was placed yet"),
    ],
)
def test_claims(
    found: PersistentVolumeClaim | None, phase: Phase, reason: Reason, words: str
) -> None:
    observed = Observed(decision=plan(source="pvc://weights/m.gguf"), claim=found)
    said = verdict(observed)
    assert said[:2] == (phase, reason)
    assert words in said[2]


def test_a_missing_claim_is_said_before_anybody_wakes_the_model() -> None:
    idle = plan(0, source="pvc://weights/m.gguf")
    assert verdict(Observed(decision=idle))[1] is Reason.CACHE_NOT_READY
    assert verdict(Observed(decision=idle, claim=claim("Pending")))[0] is Phase.IDLE


def test_replicas_that_cannot_share_a_claim_are_told_so() -> None:
    two = plan(2, source="pvc://weights/m.gguf")
    alone = Observed(decision=two, claim=claim("Bound", "ReadWriteOnce"), deployment=deployment(1))
    assert "has ReadWriteOnce, so that replicas on other nodes cannot" in verdict(alone)[2]
    shared = Observed(decision=two, claim=claim("Bound", "ReadOnlyMany"), deployment=deployment(1))
    assert "cannot mount it" not in verdict(shared)[2]


def test_what_has_no_effect_is_said_of_a_ready_model_too() -> None:
    noted = plan(1, config={"ggufFile": "m.gguf", "typo": 1})
    message = verdict(Observed(decision=noted, deployment=deployment(1)))[2]
    assert message == "1 of 1 replicas are ready; backend llamacpp does not read spec.config.typo"


def test_a_deployment_of_an_earlier_generation_serves_no_other() -> None:
    old = deployment(1).model_copy(
        update={"metadata": meta_from({"annotations": {names.GENERATION_ANNOTATION: "2"}})}
    )
    assert verdict(Observed(decision=NO_NODES, deployment=old))[0] is Phase.FAILED


# Pods


def test_what_several_pods_say_is_said_once() -> None:
    twin = UNSCHEDULED.model_copy(update={"metadata": meta_from({"name": "m-1-b"})})
    (trouble,) = troubles([twin, UNSCHEDULED])
    assert trouble.text.startswith("pod m-1-a and 1 more: 0/3 nodes")


def test_the_gravest_trouble_comes_first() -> None:
    reasons = [t.reason for t in troubles([UNSCHEDULED, PULLING, CRASHING])]
    assert reasons == [Reason.CRASH_LOOP, Reason.IMAGE_PULL_FAILED, Reason.UNSCHEDULABLE]


def test_a_container_that_keeps_ending_loops_while_it_runs_again() -> None:
    last = {"terminated": {"exitCode": 1}}
    again = with_container({"running": {}}, restartCount=2, lastState=last)
    assert troubles([again])[0].reason is Reason.CRASH_LOOP
    once = with_container({"running": {}}, restartCount=1, lastState=last)
    assert troubles([once]) == []
    served = with_container({"running": {}}, restartCount=9, lastState=last, ready=True)
    assert troubles([served]) == []


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            {"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}},
            "container model does not start: CreateContainerConfigError: no secret",
        ),
        ({"terminated": {"exitCode": 2}}, "container model ended with exit code 2"),
    ],
)
def test_other_troubles_of_containers(state: Tree, words: str) -> None:
    (trouble,) = troubles([with_container(state)])
    assert trouble.reason is Reason.STARTING_BACKEND
    assert words in trouble.text


def test_a_container_that_is_being_made_is_no_trouble() -> None:
    assert troubles([with_container({"waiting": {"reason": "ContainerCreating"}})]) == []


def test_pods_that_ended_count_only_alone() -> None:
    ended = pod("m-1-x", phase="Failed", reason="Evicted", message="disk pressure")
    assert living([ended, RUNNING]) == [RUNNING]
    (trouble,) = troubles(living([ended]))
    assert trouble.text == "pod m-1-x: ended with phase Failed: Evicted; disk pressure"


def test_pods_on_their_way_out_do_not_count() -> None:
    gone = Pod.model_validate(
        {"metadata": meta_from({"name": "g", "deletionTimestamp": "2026-01-01T00:00:00Z"})}
    )
    assert living([gone]) == []


def test_init_containers_are_heard_too() -> None:
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    sick = pod(initContainerStatuses=[{"name": "init", "state": {"waiting": waiting}}])
    assert troubles([sick])[0].reason is Reason.IMAGE_PULL_FAILED


# The whole status


def compute(
    observed: Observed, previous: ModelStatus | None = None, now: datetime = NOW
) -> ModelStatus:
    return status.compute(META, previous or ModelStatus(), observed, now=now)


def condition(of: ModelStatus, type_: str) -> Condition:
    found = conditions.find(of.conditions, type_)
    assert found is not None
    return found


def on_gpus(of: Plan) -> Plan:
    return replace(of, launch=replace(of.launch, accelerator=H100))


def test_a_ready_model() -> None:
    gpu = GPUStatus(node="n", vendor="NVIDIA")
    found = compute(Observed(decision=on_gpus(plan()), deployment=deployment(1), gpu=gpu))
    assert found.phase is Phase.READY
    assert found.observed_generation == 3
    assert found.endpoint == "http://m.ns.svc:8080"
    assert [c.type for c in found.conditions] == ["Ready", "Cached", "Schedulable"]
    assert {c.observed_generation for c in found.conditions} == {3}
    assert condition(found, "Cached").reason == "NoCacheJob"
    assert condition(found, "Schedulable").reason == "Schedulable"
    assert found.message == "1 of 1 replicas are ready"
    assert found.gpu == gpu


def test_setting_conditions_again_changes_nothing_and_a_flip_moves_the_time() -> None:
    later = NOW + timedelta(hours=1)
    first = compute(Observed(decision=plan(), deployment=deployment(1)))
    again = compute(Observed(decision=plan(), deployment=deployment(1)), first, later)
    assert again == first
    flipped = compute(Observed(decision=plan(), pods=(CRASHING,)), first, later)
    assert condition(flipped, "Ready").last_transition_time == later
    assert condition(flipped, "Cached").last_transition_time == NOW


def test_the_last_placement_is_kept_while_idle() -> None:
    gpu = GPUStatus(node="n", vendor="NVIDIA")
    found = compute(Observed(decision=on_gpus(plan(0))), ModelStatus(gpu=gpu))
    assert (found.phase, found.gpu) == (Phase.IDLE, gpu)
    found = compute(Observed(decision=NO_NODES), ModelStatus(gpu=gpu))
    assert (found.phase, found.gpu) == (Phase.FAILED, gpu)


def test_a_model_on_cpus_has_no_gpu_whatever_its_node_has() -> None:
    gpu = GPUStatus(node="n", vendor="NVIDIA")
    observed = Observed(decision=plan(), deployment=deployment(1), gpu=gpu)
    assert compute(observed, ModelStatus(gpu=gpu)).gpu is None


def test_the_substage_and_its_time() -> None:
    later = NOW + timedelta(minutes=1)
    loading = Observed(decision=plan(), deployment=deployment(), pods=(RUNNING,))
    first = compute(loading)
    assert (first.loading_substage, first.loading_progress_at) == ("HealthCheckPending", NOW)
    assert compute(loading, first, later).loading_progress_at == NOW
    creating = with_container({"waiting": {"reason": "ContainerCreating"}})
    moved = compute(Observed(decision=plan(), pods=(creating,)), first, later)
    assert (moved.loading_substage, moved.loading_progress_at) == ("Initializing", later)
    ready = compute(Observed(decision=plan(), deployment=deployment(1)), first, later)
    assert (ready.loading_substage, ready.loading_progress_at) == (None, None)


def test_drift_is_a_condition_only_while_it_lasts() -> None:
    drifted = compute(
        Observed(decision=plan(), deployment=deployment(1), drift=("Service spec.clusterIP",))
    )
    assert "Service spec.clusterIP" in condition(drifted, "ImmutableFieldDrift").message
    healed = compute(Observed(decision=plan(), deployment=deployment(1)), drifted)
    assert conditions.find(healed.conditions, "ImmutableFieldDrift") is None


def test_the_claim_is_in_the_status() -> None:
    found = compute(Observed(decision=plan(source="pvc://weights/m.gguf"), claim=claim("Pending")))
    assert found.cache is not None
    assert (found.cache.pvc_name, found.cache.ready) == ("weights", False)
    assert condition(found, "Cached").reason == "CacheNotReady"
    bound = compute(Observed(decision=plan(source="pvc://weights/m.gguf"), claim=claim()))
    assert condition(bound, "Cached").reason == "PVCBound"


def test_a_long_message_is_cut_for_the_short_one() -> None:
    found = compute(Observed(decision=Blocked(reason=Reason.INVALID_SPEC, message="x\n" * 200)))
    assert found.message is not None
    assert len(found.message) == 160
    assert "\n" not in found.message


# Whatever is observed

texts = st.text(max_size=30)
waiting = st.fixed_dictionaries(
    {
        "reason": st.sampled_from(
            ["", "CrashLoopBackOff", "ErrImagePull", "ContainerCreating", "Odd"]
        ),
        "message": texts,
    }
)
terminated = st.fixed_dictionaries({"exitCode": st.integers(0, 255), "message": texts})
states = st.one_of(
    st.just({}),
    st.builds(lambda w: {"waiting": w}, waiting),
    st.builds(lambda t: {"terminated": t}, terminated),
    st.just({"running": {}}),
)
container_statuses = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["model", "other"]),
        "ready": st.booleans(),
        "restartCount": st.integers(0, 5),
        "state": states,
        "lastState": states,
    }
)
pod_conditions = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["Ready", "PodScheduled"]),
            "status": st.sampled_from(["True", "False", "Unknown"]),
            "message": texts,
        }
    ),
    max_size=2,
)
pods = st.lists(
    st.builds(
        pod,
        st.sampled_from(["m-1-a", "m-1-b"]),
        node=st.sampled_from(["", "n"]),
        phase=st.sampled_from(["", "Pending", "Running", "Failed", "Succeeded"]),
        conditions=pod_conditions,
        containerStatuses=st.lists(container_statuses, max_size=2),
    ),
    max_size=3,
).map(tuple)
deployments = st.none() | st.builds(
    deployment,
    st.integers(0, 3),
    st.integers(0, 3),
    conditions=st.lists(
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["ReplicaFailure", "Progressing"]),
                "status": st.sampled_from(["True", "False"]),
                "message": texts,
            }
        ),
        max_size=2,
    ),
)
plans = st.builds(
    plan, st.integers(0, 3), source=st.sampled_from(["HF://o/m", "pvc://weights/m.gguf"])
)
decisions = plans | st.builds(Blocked, reason=st.sampled_from(Reason), message=texts)
problems = st.none() | st.builds(Problem, st.sampled_from(Reason), texts)
observations = st.builds(
    Observed,
    decision=decisions,
    claim=st.none() | st.builds(claim, st.sampled_from(["", "Pending", "Bound", "Lost"])),
    deployment=deployments,
    pods=pods,
    problem=problems,
    drift=st.lists(texts, max_size=2).map(tuple),
)


@given(observations, observations)
def test_whatever_is_seen_ready_says_why_and_saying_it_again_changes_nothing(
    before: Observed, after: Observed
) -> None:
    first = compute(after, compute(before))
    ready = condition(first, "Ready")
    assert ready.reason in set(Reason)
    assert (ready.status == "True") == (first.phase is Phase.READY)
    assert ready.observed_generation == first.observed_generation == 3
    assert conditions.find(first.conditions, "Schedulable") is not None
    assert compute(after, first, NOW + timedelta(days=1)) == first
    ModelStatus.model_validate(first.wire())
