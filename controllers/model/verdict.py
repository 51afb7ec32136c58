# SPDX-License-Identifier: Apache-2.0
"""The one question about a Model: does it serve, and if not, what is in the way. Pure.

| what is seen | phase | reason of Ready |
|---|---|---|
| the spec is wrong, or no node fits | Failed | the reason why |
| the same, but pods of this very spec serve (nodes were cordoned) | Ready | BackendReady |
| an object could not be applied | Failed | NotOurs, ApplyFailed, FieldImmutable |
| the API server has a passing trouble with it, and no replica is ready | Pending | ApplyFailed |
| no replica is wanted | Idle | WaitingForActivation |
| a replica is ready | Ready | BackendReady |
| the claim is missing or not bound | Pending | CacheNotReady |
| pods cannot be created | Failed | ReplicaFailure |
| a container crashes, an image cannot be pulled | Failed | CrashLoopBackOff, ImagePullFailed |
| the scheduler finds no place | Pending | Unschedulable |
| pods start | Pending, then Loading | StartingBackend |

The first line that fits decides; a missing claim comes before Idle, since waking would fail, and
before Ready while pods serve an earlier spec.
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
    from collections.abc import Iterable, Iterator

    from api.flexinfer.v1alpha2.model_status import GPUStatus
    from controllers.model.decision import Plan
    from flexinfer.kinds.deployment import Deployment
    from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
    from flexinfer.kinds.pod import Pod
    from flexinfer.meta.envelope import ObjectMeta

_FAILURES = {Reason.CRASH_LOOP, Reason.IMAGE_PULL_FAILED, Reason.REPLICA_FAILURE}
_SHARED_MODES = {"ReadWriteMany", "ReadOnlyMany"}


@dataclass(frozen=True, slots=True)
class Problem:
    """Say why what was planned could not be applied; it may be a passing trouble."""

    reason: Reason
    message: str
    is_passing: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Be everything that the status is computed from, beside the Model itself.

    `deployment` is the Model's own or None; `gpu` is where the newest placed pod runs, None
    when none was placed; `drift` are immutable fields that are not what the spec asks for.
    """

    decision: Plan | Blocked
    claim: PersistentVolumeClaim | None = None
    deployment: Deployment | None = None
    pods: tuple[Pod, ...] = ()
    gpu: GPUStatus | None = None
    problem: Problem | None = None
    drift: tuple[str, ...] = ()


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
    extra = [] if verdict.reason is Reason.CACHE_NOT_READY else list(_claim_notes(observed))
    text = _join(verdict.message, _pause(observed.deployment), *extra, *decision.notes)
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
    deployment = observed.deployment
    ready = deployment.status.ready_replicas if deployment else 0
    is_missing = bool(plan.claim) and observed.claim is None
    if plan.replicas == 0 and not is_missing:
        text = (
            "No replica is wanted: spec.serverless.minReplicas is 0, and nothing wakes Models yet; "
            "set it to 1 or more, or spec.serverless.enabled to false, to run the Model"
        )
        return Verdict(Phase.IDLE, Reason.WAITING_FOR_ACTIVATION, text)
    pods = living(observed.pods)
    found = troubles(pods)
    claim = "" if is_bound(observed.claim) or not plan.claim else unbound(plan, observed.claim)
    if deployment and ready and (_is_of(meta, deployment) or not is_missing):
        lacks = (claim, _replica_failure(deployment), _earlier(deployment))
        text = _join(_count(ready, plan.replicas), *lacks, *(trouble.text for trouble in found))
        return Verdict(Phase.READY, Reason.BACKEND_READY, text)
    if claim:
        text = _join(claim, *(trouble.text for trouble in found))
        return Verdict(Phase.PENDING, Reason.CACHE_NOT_READY, text)
    if failure := _replica_failure(deployment):
        return Verdict(Phase.FAILED, Reason.REPLICA_FAILURE, failure)
    if found:
        reason = found[0].reason
        text = _join(_count(ready, plan.replicas), *(trouble.text for trouble in found))
        return Verdict(_phase_of(reason), reason, text)
    return _starting(plan, deployment, pods)


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
    return f"Deployment {name} is paused: run kubectl rollout resume deployment/{name}"


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


def is_bound(claim: PersistentVolumeClaim | None) -> bool:
    """Tell whether pods can mount the claim."""
    return claim is not None and claim.status.phase == "Bound"


def unbound(plan: Plan, claim: PersistentVolumeClaim | None) -> str:
    """Say what the claim lacks, and the cure."""
    name = f"PersistentVolumeClaim {plan.claim}"
    if claim is None:
        return f"{name} does not exist; create it, or change spec.source or spec.cache.pvcName"
    return f"{name} is not bound to a volume (phase {claim.status.phase or 'Pending'})"


def _claim_notes(observed: Observed) -> Iterator[str]:
    decision, claim = observed.decision, observed.claim
    if isinstance(decision, Blocked) or claim is None:
        return
    if decision.replicas > 1 and _SHARED_MODES.isdisjoint(claim.spec.access_modes):
        modes = ", ".join(claim.spec.access_modes) or "no access mode"
        yield (
            f"PersistentVolumeClaim {decision.claim} has {modes}, so that replicas on other "
            "nodes cannot mount it; use ReadWriteMany or ReadOnlyMany"
        )


def _count(ready: int, wanted: int) -> str:
    return f"{ready} of {wanted} replicas are ready"


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
