# SPDX-License-Identifier: Apache-2.0
"""The objects a reader sees, by key and by index, and the models made of them.

Synchronous and without I/O. Every method leaves objects, indexes and models consistent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from flexinfer.cache.memo import ModelMemo
from flexinfer.errors import ConfigurationError
from flexinfer.event import CreateEvent, DeleteEvent, UpdateEvent
from flexinfer.meta.object import Object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, KeysView

    from flexinfer.event import Event
    from flexinfer.meta.envelope import StoredObject
    from flexinfer.meta.resource import NamespacedName
    from flexinfer.runs import Run, Writing

    IndexFunc = Callable[[StoredObject], Iterable[str]]
    IndexErrorHandler = Callable[[str, NamespacedName, Exception], None]

T = TypeVar("T", bound=Object)


def changes(
    old: StoredObject | None,
    new: StoredObject,
    *,
    is_initial: bool = False,
    echo_of: Run | None = None,
    under_way: tuple[Writing, ...] = (),
) -> tuple[Event, ...]:
    """Say what happened between two states of one name; *echo_of* is who wrote the new one.

    The same resourceVersion is no change. Another UID is a delete and a create, since it is
    another object.
    """
    if old is None:
        return (CreateEvent(new, is_initial, echo_of, under_way),)
    if old.meta.uid != new.meta.uid:
        return (DeleteEvent(old), CreateEvent(new, is_initial, echo_of, under_way))
    if old.meta.resource_version == new.meta.resource_version:
        return ()
    return (UpdateEvent(old, new, echo_of, under_way),)


class Store:
    """Hold objects by key, with indexes kept up to date on every change.

    `on_index_error` hears of an index function that raised; the object then has no value in
    that index.
    """

    def __init__(
        self, *, memo_size: int = 256, on_index_error: IndexErrorHandler | None = None
    ) -> None:
        self._objects: dict[NamespacedName, StoredObject] = {}
        self._indexes: dict[str, _Index] = {}
        self._namespaces: _Index | None = None
        self._memo = ModelMemo(memo_size)
        self._on_index_error = on_index_error

    def __len__(self) -> int:
        return len(self._objects)

    def keys(self) -> KeysView[NamespacedName]:
        """Return the keys, as a live view."""
        return self._objects.keys()

    def get(self, key: NamespacedName) -> StoredObject | None:
        """Return the object of that name, or None."""
        return self._objects.get(key)

    def put(self, key: NamespacedName, item: StoredObject) -> None:
        """Set the object of that name."""
        old = self._objects.get(key)
        if old is item:
            return
        if old is not None:
            self._memo.drop(old)
        else:
            self._set_namespace(key)
        self._objects[key] = item
        for name, index in self._indexes.items():
            self._enter(name, index, key, item)

    def remove(self, key: NamespacedName) -> None:
        """Forget the object of that name, if there is one."""
        old = self._objects.pop(key, None)
        if old is None:
            return
        self._memo.drop(old)
        for index in self._indexes.values():
            index.remove(key)
        if self._namespaces is not None:
            self._namespaces.remove(key)

    def objects(self, namespace: str = "") -> list[StoredObject]:
        """Return the objects of a namespace (empty: all), in unspecified order."""
        if not namespace:
            return list(self._objects.values())
        if self._namespaces is None:
            # Made on first use: a store that is never listed by namespace does not pay for it.
            self._namespaces = _Index(lambda item: (item.meta.namespace,))
            for key in self._objects:
                self._set_namespace(key)
        objects = self._objects
        return [objects[key] for key in self._namespaces.keys_of(namespace)]

    def add_index(self, name: str, func: IndexFunc) -> None:
        """Index present and future objects by what *func* returns for each."""
        if not name:
            raise ConfigurationError("an index needs a name: give one that readers will ask by")
        if name in self._indexes:
            raise ConfigurationError(f"there is an index {name!r} already: use another name")
        index = _Index(func)
        self._indexes[name] = index
        for key, item in self._objects.items():
            self._enter(name, index, key, item)

    def has_index(self, name: str) -> bool:
        """Say whether an index of that name was added."""
        return name in self._indexes

    def by_index(self, name: str, value: str) -> list[StoredObject]:
        """Return the objects that the index has under *value*, in unspecified order."""
        index = self._indexes.get(name)
        if index is None:
            raise ConfigurationError(f"there is no index {name!r}: add it to the informer first")
        objects = self._objects
        return [objects[key] for key in index.keys_of(value)]

    def decode(self, kind: type[T], item: StoredObject) -> T:
        """Return *item* as a model, the same one as long as *item* stays in the store."""
        return self._memo.decode(kind, item)

    def _set_namespace(self, key: NamespacedName) -> None:
        if self._namespaces is not None:
            self._namespaces.set(key, (key.namespace,))

    def _enter(self, name: str, index: _Index, key: NamespacedName, item: StoredObject) -> None:
        try:
            values = index.values_of(item)
        except Exception as error:  # noqa: BLE001  # a user's function must not end the watch
            values = ()
            if self._on_index_error is not None:
                self._on_index_error(name, key, error)
        index.set(key, values)


class _Index:
    """Map values to keys, and keys to their values so that a change removes the old ones."""

    __slots__ = ("_func", "_keys", "_values")

    def __init__(self, func: IndexFunc) -> None:
        self._func = func
        self._keys: dict[str, set[NamespacedName]] = {}
        self._values: dict[NamespacedName, tuple[str, ...]] = {}

    def values_of(self, item: StoredObject) -> tuple[str, ...]:
        values = self._func(item)
        if isinstance(values, str):
            raise TypeError(f"an index function returns several strings, not one: {values!r}")
        return tuple(values)

    def keys_of(self, value: str) -> Iterable[NamespacedName]:
        return self._keys.get(value, ())

    def set(self, key: NamespacedName, values: tuple[str, ...]) -> None:
        if self._values.get(key, ()) == values:
            return
        self.remove(key)
        if values:
            self._values[key] = values
        for value in values:
            self._keys.setdefault(value, set()).add(key)

    def remove(self, key: NamespacedName) -> None:
        for value in self._values.pop(key, ()):
            keys = self._keys.get(value)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._keys[value]
