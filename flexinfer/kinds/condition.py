# SPDX-License-Identifier: Apache-2.0
"""The part of a condition that the conditions of all foreign kinds have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.meta.object import Model

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ForeignCondition", "find", "is_true"]


class ForeignCondition(Model):
    """Be what another controller says about its object.

    Looser than `flexinfer.meta.condition.Condition`: pods and nodes leave out reason,
    message and generation.
    """

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    """RFC 3339, or whatever its writer put there."""

    @property
    def is_true(self) -> bool:
        """Tell whether the status is True; Unknown is not."""
        return self.status == "True"


def find(conditions: Iterable[ForeignCondition], type_: str) -> ForeignCondition | None:
    """Return the condition of that type, or None when it was not reported."""
    return next((c for c in conditions if c.type == type_), None)


def is_true(conditions: Iterable[ForeignCondition], type_: str) -> bool:
    """Tell whether the condition was reported and is True; Unknown is not."""
    found = find(conditions, type_)
    return found is not None and found.is_true
