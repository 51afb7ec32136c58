# SPDX-License-Identifier: Apache-2.0
"""Conditions as values: pure functions on sequences of `Condition`, none of which changes one.

A status that is computed anew in every run stays equal to the last one as long as nothing
happened: a transition time moves only when the status flips, the order is fixed, and times
carry no fraction of a second. That is what keeps a controller from waking itself up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.meta.condition import Condition, ConditionStatus, whole_second

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

__all__ = ["MAX_MESSAGE", "find", "is_true", "normalise", "set_condition", "shorten", "upsert"]

MAX_MESSAGE = 1024
"""Characters that a message keeps; the API allows 32,768, which nobody reads in `kubectl get`."""


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """Return the condition of that type, or None when it was never set."""
    for condition in conditions:
        if condition.type == type_:
            return condition
    return None


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    """Tell whether the condition is there and True; Unknown is not."""
    found = find(conditions, type_)
    return found is not None and found.status is ConditionStatus.TRUE


def upsert(conditions: Iterable[Condition], new: Condition, *, now: datetime) -> list[Condition]:
    """Return *conditions*, normalised, with *new* in the place of its type.

    The transition time of *new* is not read: it becomes *now* when the status flipped or the
    type is new, and stays what it was otherwise. *now* needs a time zone.
    """
    conditions = tuple(conditions)
    at = _transition(find(reversed(conditions), new.type), new.status, now)
    if at != new.last_transition_time:
        new = new.model_copy(update={"last_transition_time": at})
    return normalise((*conditions, new))


def set_condition(  # noqa: PLR0913 - the fields of a condition, by keyword
    conditions: Iterable[Condition],
    type_: str,
    status: ConditionStatus,
    *,
    reason: str,
    message: str = "",
    observed_generation: int,
    now: datetime,
) -> list[Condition]:
    """Build a condition from its fields and put it where `upsert` does.

    *observed_generation* is the generation that was read at the start of the run.
    """
    conditions = tuple(conditions)
    message = shorten(message)
    said = (status, reason, message, observed_generation)
    old = find(reversed(conditions), type_)
    if old and said == (old.status, old.reason, old.message, old.observed_generation):
        return normalise(conditions)
    new = Condition(
        type=type_,
        status=status,
        observed_generation=observed_generation,
        last_transition_time=_transition(old, status, now),
        reason=reason,
        message=message,
    )
    return normalise((*conditions, new))


def _transition(old: Condition | None, status: ConditionStatus, now: datetime) -> datetime:
    if old is None or old.status != status:
        return whole_second(now)
    return old.last_transition_time


def normalise(conditions: Iterable[Condition]) -> list[Condition]:
    """Return one condition a type, the last one given, in the one order: Ready, then by type.

    Messages are cut to `MAX_MESSAGE` characters.
    """
    latest = {c.type: c for c in conditions}
    return [_bounded(latest[type_]) for type_ in sorted(latest, key=_rank)]


def _rank(type_: str) -> str:
    return "" if type_ == "Ready" else type_


def shorten(message: str, limit: int = MAX_MESSAGE) -> str:
    """Cut a message to *limit* characters, the last of them an ellipsis.

    It ends with a whole word, and a command in backticks stays whole or goes: half of one would be
    run as it is. Only where that would leave less than half of *limit* is it cut anywhere.
    """
    if len(message) <= limit:
        return message
    end = limit - 1
    kept = message[:end]
    if not message[end].isspace():
        kept = kept[: max(kept.rfind(" "), kept.rfind("\n")) + 1]
    if kept.count("`") % 2:
        kept = kept[: kept.rfind("`")]
    kept = kept.rstrip()
    return f"{kept if len(kept) >= limit // 2 else message[:end]}…"


def _bounded(condition: Condition) -> Condition:
    if len(condition.message) <= MAX_MESSAGE:
        return condition
    return condition.model_copy(update={"message": shorten(condition.message)})
