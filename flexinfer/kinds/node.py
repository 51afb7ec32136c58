# SPDX-License-Identifier: Apache-2.0
"""Node of v1, as far as it is read: what it offers, and whether pods may go there."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from flexinfer.kinds.condition import ForeignCondition
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, Resource

__all__ = ["Node", "NodeSpec", "NodeStatus", "Taint"]


class Taint(Model):
    """Keep pods without a matching toleration away."""

    key: str
    value: str = ""
    effect: str


class NodeSpec(Model):
    """Be what an administrator set; `unschedulable` is what `kubectl cordon` does."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(Model):
    """Be what the kubelet reported; amounts are quantities in their canonical text form."""

    capacity: dict[str, str] = Field(default_factory=dict)
    allocatable: dict[str, str] = Field(default_factory=dict)
    conditions: tuple[ForeignCondition, ...] = ()


class Node(Object):
    """Read a Node."""

    resource: ClassVar[Resource] = Resource(
        GroupVersionKind("", "v1", "Node"), "nodes", namespaced=False
    )

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
