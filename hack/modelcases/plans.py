# SPDX-License-Identifier: Apache-2.0
"""A Model of the third generation, the nodes there are, and its plan on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model.decision import Blocked, Plan, Reading, decide, read
from flexinfer.kinds.node import Node
from flexinfer.meta.envelope import meta_from

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

META = meta_from({"name": "m", "namespace": "ns", "generation": 3, "uid": "u"})
SPEC: Tree = {"backend": "llamacpp", "source": "HF://o/m", "config": {"ggufFile": "m.gguf"}}
READY: Tree = {"conditions": [{"type": "Ready", "status": "True"}]}
NODES = [Node.model_validate({"metadata": meta_from({"name": "n"}), "status": READY})] * 3
NO_NODES = Blocked(reason=Reason.NO_MATCHING_NODES, message="no node")


def plan(replicas: int = 1, **spec: object) -> Plan:
    """Return the plan of a Model that is to have that many replicas at least."""
    tree = {**SPEC, "serverless": {"minReplicas": replicas}, **spec}
    of = Model.model_validate({"metadata": META, "spec": tree})
    reading = read(of)
    found = decide(of, reading, NODES, {}) if isinstance(reading, Reading) else reading
    if isinstance(found, Plan):
        return found
    raise AssertionError(f"nothing is planned: {found.message}")
