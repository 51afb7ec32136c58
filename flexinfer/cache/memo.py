# SPDX-License-Identifier: Apache-2.0
"""Models made from stored objects, remembered so that a second read costs nothing."""

from __future__ import annotations

from typing import TypeVar

from flexinfer.errors import ConfigurationError
from flexinfer.meta.envelope import StoredObject
from flexinfer.meta.frozendict import EMPTY, FrozenDict
from flexinfer.meta.object import Object

T = TypeVar("T", bound=Object)


class ModelMemo:
    """Remember the models of at most *size* objects; when it is full the newest one leaves.

    So reading all of a larger set again and again still finds *size* of them, where dropping the
    oldest would find none; and what is read twice in a row is found. An entry lives no longer
    than the stored object it was made from: `drop` ends it, and makes room.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ConfigurationError(f"memo_size must be at least 1, not {size}")
        self._size = size
        # By identity: a changed object is another StoredObject, so a stale hit cannot happen
        # while the entry holds its source.
        self._entries: dict[int, tuple[StoredObject, dict[type[Object], Object]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def decode(self, kind: type[T], item: StoredObject) -> T:
        """Return the remembered model, or make it; raise DecodeError when it does not fit."""
        entry = self._entries.get(id(item))
        if entry is not None:
            known = entry[1].get(kind)
            if isinstance(known, kind):
                return known
        model = kind.decode(_frozen(item))
        if entry is not None:
            entry[1][kind] = model
            return model
        if len(self._entries) >= self._size:
            self._entries.popitem()
        self._entries[id(item)] = (item, {kind: model})
        return model

    def drop(self, item: StoredObject) -> None:
        """Forget the models of an object that has left the store."""
        self._entries.pop(id(item), None)


def _frozen(item: StoredObject) -> StoredObject:
    """Return it with labels and annotations that no reader can change for the others."""
    labels, annotations = item.meta.labels, item.meta.annotations
    if labels is EMPTY and annotations is EMPTY:
        return item
    meta = item.meta.with_maps(labels=FrozenDict(labels), annotations=FrozenDict(annotations))
    return StoredObject(meta, item.body)
