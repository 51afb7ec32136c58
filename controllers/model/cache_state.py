# SPDX-License-Identifier: Apache-2.0
"""Are the weights where the Model mounts them, and if not, what has to be done next. Pure.

| what is seen | Cached | next |
|---|---|---|
| nothing has to be prepared, and no claim | True/NoCacheJob | |
| a claim is missing, going or lost | False/CacheNotReady | no pod is started |
| the source's claim is not bound | False/CacheNotReady | no pod is started |
| a claim that nothing prepares is bound | True/PVCBound | |
| the same, and it is not bound | False/CacheNotReady | pods are started: they may bind it |
| no Job, or a finished one of other work | False/CacheNotReady | the Job is made |
| an unfinished Job of other work or setup | False/CacheNotReady | it is deleted |
| the Job has pods, or retries left | False/CacheNotReady | |
| the Job has failed for good | False/CacheNotReady, failed | it is made anew, later and later |
| the Job is complete | True, by what it did | |

A Job is made once nothing of an earlier one writes to the claim any more. A Job of the same work
that somebody deleted after it was complete is made again, and meanwhile the weights count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_spec import CacheStrategy
from api.flexinfer.v1alpha2.model_status import CacheStatus
from api.flexinfer.v1alpha2.reasons import ConditionType, Reason
from controllers.model.cache import Work
from controllers.model.cache_jobs import job_name
from controllers.model.cache_run import JobPhase, follow, leftovers
from controllers.model.pods import moment
from flexinfer import conditions
from flexinfer.conditions import shorten
from flexinfer.meta.condition import ConditionStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from api.flexinfer.v1alpha2.model_status import ModelStatus
    from api.flexinfer.v1alpha2.model_types import Model
    from controllers.model.cache import Cache
    from controllers.model.cache_run import Run, Seen
    from flexinfer.kinds.job import Job
    from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
    from flexinfer.meta.envelope import Tree

_REASONS = {
    Work.PREFETCH: Reason.PREFETCH_SUCCEEDED,
    Work.CHECK: Reason.CACHE_CHECK,
    Work.COPY: Reason.CACHE_COPY,
}
_KEPT = {
    CacheStrategy.MEMORY: "Weights are kept in the pod's memory; there is nothing to prepare",
    CacheStrategy.LOCAL: "Weights are kept on the node; there is nothing to prepare",
    CacheStrategy.NONE: "Weights are kept in the pod; there is nothing to prepare",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """Be how a Model's cache is doing, and what to do about it.

    `reason` and `message` are those of Cached. `may_start`: pods may be started. `is_failed`: a
    person has to look. `job` is to be applied with the Model as its owner, `obsolete` are to be
    deleted, each with its UID. `retry_at` is when to look again if nothing happens before.
    """

    is_cached: bool
    reason: Reason
    message: str
    may_start: bool
    status: CacheStatus
    is_failed: bool = False
    job: Tree | None = None
    obsolete: tuple[Job, ...] = ()
    retry_at: datetime | None = None


def observe(
    model: Model, cache: Cache, seen: Seen, environment: Mapping[str, str], *, now: datetime
) -> CacheState:
    """Say how the cache is doing. The table above is the rule.

    *environment* is the manager's; the Jobs' image and the address of the hub are read from it.
    """
    if text := _lack(cache, seen):
        return _lacking(model, cache, seen, text)
    if cache.work is None:
        return _unprepared(model, cache, seen)
    return _prepared(model, cache, seen, follow(model, cache, seen, environment, now=now))


def job_failed(previous: ModelStatus, new: ModelStatus) -> bool:
    """Tell whether a Job has failed for good between two statuses."""
    before, now = ((s.cache.job_phase if s.cache else None) for s in (previous, new))
    return now == JobPhase.FAILED != before


def _unprepared(model: Model, cache: Cache, seen: Seen) -> CacheState:
    """Judge a cache that no Job prepares; without a claim there is nothing to judge."""
    claim, is_bound = seen.claim, not cache.claim or _is_bound(seen.claim)
    if not cache.claim:
        reason, text = Reason.NO_CACHE_JOB, _KEPT[cache.strategy]
    elif is_bound:
        reason, text = Reason.PVC_BOUND, f"PersistentVolumeClaim {cache.claim} is bound"
    else:
        reason = Reason.CACHE_NOT_READY
        text = f"{_unbound(cache.claim, claim)}; some storage classes wait for the first pod"
    return CacheState(
        is_cached=is_bound,
        reason=reason,
        message=text,
        may_start=True,
        # Replicas can start, and may have to for the claim to be bound at all.
        status=CacheStatus(strategy=cache.strategy, ready=True, pvc_name=cache.claim or None),
        obsolete=leftovers(model, seen),
    )


def _lacking(model: Model, cache: Cache, seen: Seen, text: str) -> CacheState:
    """Hold back pods, and end what would go on waiting for a claim."""
    name = job_name(model, cache.work) if cache.work else ""
    started = next((j for j in seen.jobs if j.metadata.name == name and not j.is_finished), None)
    return CacheState(
        is_cached=False,
        reason=Reason.CACHE_NOT_READY,
        message=text,
        may_start=False,
        status=CacheStatus(strategy=cache.strategy, pvc_name=cache.claim),
        obsolete=leftovers(model, seen, keep="" if started else name),
    )


def _prepared(model: Model, cache: Cache, seen: Seen, run: Run) -> CacheState:
    is_kept = (
        run.phase in {JobPhase.PENDING, JobPhase.RUNNING}
        and not run.is_other_work
        and _was_cached(model, cache, seen, run)
    )
    is_cached = run.phase is JobPhase.SUCCEEDED or is_kept
    text = f"The weights are in PersistentVolumeClaim {cache.claim}; {run.message}"
    before = seen.previous.cache
    size = before.size_bytes if before and is_cached and before.pvc_name == cache.claim else None
    return CacheState(
        is_cached=is_cached,
        reason=_REASONS[run.work] if is_cached else Reason.CACHE_NOT_READY,
        message=text if is_kept else run.message,
        may_start=is_cached,
        is_failed=not is_cached and (run.is_stuck or run.phase is JobPhase.FAILED),
        status=CacheStatus(
            strategy=cache.strategy,
            ready=is_cached,
            pvc_name=cache.claim,
            job_name=run.name,
            job_phase=run.phase,
            message=shorten(run.words) or None,
            size_bytes=size if run.size_bytes is None else run.size_bytes,
        ),
        job=run.job,
        obsolete=run.obsolete,
        retry_at=run.retry_at,
    )


def _was_cached(model: Model, cache: Cache, seen: Seen, run: Run) -> bool:
    """Tell whether the status says of this spec and this very claim that the weights are there.

    So a complete Job that somebody deleted takes no pod with it.
    """
    before = seen.previous
    if before.cache is None or not before.cache.ready:
        return False
    if before.observed_generation != model.metadata.generation:
        return False
    if (before.cache.pvc_name, before.cache.job_name) != (cache.claim, run.name):
        return False
    cached = conditions.find(before.conditions, ConditionType.CACHED)
    if cached is None or cached.status is not ConditionStatus.TRUE or not _is_bound(seen.claim):
        return False
    made = seen.claim and moment(seen.claim.metadata.creation_timestamp)
    return bool(made and made <= cached.last_transition_time)


def _lack(cache: Cache, seen: Seen) -> str:
    """Say what claims lack for a Job or a pod to mount them, and the cure; empty for nothing."""
    if not cache.claim:
        return ""
    field = "spec.source" if cache.claim == cache.source.claim else "spec.cache.pvcName"
    cure = "it is about to be made" if cache.is_made else f"create it, or change {field}"
    if text := _unusable(cache.claim, seen.claim, cure):
        return text
    name, claim = cache.claim, seen.claim
    if cache.source_claim:
        name, claim = cache.source_claim, seen.source_claim
        if text := _unusable(name, claim, "create it, or change spec.source"):
            return text
    if cache.work in {Work.CHECK, Work.COPY} and not _is_bound(claim):
        return f"{_unbound(name, claim)}; a claim that no pod has used yet holds no weights"
    return ""


def _unusable(name: str, claim: PersistentVolumeClaim | None, cure: str) -> str:
    if claim is None:
        return f"PersistentVolumeClaim {name} does not exist; {cure}"
    if claim.metadata.deletion_timestamp is not None:
        return f"PersistentVolumeClaim {name} is being deleted"
    if claim.status.phase == "Lost":
        return (
            f"PersistentVolumeClaim {name} has lost its volume; bring the volume back, or delete "
            "the claim"
        )
    return ""


def _is_bound(claim: PersistentVolumeClaim | None) -> bool:
    return claim is not None and claim.is_bound


def _unbound(name: str, claim: PersistentVolumeClaim | None) -> str:
    phase = (claim and claim.status.phase) or "Pending"
    return f"PersistentVolumeClaim {name} is not bound to a volume (phase {phase})"
