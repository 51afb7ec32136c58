# SPDX-License-Identifier: Apache-2.0
"""The one question about a Model: does it serve, and if not, what is in the way. Pure.

| what is seen | phase | reason of Ready |
|---|---|---|
| the spec is wrong, or no node fits | Failed | the reason why |
| the same, but pods of this very spec serve (nodes were cordoned) | Ready | BackendReady |
| an object could not be applied | Failed | NotOurs, ApplyFailed, FieldImmutable |
| the API server has a passing trouble with it, and it would not be Ready | Pending | ApplyFailed |
| the weights are not there, and no pod of this spec serves | Pending, Failed | CacheNotReady |
| another Model of the group took the GPUs | Preempted | Preempted |
| another Model of the group has the GPUs, and this one is asked for | Pending | Preempted |
| no replica is wanted | Idle | WaitingForActivation |
| the pods of another Model of the group have to go first | Pending | StartingBackend |
| a replica is ready | Ready | BackendReady |
| pods cannot be created | Failed | ReplicaFailure |
| a container crashes, an image cannot be pulled | Failed | CrashLoopBackOff, ImagePullFailed |
| the scheduler finds no place | Pending | Unschedulable |
| pods start | Pending, then Loading | StartingBackend |

The first line that fits decides. Pods of a group's leader that load go on while weights are made
anew. Weights come before Idle, since waking would fail, and before
Ready while pods serve an earlier spec.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.reasons import Phase, Reason
from controllers.model import names
from controllers.model.decision import Blocked
from controllers.model.pods import living, troubles
from flexinfer.kinds.condition import find

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from api.flexinfer.v1alpha2.model_status import GPUStatus, SharedGroupStatus
    from controllers.model.cache_state import CacheState
    from controllers.model.decision import Plan
    from controllers.model.demand import Demand
    from controllers.model.pods import Trouble
    from flexinfer.kinds.deployment import Deployment
    from flexinfer.kinds.pod import Pod
    from flexinfer.meta.envelope import ObjectMeta

# The scheduler's words for a volume that the nodes that would do cannot reach.
_ON_ANOTHER_NODE = "PersistentVolume's node affinity"
_FAILURES = {Reason.CRASH_LOOP, Reason.IMAGE_PULL_FAILED, Reason.REPLICA_FAILURE}


@dataclass(frozen=True, slots=True)
class Problem:
    """Say why what was planned could not be applied; it may be a passing trouble."""

    reason: Reason
    message: str
    is_passing: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Be everything that the status is computed from, beside the Model itself.

    `cache` is None when nothing was looked at, `demand` for what does not fit its type.
    `deployment` is the Model's own or None; `gpu` is where the newest placed pod runs, None when
    none was placed; `drift` are immutable fields that are not what the spec asks for, `notes` what
    else a user should know.
    """

    decision: Plan | Blocked
    cache: CacheState | None = None
    demand: Demand | None = None
    deployment: Deployment | None = None
    pods: tuple[Pod, ...] = ()
    gpu: GPUStatus | None = None
    problem: Problem | None = None
    drift: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Be the answer to the one question: does the Model serve, and if not, why."""

    phase: Phase
    reason: Reason
    message: str

    @property
    def is_ready(self) -> bool:
        """Tell whether the Model serves."""
        return self.phase is Phase.READY


def judge(meta: ObjectMeta, observed: Observed) -> Verdict:
    """Decide whether the Model serves. The table above is the rule."""
    decision, problem = observed.decision, observed.problem
    if isinstance(decision, Blocked):
        return _blocked(meta, decision, observed)
    if problem is not None and not problem.is_passing:
        return Verdict(Phase.FAILED, problem.reason, problem.message)
    verdict = _judge_plan(meta, decision, observed)
    if problem is not None:
        if not verdict.is_ready:
            return Verdict(Phase.PENDING, problem.reason, problem.message)
        return Verdict(verdict.phase, verdict.reason, _join(verdict.message, problem.message))
    trouble = f"new pods have no place: {decision.trouble.message}" if decision.trouble else ""
    notes = (decision.spread_note, *decision.notes, *observed.notes)
    text = _join(verdict.message, trouble, _pause(observed.deployment), *notes)
    return Verdict(verdict.phase, verdict.reason, text)


def _blocked(meta: ObjectMeta, blocked: Blocked, observed: Observed) -> Verdict:
    """Let pods that already run this very spec go on serving when nodes were taken away."""
    deployment = observed.deployment
    if deployment is not None and not blocked.concerns_spec:
        ready = deployment.status.ready_replicas
        if ready and _is_of(meta, deployment):
            text = f"{_count(ready, deployment.spec.replicas)}; new pods have no place: "
            return Verdict(Phase.READY, Reason.BACKEND_READY, text + blocked.message)
    return Verdict(Phase.FAILED, blocked.reason, blocked.message)


def _is_of(meta: ObjectMeta, deployment: Deployment) -> bool:
    """Tell whether the Deployment was applied for this very spec."""
    generation = deployment.metadata.annotations.get(names.GENERATION_ANNOTATION)
    return generation == str(meta.generation)


def _judge_plan(meta: ObjectMeta, plan: Plan, observed: Observed) -> Verdict:
    deployment, cache = observed.deployment, observed.cache
    ready = deployment.status.ready_replicas if deployment else 0
    found = troubles(living(observed.pods))
    serves = deployment is not None and ready > 0 and _is_of(meta, deployment)
    loads = not ready and observed.demand is not None and observed.demand.keeps_loading
    if cache is not None and not cache.may_start and not serves and not loads:
        text = _join(cache.message, *(trouble.text for trouble in found))
        phase = Phase.FAILED if cache.is_failed else Phase.PENDING
        return Verdict(phase, Reason.CACHE_NOT_READY, text)
    if observed.demand is not None and (resting := _resting(observed.demand)):
        return resting
    if deployment is not None and ready:
        lacks = (_uncached(cache), _replica_failure(deployment), _earlier(deployment))
        text = _join(_count(ready, plan.replicas), *lacks, *(trouble.text for trouble in found))
        return Verdict(Phase.READY, Reason.BACKEND_READY, text)
    return _not_ready(plan, observed, found)


def _not_ready(plan: Plan, observed: Observed, found: Sequence[Trouble]) -> Verdict:
    """Say why none of the replicas that are wanted is ready."""
    if failure := _replica_failure(observed.deployment):
        return Verdict(Phase.FAILED, Reason.REPLICA_FAILURE, failure)
    if found:
        reason = found[0].reason
        texts = (trouble.text for trouble in found)
        text = _join(_count(0, plan.replicas), *texts, _misplaced(plan, found))
        return Verdict(_phase_of(reason), reason, text)
    return _starting(plan, observed.deployment, living(observed.pods))


def _misplaced(plan: Plan, found: Sequence[Trouble]) -> str:
    """Say that the claim made for the Model may lie where it cannot run, and the cure."""
    if not plan.cache.is_made or not any(_ON_ANOTHER_NODE in trouble.text for trouble in found):
        return ""
    return (
        f"PersistentVolumeClaim {plan.claim} may be bound to a volume of a node that does not fit "
        "the Model; delete the claim to have it made anew where one fits"
    )


def _resting(demand: Demand) -> Verdict | None:
    """Say why no replica is wanted, or not yet; None when some are."""
    standing = demand.standing
    if standing is not None and not standing.is_active:
        if standing.is_preempted:
            text = _join(_lost(standing.status), demand.outlook)
            return Verdict(Phase.PREEMPTED, Reason.PREEMPTED, text)
        if demand.wanted:
            text = _join(_queued(standing.status), demand.outlook)
            return Verdict(Phase.PENDING, Reason.PREEMPTED, text)
    if demand.replicas:
        return None
    if demand.waiting:
        return Verdict(Phase.PENDING, Reason.STARTING_BACKEND, demand.waiting)
    return Verdict(Phase.IDLE, Reason.WAITING_FOR_ACTIVATION, demand.idle)


def _lost(status: SharedGroupStatus) -> str:
    when = f" at {status.preempted_at:%Y-%m-%dT%H:%M:%SZ}" if status.preempted_at else ""
    return f"Preempted{when}: {status.preempted_by} has its turn in group {status.group_name}"


def _queued(status: SharedGroupStatus) -> str:
    return (
        f"Waiting for its turn in group {status.group_name}, place {status.queue_position} in the "
        f"queue: {status.preempted_by} is first"
    )


def _uncached(cache: CacheState | None) -> str:
    return "" if cache is None or cache.is_cached else cache.message


def _starting(plan: Plan, deployment: Deployment | None, pods: Iterable[Pod]) -> Verdict:
    text = _count(0, plan.replicas)
    if not any(pod.spec.node_name for pod in pods):
        return Verdict(Phase.PENDING, Reason.STARTING_BACKEND, f"{text}; no pod was placed yet")
    wait = (
        f"waiting up to {plan.startup_seconds} s for {plan.backend.startup_probe} on port "
        f"{plan.backend.port} to answer"
    )
    return Verdict(Phase.LOADING, Reason.STARTING_BACKEND, _join(text, wait, _late(deployment)))


def _late(deployment: Deployment | None) -> str:
    """Return what the Deployment says when it has made no progress for too long."""
    progress = find(deployment.status.conditions, "Progressing") if deployment else None
    return progress.message if progress is not None and progress.status == "False" else ""


def _pause(deployment: Deployment | None) -> str:
    if deployment is None or not deployment.spec.paused:
        return ""
    name = deployment.metadata.name
    return f"Deployment {name} is paused: run `kubectl rollout resume deployment/{name}`"


def _earlier(deployment: Deployment) -> str:
    """Say that a rollout is not done; a Model serves all the while."""
    earlier = deployment.status.replicas - deployment.status.updated_replicas
    return f"pods that run an earlier spec: {earlier}" if earlier > 0 else ""


def _phase_of(reason: Reason) -> Phase:
    if reason in _FAILURES:
        return Phase.FAILED
    return Phase.PENDING if reason is Reason.UNSCHEDULABLE else Phase.LOADING


def _replica_failure(deployment: Deployment | None) -> str:
    if deployment is None:
        return ""
    failure = find(deployment.status.conditions, "ReplicaFailure")
    if failure is None or not failure.is_true:
        return ""
    return f"Pods cannot be created: {failure.message or failure.reason}"


def _count(ready: int, wanted: int) -> str:
    return f"{ready} of {wanted} replicas are ready"


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
