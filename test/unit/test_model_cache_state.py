# SPDX-License-Identifier: Apache-2.0
"""Are the weights there, and if not, which Job is made, deleted or waited for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.model_spec import CacheStrategy
from api.flexinfer.v1alpha2.model_status import CacheStatus, ModelStatus
from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model import names
from controllers.model.cache import Cache, Work, plan_cache
from controllers.model.cache_run import Seen, retry_delay
from controllers.model.cache_state import CacheState, job_failed, observe
from controllers.model.cache_words import last_words, size_bytes
from controllers.model.pods import moment
from flexinfer.kinds.job import Job
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import meta_from
from internal.backends.source import parse_source
from internal.backends.vllm import VLLM

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

HUB, PVC, FILE = "HF://o/m", "pvc://weights/sub", "file:///srv/m"
ENVIRONMENT = {"DEFAULT_FETCH_IMAGE": "registry.example/flexinfer:v1"}
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FAILED_AT = "2026-01-02T03:04:00Z"
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 1}
SIZE = '{"bytes": 42, "files": 2}'


def failed(reason: str = "BackoffLimitExceeded", *, at: str = FAILED_AT) -> Tree:
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": reason,
        "message": f"the Job says {reason}",
        "lastTransitionTime": at,
    }
    return {"failed": 4, "conditions": [condition]}


def model(source: str = HUB, cache: Tree | None = None, *, name: str = "m") -> Model:
    meta = meta_from({"name": name, "namespace": "ns", "uid": "u", "generation": 3})
    block = {} if cache is None else {"cache": cache}
    return Model.model_validate(
        {"metadata": meta, "spec": {"backend": "vllm", "source": source, **block}}
    )


def claim(name: str = "m-cache", phase: str = "Bound", **meta: str) -> PersistentVolumeClaim:
    made = {"creationTimestamp": "2026-01-01T00:00:00Z", "uid": f"uid-{name}"}
    tree = {"name": name, "namespace": "ns", **made, **meta}
    return PersistentVolumeClaim.model_validate(
        {"metadata": meta_from(tree), "status": {"phase": phase}}
    )


def plan(of: Model) -> Cache:
    return plan_cache(of, parse_source(of.spec.source), VLLM)


def look(
    of: Model,
    *,
    environment: dict[str, str] | None = None,
    now: datetime = NOW,
    **seen: Any,
) -> CacheState:
    env = ENVIRONMENT if environment is None else environment
    return observe(of, plan(of), Seen(**seen), env, now=now)


def made_for(of: Model, status: Tree | None = None, *, uid: str = "j1", **meta: Any) -> Job:
    """Return the Job that is made for *of*, as it is found again."""
    cache = plan(of)
    source = claim("weights") if cache.source_claim else None
    wanted = look(of, claim=claim(cache.claim), source_claim=source).job
    assert wanted is not None
    annotations = wanted["metadata"]["annotations"] | meta.pop("annotations", {})
    tree = {"name": wanted["metadata"]["name"], "uid": uid, "annotations": annotations, **meta}
    return Job.model_validate({"metadata": meta_from(tree), "status": status or {}})


def pod(
    phase: str = "Running",
    message: str = "",
    *,
    uid: str = "j1",
    name: str = "p",
    job: str = "m-cache-prefetch",
    at: str = "2026-01-02T00:00:00Z",
    **status: Any,
) -> Pod:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": True}
    meta = meta_from({"name": name, "creationTimestamp": at, "ownerReferences": [owner]})
    code = 0 if phase == "Succeeded" else 1
    end = (
        {"terminated": {"exitCode": code, "message": message}}
        if phase in {"Failed", "Succeeded"}
        else {}
    )
    found = [{"name": "fetch", "state": end}]
    return Pod.model_validate(
        {"metadata": meta, "status": {"phase": phase, "containerStatuses": found, **status}}
    )


def annotation(state: CacheState, name: str) -> str:
    assert state.job is not None
    found = state.job["metadata"]["annotations"]
    assert state.job["spec"]["template"]["metadata"]["annotations"] == found
    return str(found.get(name, ""))


# Nothing to prepare


@pytest.mark.parametrize(
    ("strategy", "words"), [("Memory", "memory"), ("Local", "node"), ("None", "in the pod;")]
)
def test_without_a_claim_there_is_nothing_to_prepare(strategy: str, words: str) -> None:
    found = look(model(HUB, {"strategy": strategy}))
    assert (found.is_cached, found.reason, found.may_start) == (True, Reason.NO_CACHE_JOB, True)
    assert words in found.message
    assert found.status.wire() == {"strategy": strategy, "ready": True}


@pytest.mark.parametrize("strategy", ["Memory", "SharedPVC"])
def test_point_23_no_job_of_an_earlier_spec_stays(strategy: str) -> None:
    before = made_for(model(HUB), COMPLETE)
    going = made_for(model(HUB), deletionTimestamp="2026-01-01T00:00:00Z")
    of = model(FILE, {"strategy": strategy})
    assert look(of, claim=claim(), jobs=(before,)).obsolete == (before,)
    assert look(of, claim=claim(), jobs=(going,)).obsolete == ()


def test_a_claim_that_nothing_prepares_is_ready_when_bound() -> None:
    found = look(model(FILE, {}), claim=claim())
    assert (found.is_cached, found.reason, found.job) == (True, Reason.PVC_BOUND, None)
    assert found.status.wire() == {
        "strategy": "SharedPVC",
        "ready": True,
        "pvcName": "m-cache",
    }


def test_pods_may_bind_a_claim_that_nothing_prepares() -> None:
    found = look(model(FILE, {}), claim=claim(phase="Pending"))
    assert (found.is_cached, found.reason) == (False, Reason.CACHE_NOT_READY)
    assert (found.may_start, found.is_failed) == (True, False)
    assert found.status.ready, "in a group it would never get its turn, and so never be bound"
    assert "m-cache is not bound to a volume (phase Pending)" in found.message


# What claims lack


@pytest.mark.parametrize(
    ("of", "seen", "words"),
    [
        (model(HUB), {}, "m-cache does not exist; it is about to be made"),
        (
            model(HUB, {"pvcName": "kept"}),
            {},
            "kept does not exist; create it, or change spec.cache.pvcName",
        ),
        (model(PVC), {}, "weights does not exist; create it, or change spec.source"),
        (
            model(PVC, {}),
            {"claim": claim()},
            "weights does not exist; create it, or change spec.source",
        ),
        (
            model(PVC, {}),
            {"claim": claim(), "source_claim": claim("weights", "Pending")},
            "weights is not bound to a volume (phase Pending); a claim that no pod has used",
        ),
        (model(PVC), {"claim": claim("weights", "")}, "weights is not bound to a volume"),
        (
            model(HUB),
            {"claim": claim(deletionTimestamp="2026-01-01T00:00:00Z")},
            "m-cache is being deleted",
        ),
        (model(FILE, {}), {"claim": claim(phase="Lost")}, "m-cache has lost its volume; bring"),
        (model(PVC, {}), {"claim": claim(phase="Lost")}, "m-cache has lost its volume; bring"),
    ],
)
def test_a_claim_that_cannot_be_mounted_holds_pods_back(
    of: Model, seen: dict[str, Any], words: str
) -> None:
    found = look(of, **seen)
    assert (found.is_cached, found.reason) == (False, Reason.CACHE_NOT_READY)
    assert (found.may_start, found.is_failed, found.job) == (False, False, None)
    assert words in found.message


def test_a_job_that_waits_for_a_missing_claim_is_ended() -> None:
    started, done = made_for(model(HUB)), made_for(model(HUB), COMPLETE)
    assert look(model(HUB), jobs=(started,)).obsolete == (started,)
    assert look(model(HUB), jobs=(done,)).obsolete == ()


# The Job


@pytest.mark.parametrize("phase", ["Bound", "Pending"])
def test_a_job_is_made_and_binds_the_claim_if_need_be(phase: str) -> None:
    found = look(model(HUB), claim=claim(phase=phase))
    assert found.job is not None
    assert (found.is_cached, found.may_start, found.is_failed) == (False, False, False)
    assert annotation(found, names.CACHE_TRY_ANNOTATION) == "1"
    assert annotation(found, names.CACHE_ERROR_ANNOTATION) == ""
    assert found.status.wire() == {
        "strategy": "SharedPVC",
        "ready": False,
        "pvcName": "m-cache",
        "jobName": "m-cache-prefetch",
        "jobPhase": "Pending",
    }


@pytest.mark.parametrize(
    ("of", "reason", "words"),
    [
        (model(HUB), Reason.PREFETCH_SUCCEEDED, "has fetched HF://o/m into PersistentVolumeClaim"),
        (model(PVC), Reason.CACHE_CHECK, "has found pvc://weights/sub"),
        (model(PVC, {}), Reason.CACHE_COPY, "has copied pvc://weights/sub into"),
    ],
)
def test_a_complete_job_has_cached_the_weights(of: Model, reason: Reason, words: str) -> None:
    cache = plan(of)
    job = made_for(of, COMPLETE)
    found = look(
        of,
        claim=claim(cache.claim),
        source_claim=claim("weights") if cache.source_claim else None,
        jobs=(job,),
        pods=(pod("Succeeded", SIZE, job=job.metadata.name),),
    )
    assert (found.is_cached, found.may_start, found.reason) == (True, True, reason)
    assert words in found.message
    assert (found.job, found.obsolete, found.retry_at) == (None, (), None)
    assert (found.status.job_phase, found.status.size_bytes) == ("Succeeded", 42)
    assert found.status.strategy is CacheStrategy.SHARED_PVC


def test_the_size_outlives_the_pod_that_told_it() -> None:
    of, job = model(HUB), made_for(model(HUB), COMPLETE)
    previous = ModelStatus(cache=look(of, claim=claim(), jobs=(job,)).status).model_copy()
    assert look(of, claim=claim(), jobs=(job,), previous=previous).status.size_bytes is None
    told = look(of, claim=claim(), jobs=(job,), pods=(pod("Succeeded", SIZE),)).status
    later = look(of, claim=claim(), jobs=(job,), previous=ModelStatus(cache=told))
    assert later.status.size_bytes == 42
    moved = told.model_copy(update={"pvc_name": "other"})
    found = look(of, claim=claim(), jobs=(job,), previous=ModelStatus(cache=moved))
    assert found.status.size_bytes is None


def test_a_job_that_has_not_started_says_what_it_waits_for() -> None:
    unplaced = pod(
        "Pending",
        conditions=[{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}],
    )
    of = model(HUB)
    found = look(of, claim=claim(), jobs=(made_for(of, {"active": 1}),), pods=(unplaced,))
    assert found.message == "Job m-cache-prefetch has not started yet; pod p: 0/3 nodes"
    assert (found.status.job_phase, found.status.message) == ("Pending", "pod p: 0/3 nodes")
    assert (found.job, found.obsolete) == (None, ())


@pytest.mark.parametrize(
    ("status", "pods"),
    [
        ({"active": 1}, (pod("Succeeded", SIZE),)),
        ({"succeeded": 1, "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}, ()),
    ],
)
def test_a_job_whose_pod_is_done_is_finishing_until_it_is_complete(
    status: Tree, pods: tuple[Pod, ...]
) -> None:
    of = model(HUB)
    found = look(of, claim=claim(), jobs=(made_for(of, status),), pods=pods)
    assert found.message == "Job m-cache-prefetch is finishing"
    assert (found.status.job_phase, found.status.message) == ("Running", None)
    assert (found.is_cached, found.is_failed, found.job) == (False, False, None)


@pytest.mark.parametrize("reason", ["DeadlineExceeded", "BackoffLimitExceeded"])
def test_words_of_any_length_fit_a_status(reason: str) -> None:
    of = model(HUB)
    told: Tree = {"type": "Failed", "status": "True", "reason": reason, "message": "no " * 9999}
    found = look(of, claim=claim(), jobs=(made_for(of, {"conditions": [told]}),))
    assert found.status.message is not None
    assert len(found.status.message) <= 1024
    unplaced = {"type": "PodScheduled", "status": "False", "message": "no " * 9999}
    pods = (pod("Pending", conditions=[unplaced]),)
    waits = look(of, claim=claim(), jobs=(made_for(of, {"active": 1}),), pods=pods)
    assert waits.status.message is not None
    assert waits.status.message.startswith("pod p: no no")


def test_a_suspended_job_says_so() -> None:
    status = {"conditions": [{"type": "Suspended", "status": "True"}]}
    found = look(model(HUB), claim=claim(), jobs=(made_for(model(HUB), status),))
    assert found.message == "Job m-cache-prefetch has not started yet; it is suspended"


def test_point_23_a_retrying_job_is_running_and_not_failed() -> None:
    of = model(HUB)
    job = made_for(of, {"active": 1, "failed": 2})
    pods = (
        pod("Failed", "first", name="a", at="2026-01-02T00:00:00Z"),
        pod("Failed", "noise\nHTTP 429, slow down\n\n", name="b", at="2026-01-02T00:01:00Z"),
        pod("Running", name="c", at="2026-01-02T00:02:00Z"),
        pod("Failed", "of an earlier Job", uid="j0", name="z", at="2026-01-02T00:03:00Z"),
    )
    found = look(of, claim=claim(), jobs=(job,), pods=pods)
    assert (found.status.job_phase, found.is_failed) == ("Running", False)
    assert found.message == (
        "Job m-cache-prefetch is running; 2 of its pods failed, the last with: HTTP 429, slow down"
    )
    assert found.status.message == "HTTP 429, slow down"
    silent = look(of, claim=claim(), jobs=(job,))
    assert "2 of its pods failed, the last with: no word" in silent.message
    fine = look(of, claim=claim(), jobs=(made_for(of, {"active": 1, "ready": 1}),))
    assert fine.message == "Job m-cache-prefetch is running"
    assert fine.status.message is None


# Failure


def test_point_23_a_job_failed_for_good_says_why_and_when_it_is_tried_again() -> None:
    of = model(HUB)
    job = made_for(of, failed())
    found = look(of, claim=claim(), jobs=(job,), pods=(pod("Failed", "x\nset a token"),))
    due = datetime(2026, 1, 2, 3, 4, tzinfo=UTC) + retry_delay(1, "j1")
    assert (found.is_cached, found.is_failed, found.may_start) == (False, True, False)
    assert found.reason is Reason.CACHE_NOT_READY
    assert found.message == (
        f"Job m-cache-prefetch failed: set a token; it is tried again at {due:%Y-%m-%dT%H:%M:%SZ}"
    )
    assert (found.status.job_phase, found.status.message) == ("Failed", "set a token")
    assert (found.job, found.obsolete, found.retry_at) == (None, (), due)


@pytest.mark.parametrize(
    ("pods", "reason", "words"),
    [
        ((), "BackoffLimitExceeded", "the Job says BackoffLimitExceeded"),
        ((pod("Failed", "old"),), "DeadlineExceeded", "the Job says DeadlineExceeded"),
        ((pod("Failed", "said"),), "PodFailurePolicy", "said"),
    ],
)
def test_who_says_why(pods: tuple[Pod, ...], reason: str, words: str) -> None:
    of = model(HUB)
    found = look(of, claim=claim(), jobs=(made_for(of, failed(reason)),), pods=pods)
    assert found.status.message == words


def test_a_failed_job_is_made_anew_when_it_is_time() -> None:
    of, pods = model(HUB), (pod("Failed", "set a token"),)
    now = NOW + timedelta(minutes=2)
    found = look(of, claim=claim(), jobs=(made_for(of, failed()),), pods=pods, now=now)
    assert annotation(found, names.CACHE_TRY_ANNOTATION) == "2"
    assert annotation(found, names.CACHE_ERROR_ANNOTATION) == "set a token"
    assert found.message.endswith("set a token; it is tried again now")
    assert (found.is_failed, found.retry_at) == (True, None)
    made = found.job or {}
    annotations = made["metadata"]["annotations"]
    running = look(of, claim=claim(), jobs=(made_for(of, uid="j2", annotations=annotations),))
    assert running.message == (
        "Job m-cache-prefetch has not started yet; it is try 2, the one before failed with: "
        "set a token"
    )
    assert (running.is_failed, running.job) == (False, None)


@pytest.mark.parametrize(("said", "tries"), [("7", "8"), ("0", "2"), ("-3", "2"), ("x", "2")])
def test_tries_are_counted_on_the_job(said: str, tries: str) -> None:
    of = model(HUB)
    job = made_for(of, failed(), annotations={names.CACHE_TRY_ANNOTATION: said})
    found = look(of, claim=claim(), jobs=(job,), now=NOW + timedelta(hours=1))
    assert annotation(found, names.CACHE_TRY_ANNOTATION) == tries


@given(st.integers(1, 10_000), st.text(max_size=36))
def test_tries_are_spaced_from_one_minute_to_half_an_hour(tries: int, uid: str) -> None:
    delay = retry_delay(tries, uid)
    assert timedelta(minutes=1) <= delay <= timedelta(minutes=36)
    assert retry_delay(tries + 1, uid) >= delay
    assert delay <= 1.2 * timedelta(minutes=1) * 2 ** min(tries - 1, 9)
    assert retry_delay(6 + tries, uid) >= timedelta(minutes=30)


def test_a_change_of_the_spec_tries_again_at_once() -> None:
    job = made_for(model(HUB), failed(), annotations={names.CACHE_TRY_ANNOTATION: "5"})
    for cache, words in (
        ({"tokenSecretRef": {"name": "s"}}, "tried again now"),
        ({"revision": "v2"}, "about to start"),
    ):
        found = look(model(HUB, cache), claim=claim(), jobs=(job,))
        assert annotation(found, names.CACHE_TRY_ANNOTATION) == "1"
        assert annotation(found, names.CACHE_ERROR_ANNOTATION) == ""
        assert words in found.message


@pytest.mark.parametrize("at", ["", "nonsense"])
def test_a_failure_without_a_time_is_as_old_as_its_job(at: str) -> None:
    of = model(HUB)
    young = made_for(of, failed(at=at), creationTimestamp="2026-01-02T03:04:00")
    assert look(of, claim=claim(), jobs=(young,)).job is None
    old = made_for(of, failed(at=at), creationTimestamp="2026-01-01T00:00:00Z")
    assert look(of, claim=claim(), jobs=(old,)).job is not None
    ageless = made_for(of, failed(at=at))
    assert look(of, claim=claim(), jobs=(ageless,)).retry_at is not None


@pytest.mark.parametrize(
    ("before", "now", "is_told"),
    [
        (None, "Failed", True),
        ("Running", "Failed", True),
        ("Failed", "Failed", False),
        ("Failed", "Pending", False),
        ("Running", None, False),
    ],
)
def test_a_job_fails_once_between_two_statuses(
    before: str | None, now: str | None, *, is_told: bool
) -> None:
    old, new = (
        ModelStatus(cache=CacheStatus(job_phase=phase) if phase else None)
        for phase in (before, now)
    )
    assert job_failed(old, new) is is_told


# Another Job than the one there is


def test_point_22_a_complete_job_of_another_source_counts_for_nothing() -> None:
    job = made_for(model("HF://o/old"), COMPLETE)
    previous = cached_status(model(HUB))
    found = look(model(HUB), claim=claim(), jobs=(job,), previous=previous)
    assert (found.is_cached, found.may_start) == (False, False)
    assert annotation(found, names.SOURCE_ANNOTATION) == HUB
    assert found.obsolete == ()


@pytest.mark.parametrize("of", [model("HF://o/new"), model(HUB, {"tokenSecretRef": {"name": "s"}})])
def test_an_unfinished_job_is_ended_before_another_is_made(of: Model) -> None:
    job = made_for(model(HUB), {"active": 1, "ready": 1})
    found = look(of, claim=claim(), jobs=(job,), pods=(pod(),))
    assert (found.obsolete, found.job) == ((job,), None)
    going = made_for(model(HUB), deletionTimestamp="2026-01-02T00:00:00Z")
    found = look(of, claim=claim(), jobs=(going,), pods=(pod(),))
    assert (found.obsolete, found.job) == ((), None)
    assert "Job m-cache-prefetch, an earlier one, has to be gone first" in found.message
    found = look(of, claim=claim(), pods=(pod(),))
    assert "pod p of an earlier Job has to end first" in found.message
    assert found.job is None
    assert look(of, claim=claim(), pods=(pod("Failed"),)).job is not None


def test_a_job_of_another_kind_is_ended_first_too() -> None:
    of = model(PVC, {})
    seen: dict[str, Any] = {"claim": claim(), "source_claim": claim("weights")}
    running, done = made_for(model(HUB)), made_for(model(HUB), COMPLETE)
    found = look(of, jobs=(running,), **seen)
    assert (found.obsolete, found.job) == ((running,), None)
    found = look(of, jobs=(done,), **seen)
    assert found.obsolete == (done,)
    assert found.job is not None


def test_a_failed_job_waits_for_its_last_pod_before_it_is_made_anew() -> None:
    of, later = model(HUB), NOW + timedelta(hours=1)
    found = look(of, claim=claim(), jobs=(made_for(of, failed()),), pods=(pod(),), now=later)
    assert found.job is None
    assert "failed: the Job says" in found.message
    assert "pod p of an earlier Job has to end first" in found.message
    assert found.is_failed


def test_pods_of_others_are_in_nobodys_way() -> None:
    serving = pod(job="m-5d9", uid="rs")
    bare = Pod.model_validate({"metadata": meta_from({"name": "x"})})
    assert look(model(HUB), claim=claim(), pods=(serving, bare)).job is not None


def test_a_complete_job_stays_whatever_the_setup() -> None:
    job = made_for(model(HUB), COMPLETE)
    for of, environment in (
        (model(HUB, {"tokenSecretRef": {"name": "s"}}), ENVIRONMENT),
        (model(HUB), {"DEFAULT_FETCH_IMAGE": "newer"}),
        (model(HUB), {}),
    ):
        found = look(of, claim=claim(), jobs=(job,), environment=environment)
        assert (found.is_cached, found.job, found.obsolete) == (True, None, ())


def test_a_claim_made_anew_has_its_weights_brought_again() -> None:
    of, job = model(HUB), made_for(model(HUB), COMPLETE)
    found = look(of, claim=claim(uid="another"), jobs=(job,), previous=cached_status(of))
    assert found.job is not None
    assert not found.is_cached


# Without an image


def test_without_an_image_the_cure_is_named() -> None:
    found = look(model(HUB), claim=claim(), environment={"DEFAULT_FETCH_IMAGE": " "})
    assert (found.is_failed, found.job, found.may_start) == (True, None, False)
    assert found.message == (
        "Job m-cache-prefetch cannot be made: set the variable DEFAULT_FETCH_IMAGE of the manager "
        "to an image of FlexInfer, or spec.cache.strategy to None to let the server fetch"
    )


def test_without_an_image_what_there_is_goes_on() -> None:
    of = model(HUB)
    running = made_for(of, {"active": 1, "ready": 1})
    found = look(of, claim=claim(), jobs=(running,), environment={})
    assert (found.status.job_phase, found.obsolete) == ("Running", ())
    later = NOW + timedelta(hours=1)
    found = look(of, claim=claim(), jobs=(made_for(of, failed()),), environment={}, now=later)
    assert found.is_failed
    assert "DEFAULT_FETCH_IMAGE" in found.message


# A complete Job that somebody deleted


def cached_status(of: Model, *, since: str = "2026-01-01T12:00:00Z", **cache: Any) -> ModelStatus:
    condition = {
        "type": "Cached",
        "status": "True",
        "lastTransitionTime": since,
        "reason": "PrefetchSucceeded",
        "message": "",
    }
    status = {"ready": True, "pvcName": "m-cache", "jobName": "m-cache-prefetch", **cache}
    tree = {
        "observedGeneration": of.metadata.generation,
        "conditions": [condition],
        "cache": status,
    }
    return ModelStatus.model_validate(tree)


def test_the_weights_count_while_a_deleted_job_is_made_again() -> None:
    of = model(HUB)
    previous = cached_status(of, sizeBytes=42)
    running = made_for(of, {"active": 1, "ready": 1}, uid="j2")
    for jobs, is_made in (((), True), ((running,), False)):
        found = look(of, claim=claim(), jobs=jobs, previous=previous)
        assert (found.is_cached, found.may_start) == (True, True)
        assert (found.job is not None) is is_made
        assert found.reason is Reason.PREFETCH_SUCCEEDED
        assert found.message.startswith("The weights are in PersistentVolumeClaim m-cache; Job")
        assert found.status.size_bytes == 42
    stuck = look(of, claim=claim(), previous=previous, environment={})
    assert (stuck.is_cached, stuck.is_failed) == (True, False)
    lost = look(of, claim=claim(), jobs=(made_for(of, failed()),), previous=previous)
    assert (lost.is_cached, lost.is_failed) == (False, True)


UNCACHED = [{"type": "Cached", "status": "False", "reason": "CacheNotReady", "message": ""}]


@pytest.mark.parametrize(
    ("changed", "found_claim"),
    [
        ({}, claim(creationTimestamp="2026-01-01T12:00:01Z")),
        ({}, claim(creationTimestamp="")),
        ({}, claim(phase="Pending")),
        ({"cache": None}, claim()),
        ({"cache": {"ready": False}}, claim()),
        ({"cache": {"ready": True, "pvcName": "other"}}, claim()),
        ({"observedGeneration": 2}, claim()),
        ({"conditions": []}, claim()),
        ({"conditions": [c | {"lastTransitionTime": FAILED_AT} for c in UNCACHED]}, claim()),
    ],
)
def test_what_was_cached_before_counts_for_this_spec_and_this_claim_alone(
    changed: Tree, found_claim: PersistentVolumeClaim
) -> None:
    of = model(HUB)
    previous = ModelStatus.model_validate(cached_status(of).wire() | changed)
    found = look(of, claim=found_claim, previous=previous)
    assert (found.is_cached, found.may_start) == (False, False)


# Words


def test_an_evicted_pod_is_quoted() -> None:
    evicted = pod("Failed", message="", containerStatuses=[])
    status = evicted.status.model_copy(update={"message": "The node was low on resource"})
    assert last_words([evicted.model_copy(update={"status": status})]) == (
        "The node was low on resource"
    )
    assert last_words([evicted]) == "pod p ended with no word"


def test_a_silent_end_is_told_by_its_exit_code() -> None:
    def ended(**end: object) -> Pod:
        return pod("Failed", containerStatuses=[{"name": "fetch", "state": {"terminated": end}}])

    assert last_words([ended(exitCode=137, reason="OOMKilled")]) == (
        "pod p ended with exit code 137 (OOMKilled)"
    )
    assert last_words([ended(exitCode=1)]) == "pod p ended with exit code 1"
    assert last_words([]) == ""


def test_long_words_are_cut() -> None:
    found = last_words([pod("Failed", "word " * 200)])
    assert len(found) == 600
    assert found.endswith("…")


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (SIZE, 42),
        (f"log line\n{SIZE}\n", 42),
        ('{"bytes": 0}', 0),
        ('{"bytes": -1}', None),
        ('{"bytes": true}', None),
        ('{"bytes": "1"}', None),
        ("{}", None),
        ("", None),
        ("no JSON", None),
        ("[1]", None),
    ],
)
def test_the_size_is_read_from_the_last_line(message: str, size: int | None) -> None:
    assert size_bytes([pod("Succeeded", message)]) == size
    assert size_bytes([pod("Failed", message)]) is None
    running = pod("Succeeded", containerStatuses=[{"name": "fetch"}])
    assert size_bytes([running]) is None


def test_times_are_read_as_the_api_server_writes_them() -> None:
    assert moment(FAILED_AT) == datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    assert moment("2026-01-02T03:04:00") == moment(FAILED_AT)
    assert moment(None) is None
    assert moment("soon") is None


# All of it together


@given(
    work=st.sampled_from(Work),
    status=st.sampled_from([{}, {"active": 1}, {"failed": 2}, COMPLETE, failed()]),
    is_same=st.booleans(),
    is_going=st.booleans(),
    pods=st.lists(st.sampled_from(["Pending", "Running", "Failed", "Succeeded"]), max_size=2),
    minutes=st.integers(0, 60),
)
def test_point_26_a_state_is_one_and_whole(
    *,
    work: Work,
    status: Tree,
    is_same: bool,
    is_going: bool,
    pods: list[str],
    minutes: int,
) -> None:
    """Each state follows from what is seen alone, and no two Jobs ever write to a claim."""
    of = {
        Work.PREFETCH: model(HUB),
        Work.CHECK: model(PVC),
        Work.COPY: model(PVC, {}),
    }[work]
    cache = plan(of)
    changed = {} if is_same else {names.CACHE_WORK_ANNOTATION: "other"}
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if is_going else {}
    job = made_for(of, status, annotations=changed, **going)
    seen = Seen(
        claim=claim(cache.claim),
        source_claim=claim("weights") if cache.source_claim else None,
        jobs=(job,),
        pods=tuple(pod(phase, name=f"p{n}", job=job.metadata.name) for n, phase in enumerate(pods)),
    )
    now = NOW + timedelta(minutes=minutes)
    found = observe(of, cache, seen, ENVIRONMENT, now=now)
    assert found == observe(of, cache, seen, ENVIRONMENT, now=now)
    assert found.is_cached == found.may_start == found.status.ready
    assert found.is_cached == (is_same and not is_going and status is COMPLETE)
    assert not (found.is_cached and found.is_failed)
    assert found.message
    is_writing = not {"Pending", "Running"}.isdisjoint(pods)
    if found.job is not None:
        assert not is_writing
        assert not is_going
        assert job.is_finished
    if found.obsolete:
        assert found.job is None
        assert not job.is_finished
