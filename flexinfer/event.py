# SPDX-License-Identifier: Apache-2.0
"""What an informer tells its handlers: one frozen record per change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flexinfer.meta.envelope import StoredObject
    from flexinfer.runs import Run, Writing

__all__ = ["CreateEvent", "DeleteEvent", "Event", "UpdateEvent"]


@dataclass(frozen=True, slots=True)
class CreateEvent:
    """Report an object that was not there before; `is_initial` when the first list held it.

    `echo_of` is the reconcile of this process that wrote this very state, None for any other;
    `under_way` are writes to the object whose answers may yet say that it was theirs.
    """

    object: StoredObject
    is_initial: bool = False
    echo_of: Run | None = None
    under_way: tuple[Writing, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateEvent:
    """Report a change of one object; both sides have the same UID.

    `echo_of` and `under_way` are those of a `CreateEvent`, about the new state.
    """

    old: StoredObject
    new: StoredObject
    echo_of: Run | None = None
    under_way: tuple[Writing, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteEvent:
    """Report an object that is gone.

    `final_state_unknown` when a relist noticed it, so that `object` is the last state seen.
    """

    object: StoredObject
    final_state_unknown: bool = False


Event = CreateEvent | UpdateEvent | DeleteEvent
