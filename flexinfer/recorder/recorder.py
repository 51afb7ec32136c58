# SPDX-License-Identifier: Apache-2.0
"""What a reconciler records with."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from flexinfer.errors import ConfigurationError
from flexinfer.recorder.limits import NOTE, controller_name, fit, required
from flexinfer.recorder.reference import ObjectReference
from flexinfer.recorder.series import Identity

if TYPE_CHECKING:
    from flexinfer.meta.object import Object

__all__ = ["EventRecorder", "EventType", "Observer"]


class EventType(StrEnum):
    """Say whether somebody should look."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Observer(Protocol):
    """Be what takes the events of recorders."""

    def observe(self, identity: Identity, note: str) -> None:
        """Take an event; never waits and never raises."""


class EventRecorder:
    """Record the events of one controller; `EventBroadcaster.recorder` makes one."""

    def __init__(self, observer: Observer, controller: str) -> None:
        """Refuse an empty *controller* with ConfigurationError; one that is too long is cut."""
        if not controller.strip():
            raise ConfigurationError("the controller of a recorder is empty: events name it")
        self._observer = observer
        self.controller = controller_name(controller)

    def emit(
        self,
        regarding: Object | ObjectReference,
        *,
        type: EventType,  # noqa: A002 - the field's name
        reason: str,
        action: str,
        note: str,
        related: Object | ObjectReference | None = None,
    ) -> None:
        """Record that something happened to *regarding*; returns at once, from any thread.

        *reason* is a word in CamelCase why the *action* was taken, *note* a sentence for people.
        Both and the action are cut to what the server takes: 128 bytes, the note to 1024. An
        empty action is the reason, an empty reason `Unspecified`. Nothing is raised: the same
        again within six minutes is counted, too much is dropped and counted in
        `flexinfer_events_dropped_total`; see `flexinfer.recorder.series`.
        """
        word = required(reason)
        identity = Identity(
            type=type.value,
            reason=word,
            action=required(action, word),
            controller=self.controller,
            regarding=_reference(regarding),
            related=None if related is None else _reference(related),
        )
        self._observer.observe(identity, fit(note, NOTE))

    def normal(self, regarding: Object | ObjectReference, reason: str, note: str) -> None:
        """Record what went as it should; *reason* is the action too. As `emit` in all else."""
        self.emit(regarding, type=EventType.NORMAL, reason=reason, action=reason, note=note)

    def warning(self, regarding: Object | ObjectReference, reason: str, note: str) -> None:
        """Record what somebody should look at; *reason* is the action too. As `emit` else."""
        self.emit(regarding, type=EventType.WARNING, reason=reason, action=reason, note=note)


def _reference(subject: Object | ObjectReference) -> ObjectReference:
    return subject if isinstance(subject, ObjectReference) else ObjectReference.of(subject)
