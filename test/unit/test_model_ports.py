# SPDX-License-Identifier: Apache-2.0
"""Ports that somebody renumbered, which apply alone cannot bring back."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import desired
from controllers.model.decision import Plan, Reading, decide, read
from controllers.model.ports import reclaim
from flexinfer.meta.envelope import meta_from

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

SPEC: Tree = {"backend": "llamacpp", "source": "HF://o/m", "config": {"ggufFile": "m.gguf"}}
MODEL = Model.model_validate(
    {"metadata": meta_from({"name": "m", "namespace": "ns", "uid": "u"}), "spec": SPEC}
)


def plan() -> Plan:
    reading = read(MODEL)
    assert isinstance(reading, Reading)
    found = decide(MODEL, reading, (), {})
    assert isinstance(found, Plan)
    return found


def live_service(*ports: Tree) -> Tree:
    return {"metadata": {"uid": "u"}, "spec": {"ports": list(ports)}}


def test_a_renumbered_port_is_taken_back() -> None:
    intent = desired.service(MODEL, plan(), {})
    extra = {"name": "metrics", "port": 9090, "protocol": "TCP"}
    moved = {"name": "http", "port": 9999, "protocol": "TCP"}
    assert reclaim(live_service(extra, moved), intent) == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/spec/ports/1/port", "value": 9999},
        {"op": "replace", "path": "/spec/ports/1", "value": intent["spec"]["ports"][0]},
    ]


def test_a_renumbered_port_of_a_container_is_taken_back() -> None:
    intent = desired.deployment(MODEL, plan(), {}, {})
    live = copy.deepcopy(intent)
    live["metadata"]["uid"] = "u"
    assert reclaim(live, intent) == []
    sidecar = {"name": "proxy", "ports": [{"name": "http", "containerPort": 1}]}
    containers = live["spec"]["template"]["spec"]["containers"]
    containers.insert(0, sidecar)
    containers[1]["ports"][0]["containerPort"] = 9999
    path = "/spec/template/spec/containers/1/ports/0"
    wanted = intent["spec"]["template"]["spec"]["containers"][0]["ports"][0]
    assert reclaim(live, intent) == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": f"{path}/containerPort", "value": 9999},
        {"op": "replace", "path": path, "value": wanted},
    ]


def test_a_port_that_is_ours_needs_no_patch() -> None:
    intent = desired.service(MODEL, plan(), {})
    ours = {"name": "http", "port": 8080, "protocol": "TCP", "nodePort": 30000}
    assert reclaim(live_service(ours), intent) == []
    assert reclaim({"metadata": {"uid": "u"}, "spec": {}}, intent) == []
