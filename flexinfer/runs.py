# SPDX-License-Identifier: Apache-2.0
"""The reconcile that a task is part of: what its log lines say of it, and how often it wrote.

One context variable for all of it. Reconcilers and clients pass nothing along, and tasks that a
reconciler starts belong to its run; whatever is done outside of a reconcile belongs to none.
"""

from __future__ import annotations

import itertools
import secrets
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from flexinfer.meta.envelope import StoredObject
    from flexinfer.meta.resource import NamespacedName

__all__ = ["Run", "Writing", "begin", "current"]

_PROCESS_ID = secrets.token_hex(4)
_numbers = itertools.count(1)


class Run:
    """Be one reconcile of one name; `writes` counts what the server took from it."""

    __slots__ = ("_controller", "_key", "_number", "writes")

    def __init__(self, controller: str, key: NamespacedName) -> None:
        self._controller, self._key = controller, key
        self._number = next(_numbers)
        self.writes = 0

    def is_of(self, controller: str, key: NamespacedName) -> bool:
        """Tell whether it is a run of that name by that controller."""
        return self._key == key and self._controller == controller

    def fields(self) -> dict[str, str]:
        """Return what every log line of the run carries; `reconcile_id` is of no other run."""
        return {
            "controller": self._controller,
            "namespace": self._key.namespace,
            "name": self._key.name,
            "reconcile_id": f"{_PROCESS_ID}-{self._number:x}",
        }


class Writing:
    """Be one write of a run, from when it is sent until the server has answered or failed to."""

    __slots__ = ("_listeners", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self._listeners: list[Callable[[StoredObject | None], None]] = []

    def when_ended(self, listener: Callable[[StoredObject | None], None]) -> None:
        """Call *listener* with the answer, or with None when there is none."""
        self._listeners.append(listener)

    def ended(self, answer: StoredObject | None) -> None:
        """Tell everybody who asked."""
        for listener in self._listeners:
            listener(answer)


_current: ContextVar[Run | None] = ContextVar("flexinfer_run", default=None)

current = _current.get
"""Return the run that the task is part of, None for none."""


def begin(controller: str, key: NamespacedName) -> None:
    """Make this task, and those that it starts from now on, part of a new run."""
    _current.set(Run(controller, key))
