# SPDX-License-Identifier: Apache-2.0
"""Which Models hear of nodes, and which changes of a node they hear of."""

from __future__ import annotations

import pytest

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model.nodewatch import Placements, offer_changed
from flexinfer.cache.informer import Informer, InformerOptions
from flexinfer.envtest.simulated import SimulatedApi
from flexinfer.event import CreateEvent, DeleteEvent, UpdateEvent
from flexinfer.meta.envelope import StoredObject, Tree, stored_from
from flexinfer.metrics import Registry

TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


def node(
    *,
    ready: str = "True",
    gpus: str = "8",
    beat: str = "1",
    spec: Tree | None = None,
    **labels: str,
) -> StoredObject:
    conditions = [
        {"type": "Ready", "status": ready, "lastHeartbeatTime": beat},
        {"type": "DiskPressure", "status": "False", "lastTransitionTime": beat},
    ]
    status = {
        "allocatable": {"nvidia.com/gpu": gpus, "memory": f"{beat}Mi"},
        "capacity": {"nvidia.com/gpu": "8"},
        "conditions": conditions,
    }
    meta = {"name": "n", "uid": "n", "resourceVersion": beat, "labels": labels}
    return stored_from({"metadata": meta, "spec": spec or {}, "status": status})


MISFIT = stored_from({"metadata": {"name": "n", "uid": "n"}, "spec": 7})


def update(new: StoredObject, old: StoredObject | None = None) -> UpdateEvent:
    return UpdateEvent(old or node(), new)


@pytest.mark.parametrize(
    ("new", "is_news"),
    [
        (node(beat="2"), False),
        (node(), False),
        (node(ready="False"), True),
        (node(ready="Unknown"), True),
        (node(gpus="7"), True),
        (node(spec={"unschedulable": True}), True),
        (node(spec={"taints": [TAINT]}), True),
        (node(pool="a"), True),
        (MISFIT, True),
    ],
)
def test_what_changes_which_pods_a_node_can_take_is_news_and_heartbeats_are_not(
    new: StoredObject, *, is_news: bool
) -> None:
    assert offer_changed(update(new)) is is_news


def test_nodes_that_come_and_go_are_news() -> None:
    assert offer_changed(CreateEvent(node()))
    assert offer_changed(DeleteEvent(node()))


def test_a_node_that_nobody_can_read_offers_nothing_before_and_after() -> None:
    assert not offer_changed(update(MISFIT, MISFIT))


def stored(name: str, **spec: object) -> StoredObject:
    meta = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"}
    return stored_from(
        {"metadata": meta, "spec": {"backend": "vllm", "source": "HF://o/m", **spec}}
    )


def woken(*models: StoredObject) -> set[str]:
    options = InformerOptions(registry=Registry())
    informer = Informer(SimulatedApi(Model.resource), Model.resource, options=options)
    for model in models:
        informer.changed("ADDED", model)
    found = list(Placements(informer).of_node(node()))
    assert {key.namespace for key in found} <= {"ns"}
    return {key.name for key in found}


def test_point_28_models_on_gpus_are_judged_anew_when_nodes_change() -> None:
    assert woken(stored("gpu", gpu={}), stored("cpu"), stored("said", gpu={"vendor": "cpu"})) == {
        "gpu"
    }


def test_point_29_several_replicas_hear_whether_nodes_suffice_to_keep_them_apart() -> None:
    one, two = ({"minReplicas": number} for number in (1, 2))
    assert woken(stored("one", serverless=one), stored("two", serverless=two)) == {"two"}


def test_nodes_are_no_news_to_what_does_not_fit_its_type() -> None:
    misfit = {"metadata": {"name": "bad", "namespace": "ns", "uid": "bad"}, "spec": 7}
    assert woken(stored_from(misfit)) == set()
