# SPDX-License-Identifier: Apache-2.0
"""The writes of this process to the objects of one kind that the server has not answered yet.

The watch often tells of a write before its answer is here. Whose write it was can be said once that
has come: whoever wants to know hears of the writes that are under way, and waits for them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from flexinfer import runs
from flexinfer.runs import Writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flexinfer.meta.envelope import StoredObject
    from flexinfer.meta.resource import NamespacedName

    Tell = Callable[[StoredObject], StoredObject]

_UNASKED: AbstractContextManager[Tell] = nullcontext(lambda answer: answer)


class UnderWay:
    """Take note of the writes of runs, once somebody has asked for them: till then it is free.

    `writes` are those to each object.
    """

    def __init__(self) -> None:
        self.writes: dict[NamespacedName, tuple[Writing, ...]] = {}
        self._is_asked = False

    def ask(self) -> None:
        """Take note from now on."""
        self._is_asked = True

    def write(self, key: NamespacedName) -> AbstractContextManager[Tell]:
        """Be under way for as long as the block; what it gets is to be called with the answer."""
        run = runs.current() if self._is_asked else None
        return _UNASKED if run is None else self._note(key, Writing(run))

    @contextmanager
    def _note(self, key: NamespacedName, write: Writing) -> Iterator[Tell]:
        answers: list[StoredObject] = []

        def tell(answer: StoredObject) -> StoredObject:
            answers.append(answer)
            return answer

        self.writes[key] = (*self.writes.get(key, ()), write)
        try:
            yield tell
        finally:
            left = tuple(other for other in self.writes.pop(key) if other is not write)
            if left:
                self.writes[key] = left
            write.ended(answers[0] if answers else None)
