# SPDX-License-Identifier: Apache-2.0
"""How far the Job that prepares a claim is, and which Job is to be made or deleted next. Pure.

A Job is right when its hashes are those of what is wanted now; another one is replaced, and one
that failed for good is made anew, later and later. The number of the try is kept on the Job, so
that nothing is forgotten with the process.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING
from zlib import crc32

from api.flexinfer.v1alpha2.model_status import ModelStatus
from controllers.model import names
from controllers.model.cache import Work
from controllers.model.cache_jobs import (
    IMAGE_VARIABLE,
    fetch_image,
    job,
    job_name,
    job_names,
    setup_hash,
    work_hash,
    work_of,
)
from controllers.model.cache_words import last_words, size_bytes, waiting_for
from controllers.model.pods import OVER, moment
from flexinfer.kinds.condition import is_true

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from api.flexinfer.v1alpha2.model_types import Model
    from controllers.model.cache import Cache
    from flexinfer.kinds.condition import ForeignCondition
    from flexinfer.kinds.job import Job
    from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
    from flexinfer.kinds.pod import Pod
    from flexinfer.meta.envelope import Tree

_DONE = {
    Work.PREFETCH: "has fetched {source} into PersistentVolumeClaim {claim}",
    Work.CHECK: "has found {source}",
    Work.COPY: "has copied {source} into PersistentVolumeClaim {claim}",
}
# Until a Job that failed for good is made anew; doubled from one try to the next.
_FIRST_DELAY = timedelta(minutes=1)
_LONGEST_DELAY = timedelta(minutes=30)
_DOUBLINGS = 5  # after so many the longest delay is reached
_JITTER = 0.2  # of the delay, so that what failed together is not tried again together


class JobPhase(StrEnum):
    """Sum up a Job for a status."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Be what was found in the cluster.

    `claim` and `source_claim` are those that the Cache names, None for no name. `jobs` are the
    Model's own, `pods` all that carry its label. `previous` is the Model's status.
    """

    claim: PersistentVolumeClaim | None = None
    source_claim: PersistentVolumeClaim | None = None
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    previous: ModelStatus = field(default_factory=ModelStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Be how far the Job `name` is.

    `words` are what its pods said last, or what they wait for. `job` is to be applied, `obsolete`
    are to be deleted. `is_other_work`: there is a Job that does something else. `is_stuck`: none
    can be made.
    """

    name: str
    work: Work
    phase: JobPhase
    message: str
    words: str = ""
    size_bytes: int | None = None
    is_other_work: bool = False
    is_stuck: bool = False
    job: Tree | None = None
    obsolete: tuple[Job, ...] = ()
    retry_at: datetime | None = None


def follow(
    model: Model, cache: Cache, seen: Seen, environment: Mapping[str, str], *, now: datetime
) -> Run:
    """Say how far the Job is; the claims that it uses are there."""
    task = _Task.of(model, cache, seen, environment)
    run = _follow(task, now)
    return replace(run, obsolete=(*run.obsolete, *leftovers(model, seen, keep=task.name)))


def leftovers(model: Model, seen: Seen, *, keep: str = "") -> tuple[Job, ...]:
    """Return the Jobs that prepared something which is not wanted any more, to be deleted."""
    wanted = set(job_names(model)) - {keep}
    return tuple(
        j for j in seen.jobs if j.metadata.name in wanted and not j.metadata.deletion_timestamp
    )


