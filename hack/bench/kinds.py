# SPDX-License-Identifier: Apache-2.0
"""The kinds that subjects read and write; `peer/types.go` has the same."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from flexinfer.meta.condition import Condition
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, Resource

ITEMS = Resource(GroupVersionKind("bench.flexinfer.ai", "v1", "Item"), "items")
MANAGER = "bench"
"""The field manager of all subjects, and what the label `app.kubernetes.io/managed-by` says."""
LABELS = {"app.kubernetes.io/managed-by": MANAGER}
LAST_ROUND = 1_000_000
"""`spec.round` of an Item that nobody writes to any more."""


class ItemSpec(Model):
    """Be what the benchmark asks for."""

    number: int = 0
    replicas: int = 1
    round: int = 0
    payload: str = ""


class ItemStatus(Model):
    """Be what a subject writes."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Item(Object):
    """Be the custom resource of the benchmark."""

    resource: ClassVar[Resource] = ITEMS

    spec: ItemSpec = ItemSpec()
    status: ItemStatus = ItemStatus()


class ConfigMap(Object):
    """Be the child of an Item."""

    resource: ClassVar[Resource] = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")

    data: dict[str, str] = Field(default_factory=dict)
