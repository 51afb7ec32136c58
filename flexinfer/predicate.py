# SPDX-License-Identifier: Apache-2.0
"""Which events are worth a reconcile.

A predicate is any callable from an event to a bool. Those here look at updates only: creates and
deletes always pass. Whatever a predicate says, `admits` lets through a delete and an update that
changes the UID, because losing one of these means never noticing that the object is another one.
"""

from __future__ import annotations

from collections.abc import Callable

from flexinfer.errors import ConfigurationError
from flexinfer.event import DeleteEvent, Event, UpdateEvent

__all__ = [
    "Predicate",
    "admits",
    "all_of",
    "annotations_changed",
    "any_of",
    "generation_changed",
    "labels_changed",
    "negate",
    "resource_version_changed",
]

Predicate = Callable[[Event], bool]


def admits(predicate: Predicate | None, event: Event) -> bool:
    """Ask *predicate* about *event*, unless it is a delete or changes the UID: those pass."""
    if predicate is None or isinstance(event, DeleteEvent):
        return True
    if isinstance(event, UpdateEvent) and event.old.meta.uid != event.new.meta.uid:
        return True
    return predicate(event)


def generation_changed(event: Event) -> bool:
    """Pass updates that change the spec, or that start the deletion.

    Changes of labels, annotations, finalizers, owners and status do not pass. A kind without a
    generation, such as ConfigMap, has nothing to compare, so every change of it passes.
    """
    if not isinstance(event, UpdateEvent):
        return True
    old, new = event.old.meta, event.new.meta
    if old.uid != new.uid:
        return True
    if not new.generation:
        return old.resource_version != new.resource_version
    return old.generation != new.generation or old.deletion_timestamp != new.deletion_timestamp


def resource_version_changed(event: Event) -> bool:
    """Pass updates that change anything at all, which leaves out repeated deliveries."""
    return (
        not isinstance(event, UpdateEvent)
        or event.old.meta.resource_version != event.new.meta.resource_version
    )


def labels_changed(event: Event) -> bool:
    """Pass updates that change the labels."""
    return (
        not isinstance(event, UpdateEvent)
        or _is_other_object(event)
        or event.old.meta.labels != event.new.meta.labels
    )


def annotations_changed(event: Event) -> bool:
    """Pass updates that change the annotations."""
    return (
        not isinstance(event, UpdateEvent)
        or _is_other_object(event)
        or event.old.meta.annotations != event.new.meta.annotations
    )


def all_of(*predicates: Predicate) -> Predicate:
    """Pass what every one of *predicates* passes; raise ConfigurationError without any."""
    _require(predicates, "all_of")
    return lambda event: all(predicate(event) for predicate in predicates)


def any_of(*predicates: Predicate) -> Predicate:
    """Pass what at least one of *predicates* passes; raise ConfigurationError without any."""
    _require(predicates, "any_of")
    return lambda event: any(predicate(event) for predicate in predicates)


def negate(predicate: Predicate) -> Predicate:
    """Pass the updates that *predicate* stops, and creates and deletes as ever."""
    return lambda event: (
        not isinstance(event, UpdateEvent) or _is_other_object(event) or not predicate(event)
    )


def _is_other_object(event: Event) -> bool:
    return isinstance(event, UpdateEvent) and event.old.meta.uid != event.new.meta.uid


def _require(predicates: tuple[Predicate, ...], name: str) -> None:
    if not predicates:
        raise ConfigurationError(f"{name}() has no predicates: give it at least one")
