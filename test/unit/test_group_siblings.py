# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import names
from controllers.model.siblings import (
    MODELS_BY_GROUP,
    Siblings,
    deployment_rests,
    labelled_groups,
    pod_went,
)
from flexinfer.cache.informer import Informer, InformerOptions
from flexinfer.envtest.simulated import SimulatedApi
from flexinfer.event import CreateEvent, DeleteEvent, UpdateEvent
from flexinfer.meta.envelope import stored_from
from flexinfer.metrics import Registry
from flexinfer.reconcile import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flexinfer.meta.envelope import StoredObject, Tree


def stored(
    name: str, status: Tree | None = None, *, namespace: str = "ns", **spec: object
) -> StoredObject:
    metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}
    tree = {"metadata": metadata, "spec": {"backend": "vllm", "source": "HF://o/m", **spec}}
    return stored_from(tree | {"status": status or {}})


def shared(name: str, group: str = "g", status: Tree | None = None, **gpu: object) -> StoredObject:
    return stored(name, status, gpu={"shared": group, **gpu})


MISFIT = stored_from({"metadata": {"name": "bad", "namespace": "ns"}, "spec": 7})


@pytest.fixture
def models() -> Informer:
    options = InformerOptions(registry=Registry())
    return Informer(SimulatedApi(Model.resource), Model.resource, options=options)


@pytest.fixture
def siblings(models: Informer) -> Siblings:
    found = Siblings(models)
    other = stored("e", namespace="other", gpu={"shared": "g"})
    for item in (shared("a"), shared("b"), shared("c", "h"), stored("d"), other, MISFIT):
        models.changed("ADDED", item)
    return found


def keys(*found: str) -> set[Request]:
    return {Request("ns", name) for name in found}


def in_group(models: Informer, group: str) -> set[str]:
    return {item.meta.name for item in models.by_index(MODELS_BY_GROUP, group)}


@pytest.mark.usefixtures("siblings")
def test_models_are_found_by_group(models: Informer) -> None:
    assert in_group(models, "ns/g") == {"a", "b"}
    assert in_group(models, "ns/h") == {"c"}
    assert in_group(models, "ns/") == set()


def test_a_model_wakes_the_others_of_its_group(siblings: Siblings) -> None:
    assert set(siblings.of_model(shared("a"))) == keys("b")
    assert set(siblings.of_model(shared("new"))) == keys("a", "b")
    assert set(siblings.of_model(shared("a", "h"))) == keys("c")
    assert set(siblings.of_model(stored("d"))) == set()
    assert set(siblings.of_model(MISFIT)) == set()


def child(model: str = "", group: str = "") -> StoredObject:
    labels = {names.MODEL_LABEL: model, names.GROUP_LABEL: group}
    metadata = {"name": "x", "namespace": "ns", "labels": {k: v for k, v in labels.items() if v}}
    return stored_from({"metadata": metadata})


@pytest.mark.parametrize(
    ("item", "woken"),
    [
        (child("a"), {"b"}),  # made before its Model joined the group
        (child("a", "g"), {"b"}),
        (child("gone", "g"), {"a", "b"}),
        (child("c", "g"), {"a", "b"}),  # its Model has moved on
        (child("a", "h"), {"b", "c"}),
        (child("d"), set()),
        (child("bad"), set()),
        (child(), set()),
    ],
)
def test_a_pod_wakes_the_group_of_its_label_and_of_its_model(
    siblings: Siblings, item: StoredObject, woken: Iterable[str]
) -> None:
    assert set(siblings.of_child(item)) == keys(*woken)


def test_pods_are_found_by_the_group_of_their_label() -> None:
    assert list(labelled_groups(child("a", "g"))) == ["ns/g"]
    assert list(labelled_groups(child("a"))) == []


STATUS: Tree = {
    "phase": "Idle",
    "cache": {"ready": True},
    "sharedGroup": {"groupName": "g", "state": "Queued", "preemptedBy": "b"},
}


def group_status(**change: object) -> Tree:
    return {**STATUS, "sharedGroup": {**STATUS["sharedGroup"], **change}}


@pytest.mark.parametrize(
    "new",
    [
        shared("a", "h", STATUS),
        shared("a", "g", STATUS, priority=7),
        shared("a", "g", STATUS, swapCooldown="1s"),
        shared("a", "g", STATUS, forcePromotion=True),
        shared("a", "g", {**STATUS, "phase": "Pending"}),
        shared("a", "g", {**STATUS, "cache": {"ready": False}}),
        shared("a", "g", group_status(state="Active")),
        shared("a", "g", group_status(preemptedBy="c")),
        shared("a", "g", group_status(preemptedAt="2026-01-02T03:04:05Z")),
        stored("a", STATUS, gpu={"shared": "g"}, serverless={"minReplicas": 1}),
        MISFIT,
    ],
)
def test_siblings_hear_of_what_may_change_who_leads(siblings: Siblings, new: StoredObject) -> None:
    old = shared("a", "g", STATUS)
    assert siblings.hear_of_model(UpdateEvent(old, new))
    assert siblings.hear_of_model(UpdateEvent(new, old))


@pytest.mark.parametrize(
    "new",
    [
        shared("a", "g", STATUS),
        shared("a", "g", {**STATUS, "lastActiveTime": "2026-01-02T03:04:05Z"}),
        shared("a", "g", {**STATUS, "message": "other words", "observedGeneration": 2}),
        stored("a", STATUS, gpu={"shared": "g"}, image="other"),
    ],
)
def test_requests_and_the_rest_are_no_news(siblings: Siblings, new: StoredObject) -> None:
    assert not siblings.hear_of_model(UpdateEvent(shared("a", "g", STATUS), new))


def test_siblings_hear_who_comes_and_goes(siblings: Siblings) -> None:
    assert siblings.hear_of_model(CreateEvent(shared("a")))
    assert siblings.hear_of_model(DeleteEvent(shared("a")))
    assert not siblings.hear_of_model(UpdateEvent(MISFIT, MISFIT))


def pod(phase: str) -> StoredObject:
    return stored_from({"metadata": {"name": "p", "namespace": "ns"}, "status": {"phase": phase}})


def deployment(replicas: int) -> StoredObject:
    metadata = {"name": "d", "namespace": "ns"}
    return stored_from({"metadata": metadata, "spec": {"replicas": replicas}})


def test_only_a_pod_that_went_is_news() -> None:
    assert pod_went(DeleteEvent(pod("Running")))
    assert pod_went(UpdateEvent(pod("Running"), pod("Failed")))
    assert not pod_went(UpdateEvent(pod("Failed"), pod("Failed")))
    assert not pod_went(UpdateEvent(pod("Pending"), pod("Running")))
    assert not pod_went(CreateEvent(pod("Running")))
    assert pod_went(UpdateEvent(MISFIT, pod("Failed")))
    assert not pod_went(UpdateEvent(pod("Running"), MISFIT))


def test_only_a_deployment_that_came_to_rest_is_news() -> None:
    assert deployment_rests(DeleteEvent(deployment(1)))
    assert deployment_rests(UpdateEvent(deployment(1), deployment(0)))
    assert not deployment_rests(UpdateEvent(deployment(0), deployment(0)))
    assert not deployment_rests(UpdateEvent(deployment(0), deployment(1)))
    assert not deployment_rests(CreateEvent(deployment(0)))
