# SPDX-License-Identifier: Apache-2.0
"""What this process wrote and the informer has not seen yet, laid over the store.

The store holds what readers see. For a key that was written here it shows the server's answer;
what the informer knows of that key is kept beside, and takes over once the informer has passed
the answer's resourceVersion. So reads never go back in time, and reading costs nothing extra.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from flexinfer import runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flexinfer.cache.store import Store
    from flexinfer.meta.envelope import ObjectMeta, StoredObject
    from flexinfer.meta.resource import NamespacedName
    from flexinfer.runs import Run


def revision(resource_version: str) -> int | None:
    """Return a resourceVersion as a number, or None when it cannot be ordered.

    Those of one resource are decimal integers that grow, of any length (KEP-5504).
    """
    if resource_version.isascii() and resource_version.isdigit():
        return int(resource_version)
    return None


def compare(left: str, right: str) -> int | None:
    """Return -1, 0 or 1 as *left* is older, the same or newer; None when nobody can tell."""
    if left == right:
        return 0
    left_number, right_number = revision(left), revision(right)
    if left_number is None or right_number is None:
        return None
    return (left_number > right_number) - (left_number < right_number)


class _Own:
    """Be one key's own state, and the informer's state that it hides.

    `item` is None when readers find nothing: the object left the selection by our write, or
    (`is_gone`) was deleted. `version` is the answer's, or, once gone, the last one known. `run` is
    the reconcile that wrote it.
    """

    __slots__ = ("is_gone", "item", "known", "run", "uid", "version")

    def __init__(self, uid: str, version: str, item: StoredObject | None) -> None:
        self.uid = uid
        self.version = version
        self.item = item
        self.known: StoredObject | None = None
        self.is_gone = False
        self.run = runs.current()

    def is_answer(self, meta: ObjectMeta) -> bool:
        """Tell whether readers see an answer of just this UID and version."""
        is_version = self.version == meta.resource_version and self.uid == meta.uid
        return is_version and self.item is not None


class OwnWrites:
    """Decide, key by key, whether readers see our own write or what the informer knows.

    An entry ends when the informer has seen or passed its version; one for a deleted object
    when its DELETED comes, when another object of that name is seen, or when a list shows that
    it is gone.
    """

    def __init__(self, store: Store, *, admits: Callable[[ObjectMeta], bool]) -> None:
        self._store = store
        self._admits = admits
        self._own: dict[NamespacedName, _Own] = {}
        self._due: list[tuple[int, NamespacedName]] = []
        self._position: int | None = None

    def __len__(self) -> int:
        return len(self._own)

    def known(self, key: NamespacedName) -> StoredObject | None:
        """Return what the informer knows of a key, whatever was written since."""
        own = self._own.get(key)
        return self._store.get(key) if own is None else own.known

    def known_items(self) -> Iterable[StoredObject]:
        """Return all objects that the informer knows."""
        if not self._own:
            return self._store.objects()
        hidden = [own.known for own in self._own.values() if own.known is not None]
        shown = [item for item in self._store.objects() if item.meta.key not in self._own]
        return shown + hidden

    def written(self, meta: ObjectMeta) -> StoredObject | None:
        """Return the answer to the write of just this UID and version, if it is one of ours."""
        own = self._own.get(meta.key)
        return own.item if own is not None and own.is_answer(meta) else None

    def writer_of(self, key: NamespacedName, item: StoredObject) -> Run | None:
        """Return the reconcile that wrote an object as the informer just saw it, if one of ours."""
        own = self._own.get(key)
        return own.run if own is not None and own.is_answer(item.meta) else None

    def observe(self, key: NamespacedName, item: StoredObject) -> None:
        """Take in an object as the informer just saw it."""
        own = self._own.get(key)
        if own is None:
            self._store.put(key, item)
            return
        if item is own.item:  # the event of that very write: readers see it already
            del self._own[key]
            return
        own.known = item
        order = compare(item.meta.resource_version, own.version)
        if own.is_gone:
            if item.meta.uid != own.uid and order in (1, None):
                self._settle(key, own)
        elif order == 0:
            # The very state that was written: keep the answer, its models may be made already.
            own.known = own.item or item
            self._settle(key, own)
        elif order == 1:
            self._settle(key, own)

    def remove(self, key: NamespacedName, last: ObjectMeta) -> None:
        """Take in that the informer saw an object go; *last* has the version of its going."""
        own = self._own.get(key)
        if own is None:
            self._store.remove(key)
            return
        own.known = None
        order = compare(last.resource_version, own.version)
        if own.is_gone or order is None:
            if last.uid == own.uid:
                self._settle(key, own)
        elif order >= 0:
            self._settle(key, own)

    def vanish(self, key: NamespacedName) -> None:
        """Take in that a list does not hold a key which the informer knew."""
        own = self._own.get(key)
        if own is None:
            self._store.remove(key)
        else:
            own.known = None

    def passed(self, resource_version: str) -> None:
        """Take in that the informer has seen all there was up to a version."""
        position = revision(resource_version)
        if position is None:
            return
        self._position = position
        due = self._due
        while due and due[0][0] <= position:
            key = heappop(due)[1]
            own = self._own.get(key)
            if own is not None and not own.is_gone and compare(own.version, resource_version) != 1:
                self._settle(key, own)

    def bookmarked(self, resource_version: str) -> None:
        """Take in a bookmark; where versions cannot be ordered it ends every write's entry."""
        self.passed(resource_version)
        if revision(resource_version) is None:
            for key, own in list(self._own.items()):
                if not own.is_gone:
                    self._settle(key, own)

    def relisted(self, resource_version: str) -> None:
        """Take in that a list is complete, every item of it observed.

        A list that is older than what was seen before comes from a server restored from a
        backup: nothing that was written since then is there any more.
        """
        position = revision(resource_version)
        went_back = position is None or (self._position is not None and position < self._position)
        self.passed(resource_version)
        for key, own in list(self._own.items()):
            is_seen_gone = own.is_gone and own.known is None
            if went_back or (is_seen_gone and compare(own.version, resource_version) != 1):
                self._settle(key, own)

    def wrote(self, item: StoredObject) -> None:
        """Take in the server's answer to a write of ours, or to a read past the cache."""
        meta = item.meta
        key, number = meta.key, revision(meta.resource_version)
        if not self._is_news(key, meta, number):
            return
        own = _Own(meta.uid, meta.resource_version, item if self._admits(meta) else None)
        self._lay(key, own)
        if number is not None:
            self._remember_due(key, number)

    def deleted(self, key: NamespacedName, uid: str) -> None:
        """Take in that the server has said that the object with this UID is gone.

        If nothing here shows that object there is nothing to hide, and no end to wait for.
        """
        own, shown = self._own.get(key), self._store.get(key)
        if own is not None and own.uid != uid:
            return
        if shown is None or shown.meta.uid != uid:
            return
        gone = _Own(uid, shown.meta.resource_version, None)
        gone.is_gone = True
        self._lay(key, gone)

    def _is_news(self, key: NamespacedName, meta: ObjectMeta, number: int | None) -> bool:
        """Say whether an answer of that revision tells more than is known here already."""
        if number is not None and self._position is not None and number <= self._position:
            return False
        own = self._own.get(key)
        if own is None:
            known = self._store.get(key)
            return known is None or self._is_later(meta, known.meta.resource_version)
        if own.is_gone and own.uid == meta.uid:
            return False
        return self._is_later(meta, own.version)

    def _is_later(self, meta: ObjectMeta, version: str) -> bool:
        return compare(meta.resource_version, version) in (1, None)

    def _lay(self, key: NamespacedName, own: _Own) -> None:
        own.known = self.known(key)
        self._own[key] = own
        self._show(key, own.item)

    def _settle(self, key: NamespacedName, own: _Own) -> None:
        """Let what the informer knows take over."""
        del self._own[key]
        self._show(key, own.known)

    def _show(self, key: NamespacedName, item: StoredObject | None) -> None:
        if item is None:
            self._store.remove(key)
        else:
            self._store.put(key, item)

    def _remember_due(self, key: NamespacedName, number: int) -> None:
        heappush(self._due, (number, key))
        # Writes to one key leave older entries behind; while no watch passes them they are
        # swept here, so the heap stays as small as the number of keys.
        if len(self._due) > 2 * len(self._own) + 64:
            current = ((revision(own.version), key) for key, own in self._own.items())
            self._due = [(number, key) for number, key in current if number is not None]
            heapify(self._due)
