# SPDX-License-Identifier: Apache-2.0
"""The whole status of a Model, computed at once from what was decided and observed."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.model_spec import CacheStrategy
from api.flexinfer.v1alpha2.model_status import (
    CacheStatus,
    GPUStatus,
    ModelStatus,
    SharedGroupStatus,
)
from api.flexinfer.v1alpha2.reasons import Phase, Reason
from controllers.model import names, status
from controllers.model.activity import Use, activity
from controllers.model.cache_state import CacheState
from controllers.model.decision import Blocked, Plan
from controllers.model.demand import Demand
from controllers.model.member import GroupState
from controllers.model.standing import Standing
from controllers.model.verdict import Observed, Problem
from flexinfer import conditions
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import meta_from
from flexinfer.meta.resource import NamespacedName
from hack.modelcases import NOW
from hack.modelcases.plans import META, NO_NODES, plan
from internal.gpu.accelerator import Accelerator, Vendor

if TYPE_CHECKING:
    from flexinfer.meta.condition import Condition
    from flexinfer.meta.envelope import Tree

H100 = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_90")
IDLE = Demand(replicas=0, wanted=0, idle="nobody asked")


def deployment(ready: int = 0, wanted: int = 1, **more: object) -> Deployment:
    metadata = {"name": "m", "annotations": {names.GENERATION_ANNOTATION: "3"}}
    return Deployment.model_validate(
        {
            "metadata": meta_from(metadata),
            "spec": {"replicas": wanted},
            "status": {"readyReplicas": ready, **more},
        }
    )


def pod(name: str = "m-1-a", *, node: str = "n", **status: object) -> Pod:
    metadata: Tree = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    container = {"name": "model", "image": "img:1"}
    return Pod.model_validate(
        {
            "metadata": meta_from(metadata),
            "spec": {"nodeName": node, "containers": [container]},
            "status": {"phase": "Running", **status},
        }
    )


def with_container(state: Tree, **more: object) -> Pod:
    return pod(containerStatuses=[{"name": "model", "state": state, **more}])


def cache(
    reason: Reason = Reason.PREFETCH_SUCCEEDED, message: str = "fetched", *, failed: bool = False
) -> CacheState:
    is_cached = reason is not Reason.CACHE_NOT_READY
    return CacheState(
        is_cached=is_cached,
        reason=reason,
        message=message,
        may_start=is_cached,
        is_failed=failed,
        status=CacheStatus(strategy=CacheStrategy.SHARED_PVC, ready=is_cached, pvc_name="m-cache"),
    )


def in_group(state: GroupState, *, replicas: int = 0, **more: object) -> Demand:
    values: Tree = {"queue_position": 0, **more}
    shared = SharedGroupStatus(group_name="g", state=state, **values)
    return Demand(replicas=replicas, wanted=1, standing=Standing(status=shared))


RUNNING = with_container({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
CRASHING = with_container({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}})


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
    observed = Observed(decision=on_gpus(plan()), deployment=deployment(1), gpu=gpu, cache=cache())
    found = compute(observed)
    assert found.phase is Phase.READY
    assert found.observed_generation == 3
    assert found.endpoint == "http://m.ns.svc:8080"
    assert [c.type for c in found.conditions] == ["Ready", "Cached", "Schedulable"]
    assert {c.observed_generation for c in found.conditions} == {3}
    assert condition(found, "Cached").reason == "PrefetchSucceeded"
    assert condition(found, "Schedulable").reason == "Schedulable"
    words = "Nodes offer 1 nvidia.com/gpu of architecture sm_90 per pod"
    assert condition(found, "Schedulable").message == words
    assert found.message == "1 of 1 replicas are ready"
    assert found.gpu == gpu
    assert found.shared_group is None


def test_setting_conditions_again_changes_nothing_and_a_flip_moves_the_time() -> None:
    later = NOW + timedelta(hours=1)
    serves = Observed(decision=plan(), deployment=deployment(1), cache=cache())
    first = compute(serves)
    assert compute(serves, first, later) == first
    flipped = compute(replace(serves, deployment=None, pods=(CRASHING,)), first, later)
    assert condition(flipped, "Ready").last_transition_time == later
    assert condition(flipped, "Cached").last_transition_time == NOW


def test_the_last_placement_is_kept_while_idle() -> None:
    gpu = GPUStatus(node="n", vendor="NVIDIA")
    found = compute(Observed(decision=on_gpus(plan(0)), demand=IDLE), ModelStatus(gpu=gpu))
    assert (found.phase, found.gpu) == (Phase.IDLE, gpu)
    found = compute(Observed(decision=NO_NODES), ModelStatus(gpu=gpu, endpoint="http://x"))
    assert (found.phase, found.gpu, found.endpoint) == (Phase.FAILED, gpu, "http://x")


def test_a_model_on_cpus_has_no_gpu_whatever_its_node_has() -> None:
    gpu = GPUStatus(node="n", vendor="NVIDIA")
    observed = Observed(decision=plan(), deployment=deployment(1), gpu=gpu)
    found = compute(observed, ModelStatus(gpu=gpu))
    assert found.gpu is None
    assert condition(found, "Schedulable").message == "The Model runs on CPUs"


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


def test_the_cache_is_in_the_status_as_it_was_last_seen() -> None:
    fetching = cache(Reason.CACHE_NOT_READY, "fetching")
    first = compute(Observed(decision=plan(), cache=fetching))
    assert first.cache == fetching.status
    assert condition(first, "Cached").reason == "CacheNotReady"
    there = compute(Observed(decision=plan(), cache=cache()), first)
    assert there.cache is not None
    assert there.cache.ready
    # Nothing was looked at, so that nothing else is known of it now.
    blocked = compute(Observed(decision=NO_NODES), there)
    assert blocked.cache == there.cache
    assert condition(blocked, "Cached") == condition(there, "Cached")
    assert conditions.find(compute(Observed(decision=NO_NODES)).conditions, "Cached") is None


def test_drift_stays_said_while_the_rest_cannot_be_applied() -> None:
    drifted = compute(Observed(decision=plan(), drift=("Deployment spec.selector",)))
    problem = Problem(Reason.APPLY_FAILED, "no answer", is_passing=True)
    again = compute(Observed(decision=plan(), problem=problem), drifted)
    said = condition(again, "ImmutableFieldDrift")
    assert said == condition(drifted, "ImmutableFieldDrift")
    cured = compute(Observed(decision=plan()), again)
    assert conditions.find(cured.conditions, "ImmutableFieldDrift") is None


def test_point_26_what_the_cache_says_takes_no_other_condition_away() -> None:
    for reason in (Reason.CACHE_NOT_READY, Reason.PVC_BOUND, Reason.PREFETCH_SUCCEEDED):
        for before in (None, compute(Observed(decision=NO_NODES))):
            found = compute(Observed(decision=plan(), cache=cache(reason)), before)
            assert condition(found, "Schedulable").status == "True"
            assert condition(found, "Cached").reason == reason
            assert condition(found, "Ready").observed_generation == 3


def test_point_27_the_time_of_the_last_request_is_never_ours_to_write() -> None:
    previous = ModelStatus(last_active_time=NOW)
    for decision in (plan(), plan(0), NO_NODES):
        found = compute(Observed(decision=decision), previous)
        assert "lastActiveTime" not in found.wire()


def test_nodes_that_would_take_no_new_pod_are_said_beside_a_ready_model() -> None:
    """A cordon fails nothing that serves, and is not hidden either."""
    kept = replace(plan(), trouble=NO_NODES)
    found = compute(Observed(decision=kept, deployment=deployment(1)))
    assert found.phase is Phase.READY
    said = condition(found, "Schedulable")
    assert (said.status, said.reason, said.message) == ("False", "NoMatchingNodes", "no node")


def test_point_31_preempted_is_a_phase_and_a_state() -> None:
    lost = in_group(GroupState.PREEMPTED, preempted_by="b", preempted_at=NOW)
    found = compute(Observed(decision=plan(), cache=cache(), demand=lost))
    assert (found.phase, condition(found, "Ready").reason) == (Phase.PREEMPTED, "Preempted")
    assert found.shared_group is not None
    assert found.shared_group.state == "Preempted"
    assert (found.shared_group.preempted_by, found.shared_group.preempted_at) == ("b", NOW)


def test_a_leader_that_is_ready_again_forgets_its_loss() -> None:
    leads = in_group(GroupState.ACTIVE, replicas=1, preempted_at=NOW)
    starting = compute(Observed(decision=plan(), demand=leads))
    ready = compute(Observed(decision=plan(), demand=leads, deployment=deployment(1)))
    assert starting.shared_group is not None
    assert ready.shared_group is not None
    assert (starting.shared_group.preempted_at, ready.shared_group.preempted_at) == (NOW, None)


def test_a_long_message_is_cut_for_the_short_one() -> None:
    found = compute(Observed(decision=Blocked(reason=Reason.INVALID_SPEC, message="x\n" * 200)))
    assert found.message is not None
    assert len(found.message) == 160
    assert "\n" not in found.message


def test_the_short_message_holds_no_half_of_a_command() -> None:
    key = NamespacedName("a-namespace-of-some-length", "a-model-with-a-long-name")
    idle = activity(key, None, Use(), idle_seconds=60, startup_seconds=60, now=NOW).because
    resting = Demand(replicas=0, wanted=0, idle=idle)
    found = compute(Observed(decision=plan(), cache=cache(), demand=resting))
    assert condition(found, "Ready").message == idle
    assert found.message == (
        "No replica is wanted: it was not asked for yet; wake it with "
        "`flexinfer wake a-model-with-a-long-name -n a-namespace-of-some-length` or…"
    )


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
    lambda replicas, trouble: replace(plan(replicas), trouble=trouble),
    st.integers(0, 3),
    st.none() | st.just(NO_NODES),
)
decisions = plans | st.builds(Blocked, reason=st.sampled_from(Reason), message=texts)
problems = st.none() | st.builds(Problem, st.sampled_from(Reason), texts, is_passing=st.booleans())
caches = st.none() | st.builds(
    cache,
    st.sampled_from([Reason.CACHE_NOT_READY, Reason.PVC_BOUND, Reason.NO_CACHE_JOB]),
    texts,
    failed=st.booleans(),
)
groups = st.builds(
    in_group,
    st.sampled_from(GroupState),
    replicas=st.integers(0, 1),
    preempted_by=st.none() | st.just("b"),
    preempted_at=st.none() | st.just(NOW),
)
demands = (
    st.none() | groups | st.builds(Demand, replicas=st.integers(0, 2), wanted=st.integers(0, 2))
)
observations = st.builds(
    Observed,
    decision=decisions,
    cache=caches,
    demand=demands,
    deployment=deployments,
    pods=pods,
    problem=problems,
    drift=st.lists(texts, max_size=2).map(tuple),
    notes=st.lists(texts, max_size=2).map(tuple),
)


def without_failure(found: ModelStatus) -> ModelStatus:
    """Leave out when a turn failed last: what goes on failing fails anew after a while."""
    shared = found.shared_group
    cut = shared and shared.model_copy(update={"failed_at": None})
    return found.model_copy(update={"shared_group": cut})


@settings(deadline=None)
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
    again = compute(after, first, NOW + timedelta(days=1))
    assert without_failure(again) == without_failure(first)
    assert "lastActiveTime" not in first.wire()
    ModelStatus.model_validate(first.wire())
