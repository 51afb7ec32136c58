# SPDX-License-Identifier: Apache-2.0
"""Are the weights there, and if not, which Job is made or waited for."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.model_spec import CacheStrategy
from api.flexinfer.v1alpha2.model_status import ModelStatus
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model import names
from controllers.model.cache import Work
from controllers.model.cache_run import Seen
from controllers.model.cache_state import observe
from hack.modelcases import NOW
from hack.modelcases.weights import (
    COMPLETE,
    ENVIRONMENT,
    FILE,
    HUB,
    PVC,
    SIZE,
    annotation,
    claim,
    failed,
    look,
    made_for,
    model,
    plan,
    pod,
)

if TYPE_CHECKING:
    from api.flexinfer.v1alpha2.model_types import Model
    from flexinfer.kinds.pod import Pod
    from flexinfer.meta.envelope import Tree


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
