# SPDX-License-Identifier: Apache-2.0
"""The base of custom resources that say in conditions how they are doing."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from flexinfer.crd.markers import ListMap, PrintColumn
from flexinfer.meta.condition import Condition
from flexinfer.meta.object import Model, Object

__all__ = ["ConditionedObject", "ConditionedStatus"]

_MOST = 16  # conditions of one object: CEL rules need a bound, and people cannot read more
_READY = ".status.conditions[?(@.type=='Ready')]"


class ConditionedStatus(Model):
    """Be a status that holds conditions; subclass it for more fields."""

    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = Field(
        default=(), max_length=_MOST
    )
    """What was observed; Ready says whether all is well, and if not, what is wrong."""


class ConditionedObject(Object):
    """Be an object with such a status.

    Subclasses add `spec`, and set `status` anew only for a status with more fields. `kubectl get`
    shows Ready, its reason and the age, and the message with `-o wide`, unless `resource` says
    which columns to show.
    """

    default_columns: ClassVar[tuple[PrintColumn, ...]] = (
        PrintColumn("Ready", f"{_READY}.status"),
        PrintColumn("Reason", f"{_READY}.reason"),
        PrintColumn("Message", f"{_READY}.message", priority=1),
        PrintColumn("Age", ".metadata.creationTimestamp", type="date"),
    )

    status: ConditionedStatus = ConditionedStatus()
    """What became of the spec, as the controller saw it last."""
