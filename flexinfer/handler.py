# SPDX-License-Identifier: Apache-2.0
"""Whom an event concerns: from a change of one object to the names to reconcile.

A handler is any callable from an event to requests; the source removes duplicates within one
event. On an update the old and the new object are both mapped, so that an owner who has just
lost a child hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from flexinfer.event import CreateEvent, Event, UpdateEvent
from flexinfer.reconcile import Request
from flexinfer.workqueue import LOW_PRIORITY

if TYPE_CHECKING:
    from flexinfer.meta.envelope import StoredObject
    from flexinfer.meta.resource import Resource

__all__ = [
    "Handler",
    "IsCurrentUID",
    "MapFunction",
    "enqueue_mapped",
    "enqueue_owner",
    "enqueue_self",
    "priority_of",
]

Handler = Callable[[Event], Iterable[Request]]

MapFunction = Callable[["StoredObject"], Iterable[Request]]

IsCurrentUID = Callable[[Request, str], bool]
"""Say whether the owner of that name has that UID, as far as the cache knows."""


def enqueue_self(event: Event) -> Iterable[Request]:
    """Enqueue the object itself."""
    return (event.new.meta.key if isinstance(event, UpdateEvent) else event.object.meta.key,)


def enqueue_owner(owner: Resource, *, is_current_uid: IsCurrentUID | None = None) -> Handler:
    """Enqueue the owner that controls the object, if it is of the kind *owner*.

    Group and kind have to match, the version need not. With *is_current_uid* a child of an
    earlier owner of the same name does not concern the owner that is there now.
    """
    group, kind = owner.gvk.group, owner.kind

    def owner_of(child: StoredObject) -> Iterable[Request]:
        reference = child.meta.controller
        if reference is None or reference.kind != kind or reference.group != group:
            return ()
        namespace = child.meta.namespace if owner.namespaced else ""
        request = Request(namespace, reference.name)
        if is_current_uid is not None and not is_current_uid(request, reference.uid):
            return ()
        return (request,)

    return enqueue_mapped(owner_of)


def enqueue_mapped(function: MapFunction) -> Handler:
    """Enqueue what *function* names for the object; on an update for the old one as well.

    *function* runs inside the informer: it must be quick and must not wait.
    """

    def handle(event: Event) -> Iterable[Request]:
        if isinstance(event, UpdateEvent):
            return (*function(event.old), *function(event.new))
        return function(event.object)

    return handle


def priority_of(event: Event) -> int:
    """Return the queue priority of *event*: low for what is no news, else 0.

    Low are the objects of the first list and updates that change nothing: after a restart a
    live change is served before the backlog.
    """
    match event:
        case CreateEvent(is_initial=True):
            return LOW_PRIORITY
        case UpdateEvent(old=old, new=new) if (
            old.meta.resource_version == new.meta.resource_version
        ):
            return LOW_PRIORITY
        case _:
            return 0
