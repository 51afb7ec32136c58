# SPDX-License-Identifier: Apache-2.0
"""The base of custom resources that say in conditions how they are doing."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flexinfer.crd.markers import ListMap
from flexinfer.meta.condition import Condition
from flexinfer.meta.object import Model, Object

__all__ = ["ConditionedObject", "ConditionedStatus"]

_MOST = 16  # conditions of one object: CEL rules need a bound, and people cannot read more


class ConditionedStatus(Model):
    """Be a status that holds conditions; subclass it for more fields."""

    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = Field(
        default=(), max_length=_MOST
    )
    """What was observed; Ready says whether all is well, and if not, what is wrong."""


class ConditionedObject(Object):
    """Be an object with such a status.

    Subclasses add `spec`, and set `status` anew only for a status with more fields.
    """

    status: ConditionedStatus = ConditionedStatus()
    """What became of the spec, as the controller saw it last."""
