# SPDX-License-Identifier: Apache-2.0
"""One change of one object, and what a watch with a selector shows of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.meta.envelope import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flexinfer.meta.envelope import Tree
    from flexinfer.meta.resource import NamespacedName
    from flexinfer.meta.selector import Selector

__all__ = ["Change", "labels_of"]


@dataclass(frozen=True, slots=True)
class Change:
    """Be one entry of the log: ADDED, MODIFIED or DELETED, with the states before and after."""

    revision: int
    type: str
    key: NamespacedName
    before: Tree | None
    after: Tree

    def lines(self, selector: Selector) -> Sequence[bytes]:
        """Return it as a watch with *selector* sees it: objects enter and leave by labels."""
        was_in = self.before is not None and selector.matches(labels_of(self.before))
        is_in = self.type != "DELETED" and selector.matches(labels_of(self.after))
        if not was_in and not is_in:
            return ()
        kind = "DELETED" if not is_in else "MODIFIED" if was_in else "ADDED"
        item = self.after
        if kind == "DELETED" and self.type != "DELETED" and self.before is not None:
            # What left the selection is shown as it was, with the version at which it left.
            version = self.after["metadata"]["resourceVersion"]
            metadata = {**self.before["metadata"], "resourceVersion": version}
            item = {**self.before, "metadata": metadata}
        return (encode({"type": kind, "object": item}),)


def labels_of(tree: Tree) -> Mapping[str, str]:
    """Return the labels of an object, none when it has none."""
    labels: Mapping[str, str] = tree.get("metadata", {}).get("labels", {})
    return labels
