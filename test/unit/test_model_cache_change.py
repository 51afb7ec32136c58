# SPDX-License-Identifier: Apache-2.0
"""Another Job than the one there is: it makes way first, or its weights count on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from api.flexinfer.v1alpha2.model_status import ModelStatus
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model import names
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import meta_from
from hack.modelcases import NOW
from hack.modelcases.weights import (
    COMPLETE,
    ENVIRONMENT,
    FAILED_AT,
    HUB,
    PVC,
    annotation,
    cached_status,
    claim,
    failed,
    look,
    made_for,
    model,
    pod,
)

if TYPE_CHECKING:
    from api.flexinfer.v1alpha2.model_types import Model
    from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
    from flexinfer.meta.envelope import Tree


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
