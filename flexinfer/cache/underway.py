# SPDX-License-Identifier: Apache-2.0
"""The writes of this process to the objects of one kind that the server has not answered yet.

The watch often tells of a write before its answer is here. Whose write it was can be said once that
has come: whoever wants to know hears of the writes that are under way, and waits for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer import runs
from flexinfer.runs import Writing

if TYPE_CHECKING:
    from flexinfer.meta.envelope import StoredObject
    from flexinfer.meta.resource import NamespacedName


class UnderWay:
    """Take note of the writes of runs, once somebody has asked for them (`is_asked`).

    `writes` are those to each object.
    """

    def __init__(self) -> None:
        self.writes: dict[NamespacedName, tuple[Writing, ...]] = {}
        self.is_asked = False

    def begin(self, key: NamespacedName) -> Writing | None:
        """Take note that this run writes to an object; `end` must follow. None outside of a run."""
        run = runs.current()
        if run is None:
            return None
        write = Writing(run)
        self.writes[key] = (*self.writes.get(key, ()), write)
        return write

    def end(self, key: NamespacedName, write: Writing, answer: StoredObject | None) -> None:
        """Take note of the answer, None when there is none, and tell whoever waited for it."""
        left = tuple(other for other in self.writes.pop(key) if other is not write)
        if left:
            self.writes[key] = left
        write.ended(answer)
