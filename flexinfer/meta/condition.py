# SPDX-License-Identifier: Apache-2.0
"""One observation about an object: the API's `metav1.Condition`."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, PlainSerializer

from flexinfer.errors import ConfigurationError
from flexinfer.meta.object import Model

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

__all__ = ["Condition", "ConditionStatus", "Timestamp"]

# The rules of metav1.Condition, from its kubebuilder markers.
_TYPE_PATTERN = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
REASON_PATTERN = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
MAX_MESSAGE = 32768


class ConditionStatus(StrEnum):
    """Say whether the condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


def whole_second(value: datetime) -> datetime:
    """Cut to what metav1.Time keeps, so that a time survives the way to the server and back.

    Raises ConfigurationError for a time without a zone.
    """
    if value.tzinfo is None:
        raise ConfigurationError("a time needs a time zone: use datetime.now(UTC)")
    if value.tzinfo is UTC:
        return value.replace(microsecond=0) if value.microsecond else value
    try:
        return value.astimezone(UTC).replace(microsecond=0)
    except OverflowError:
        raise ConfigurationError("a time must lie in the years 1 to 9999 of UTC") from None


def _rfc3339(value: datetime) -> str:
    return f"{value.isoformat(timespec='seconds').removesuffix('+00:00')}Z"


Timestamp = Annotated[datetime, AfterValidator(whole_second), PlainSerializer(_rfc3339)]
"""A UTC time of whole seconds: `2026-01-31T12:00:00Z` on the wire, an aware datetime here."""


class Condition(Model):
    """Be one observation about an object."""

    type: str = Field(max_length=316, pattern=_TYPE_PATTERN)
    """What is observed, in CamelCase, such as `Ready`."""

    status: ConditionStatus
    """Whether it holds: True, False or Unknown."""

    observed_generation: int | None = Field(default=None, ge=0)
    """The `metadata.generation` that was read when this was observed. If it is older than the
    object's own, the condition is out of date."""

    last_transition_time: Timestamp
    """When the status last changed from one value to another."""

    reason: str = Field(min_length=1, max_length=1024, pattern=REASON_PATTERN)
    """Why, in one CamelCase word that programs may rely on."""

    message: str = Field(max_length=MAX_MESSAGE)
    """Why, in words for people; may be empty."""

    def wire(self) -> Tree:
        """Return the camelCase form; a status is written so often that it is spelt out here."""
        tree: Tree = {"type": self.type, "status": self.status.value}
        if self.observed_generation is not None:
            tree["observedGeneration"] = self.observed_generation
        tree["lastTransitionTime"] = _rfc3339(self.last_transition_time)
        tree["reason"] = self.reason
        tree["message"] = self.message
        return tree