def retry_delay(tries: int, uid: str) -> timedelta:
    """Return how long after try number *tries* the Job *uid* is made anew.

    One minute, doubled up to half an hour, and up to a fifth more that differs from Job to Job.
    """
    doublings: int = 2 ** min(tries - 1, _DOUBLINGS)
    return min(_FIRST_DELAY * doublings, _LONGEST_DELAY) * (
        1 + _JITTER * crc32(uid.encode()) / 2**32
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Be the Job that is wanted, by name and hashes, and what there is of it."""

    model: Model
    cache: Cache
    seen: Seen
    environment: Mapping[str, str]
    name: str
    work: Work
    work_hash: str
    setup_hash: str

    @classmethod
    def of(cls, model: Model, cache: Cache, seen: Seen, environment: Mapping[str, str]) -> _Task:
        claims = (seen.claim, seen.source_claim)
        uids = [claim.metadata.uid for claim in claims if claim is not None]
        work = work_of(cache)
        return cls(
            model=model,
            cache=cache,
            seen=seen,
            environment=environment,
            name=job_name(model, work),
            work=work,
            work_hash=work_hash(model, cache, uids),
            setup_hash=setup_hash(model, cache, environment),
        )

    @property
    def current(self) -> Job | None:
        return next((j for j in self.seen.jobs if j.metadata.name == self.name), None)

    def is_done_by(self, found: Job) -> bool:
        return found.metadata.annotations.get(names.CACHE_WORK_ANNOTATION) == self.work_hash

    def is_set_up_like(self, found: Job) -> bool:
        """Tell whether *found* runs as a new Job would; without an image there would be none."""
        setup = found.metadata.annotations.get(names.CACHE_SETUP_ANNOTATION)
        return setup == self.setup_hash or not fetch_image(self.environment)

    def pods_of(self, found: Job) -> list[Pod]:
        return [pod for pod in self._job_pods() if _controller_uid(pod) == found.metadata.uid]

    def obstacle(self) -> str:
        """Say what still writes to the claim, or could begin to; empty for nothing."""
        for found in self.seen.jobs:
            is_other = found.metadata.name != self.name and not found.is_finished
            if is_other or found.metadata.deletion_timestamp:
                return f"Job {found.metadata.name}, an earlier one, has to be gone first"
        for pod in self._job_pods():
            if pod.status.phase not in OVER:
                return f"pod {pod.metadata.name} of an earlier Job has to end first"
        return ""

    def run(self, phase: JobPhase, message: str, words: str = "") -> Run:
        return Run(name=self.name, work=self.work, phase=phase, message=message, words=words)

    def make(self, *, tries: int, error: str = "") -> Tree:
        annotations = {
            names.CACHE_WORK_ANNOTATION: self.work_hash,
            names.CACHE_SETUP_ANNOTATION: self.setup_hash,
            names.CACHE_TRY_ANNOTATION: str(tries),
        }
        if error:
            annotations[names.CACHE_ERROR_ANNOTATION] = error
        return job(self.model, self.cache, self.environment, annotations=annotations)

    def _job_pods(self) -> list[Pod]:
        jobs = job_names(self.model)
        return [
            pod
            for pod in self.seen.pods
            if (owner := pod.metadata.controller) and owner.kind == "Job" and owner.name in jobs
        ]


def _follow(task: _Task, now: datetime) -> Run:
    current = task.current
    if current is None or current.metadata.deletion_timestamp:
        return _first(task)
    if not task.is_done_by(current):
        run = _first(task) if current.is_finished else _ended(task, current)
        return replace(run, is_other_work=True)
    if current.is_complete:
        return _succeeded(task, current)
    if current.failure is not None:
        return _failed(task, current, current.failure, now)
    return _running(task, current) if task.is_set_up_like(current) else _ended(task, current)


def _first(task: _Task) -> Run:
    """Make the Job, as soon as nothing is in its way."""
    if not fetch_image(task.environment):
        text = (
            f"Job {task.name} cannot be made: set the variable {IMAGE_VARIABLE} of the manager to "
            "an image of FlexInfer, or spec.cache.strategy to None to let the server fetch"
        )
        return replace(task.run(JobPhase.PENDING, text), is_stuck=True)
    if obstacle := task.obstacle():
        return task.run(JobPhase.PENDING, f"Job {task.name} is not made yet: {obstacle}")
    run = task.run(JobPhase.PENDING, f"Job {task.name} is about to start")
    return replace(run, job=task.make(tries=1))


def _ended(task: _Task, current: Job) -> Run:
    """Have a Job that is not the right one any more deleted, before the right one is made."""
    text = f"Job {task.name} is made anew, because what it is to do has changed"
    return replace(task.run(JobPhase.PENDING, text), obsolete=(current,))


def _succeeded(task: _Task, current: Job) -> Run:
    done = _DONE[task.work].format(source=task.cache.source, claim=task.cache.claim)
    run = task.run(JobPhase.SUCCEEDED, f"Job {task.name} {done}")
    return replace(run, size_bytes=size_bytes(task.pods_of(current)))


def _running(task: _Task, current: Job) -> Run:
    pods, status = task.pods_of(current), current.status
    is_done = status.succeeded > 0 or any(pod.status.phase == "Succeeded" for pod in pods)
    has_run = bool(is_done or status.ready or status.failed)
    said, waits = last_words(pods), waiting_for(pods)
    doing = "is running" if has_run else "has not started yet"
    # Its pod is done first, and only then the Job complete.
    parts = [f"Job {task.name} {'is finishing' if is_done else doing}"]
    if is_true(status.conditions, "Suspended"):
        parts.append("it is suspended")
    if waits:
        parts.append(waits)
    if status.failed:
        parts.append(f"{status.failed} of its pods failed, the last with: {said or 'no word'}")
    elif error := current.metadata.annotations.get(names.CACHE_ERROR_ANNOTATION, ""):
        parts.append(f"it is try {_tries(current)}, the one before failed with: {error}")
    phase = JobPhase.RUNNING if has_run else JobPhase.PENDING
    return task.run(phase, "; ".join(parts), said or waits)


def _failed(task: _Task, current: Job, failure: ForeignCondition, now: datetime) -> Run:
    tries = _tries(current)
    said, why = last_words(task.pods_of(current)), failure.message or failure.reason
    # Pods that ran out of time are gone, and those that failed before did not decide.
    words = why if failure.reason == "DeadlineExceeded" or not said else said
    since = moment(failure.last_transition_time) or moment(current.metadata.creation_timestamp)
    due = (since or now) + retry_delay(tries, current.metadata.uid)
    is_changed = not task.is_set_up_like(current)
    failed = task.run(JobPhase.FAILED, f"Job {task.name} failed: {words}", words)
    if not is_changed and now < due:
        again = f"{failed.message}; it is tried again at {due:%Y-%m-%dT%H:%M:%SZ}"
        return replace(failed, message=again, retry_at=due)
    next_ = _first(task)
    if next_.job is None:
        return replace(failed, message=f"{failed.message}; {next_.message}")
    made = task.make(tries=1) if is_changed else task.make(tries=tries + 1, error=words)
    return replace(failed, message=f"{failed.message}; it is tried again now", job=made)


def _tries(found: Job) -> int:
    try:
        return max(1, int(found.metadata.annotations.get(names.CACHE_TRY_ANNOTATION, "1")))
    except ValueError:
        return 1


def _controller_uid(pod: Pod) -> str:
    return pod.metadata.controller.uid if pod.metadata.controller else ""
