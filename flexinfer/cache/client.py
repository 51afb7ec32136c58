# SPDX-License-Identifier: Apache-2.0
"""The Client that reads from informers and writes through to the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from flexinfer.client.protocol import Client, Propagation
from flexinfer.errors import CacheNotSyncedError, ConfigurationError
from flexinfer.meta.envelope import stored_from
from flexinfer.meta.resource import NamespacedName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from flexinfer.cache.informer import Informer
    from flexinfer.cache.informers import Informers
    from flexinfer.client.protocol import Patch
    from flexinfer.meta.envelope import StoredObject, Tree
    from flexinfer.meta.object import Object
    from flexinfer.meta.resource import Resource
    from flexinfer.meta.selector import Selector

    T = TypeVar("T", bound=Object)

__all__ = ["CacheClient"]

# Those whose answer is the object itself; `scale` and the like answer with another kind.
_WHOLE_OBJECT = frozenset({"", "status"})


class WriteClient(Client, Protocol):
    """Be a client that asks the API server, and says what a cache would not."""

    async def delete_object(
        self,
        resource: Resource,
        key: NamespacedName,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> StoredObject | None:
        """Delete, and return the terminating object, or None when it is gone."""

    async def live_tree(self, resource: Resource, key: NamespacedName) -> Tree | None:
        """Return the whole object with its `managedFields`, or None when there is none."""


class CacheClient:
    """Read what the informers hold, and show every own write at once.

    Reads do no I/O. They raise NotWatchedError for a kind without an informer, and
    CacheNotSyncedError while its first list is not there. Models are frozen and shared.
    """

    def __init__(self, informers: Informers, direct: WriteClient) -> None:
        self._informers = informers
        self._direct = direct

    async def get(self, kind: type[T], key: NamespacedName) -> T | None:
        """Return the object, or None when there is none.

        Raises DecodeError, naming the field, when it does not fit its model.
        """
        informer = self._reader_of(kind.resource, key)
        stored = informer.get(key)
        return None if stored is None else informer.decode(kind, stored)

    async def read(self, resource: Resource, key: NamespacedName) -> StoredObject | None:
        """Return the object undecoded, or None when there is none. Never change it."""
        return self._reader_of(resource, key).get(key)

    async def live_read(self, resource: Resource, key: NamespacedName) -> StoredObject | None:
        """Ask the API server, past the cache; later reads are not older than the answer."""
        stored = await self._direct.read(resource, key)
        if stored is not None:
            self._wrote(resource, stored)
        return stored

    async def live_tree(self, resource: Resource, key: NamespacedName) -> Tree | None:
        """Ask the API server for the whole object, with the `managedFields` that no cache has.

        Later reads are not older than the answer.
        """
        tree = await self._direct.live_tree(resource, key)
        if tree is not None:
            self._wrote(resource, stored_from(tree))
        return tree

    async def list(
        self, kind: type[T], *, namespace: str = "", labels: Selector | None = None
    ) -> Sequence[T]:
        """Return the objects of a namespace (empty: of all) in unspecified order.

        Raises DecodeError for the first object that does not fit its model.
        """
        informer = self._reader(kind.resource, namespace, labels)
        found = informer.list(namespace=namespace, labels=labels)
        return [informer.decode(kind, item) for item in found]

    async def by_index(
        self, kind: type[T], index: str, value: str, *, namespace: str = ""
    ) -> Sequence[T]:
        """Return the objects that an index of the kind's informer has under *value*.

        *namespace* only chooses the informer. Raises as `list` does, and ConfigurationError when
        there is no such index.
        """
        informer = self._reader(kind.resource, namespace)
        return [informer.decode(kind, item) for item in informer.by_index(index, value)]

    async def create(self, resource: Resource, intent: Tree, *, field_manager: str) -> StoredObject:
        """Create an object; raise AlreadyExistsError when the name is taken."""
        sent = self._direct.create(resource, intent, field_manager=field_manager)
        return await self._write(resource, intent.get("metadata", {}), sent)

    async def apply(
        self,
        resource: Resource,
        intent: Tree,
        *,
        field_manager: str,
        force: bool = True,
        subresource: str = "",
    ) -> StoredObject:
        """Send a server-side apply and return the server's answer."""
        sent = self._direct.apply(
            resource, intent, field_manager=field_manager, force=force, subresource=subresource
        )
        return await self._write(resource, intent.get("metadata", {}), sent, subresource)

    async def patch(
        self,
        resource: Resource,
        key: NamespacedName,
        patch: Tree | Sequence[Tree],
        *,
        content_type: Patch,
        field_manager: str,
        subresource: str = "",
    ) -> StoredObject:
        """Send a JSON patch or a merge patch and return the server's answer."""
        sent = self._direct.patch(
            resource,
            key,
            patch,
            content_type=content_type,
            field_manager=field_manager,
            subresource=subresource,
        )
        return await self._write(resource, key._asdict(), sent, subresource)

    async def delete(
        self,
        resource: Resource,
        key: NamespacedName,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> None:
        """Delete an object; with *uid* only if it is still that one (ConflictError).

        With *resource_version* only if nobody changed it since (ConflictError too).
        From then on it reads as gone, or as terminating if that is what the server says.
        """
        holders = self._holders(resource, key.namespace)
        shown = [(informer, informer.get(key)) for informer in holders]
        left = await self._direct.delete_object(
            resource, key, uid=uid, resource_version=resource_version, propagation=propagation
        )
        if left is not None:
            self._wrote(resource, left)
            return
        for informer, item in shown:
            # Without a precondition only what was shown before is gone for certain: another
            # object may have taken the name since.
            gone = uid or (item.meta.uid if item is not None else "")
            if gone:
                informer.deleted(key, gone)

    def _reader(
        self, resource: Resource, namespace: str, labels: Selector | None = None
    ) -> Informer:
        informer = self._informers.reader(resource, namespace, labels)
        if not informer.has_synced:
            raise CacheNotSyncedError(f"{informer.selection}: {informer.health()}")
        return informer

    def _reader_of(self, resource: Resource, key: NamespacedName) -> Informer:
        if resource.namespaced != bool(key.namespace):
            need = "needs a namespace" if resource.namespaced else "is cluster-scoped, without one"
            raise ConfigurationError(f"{resource.kind} {need}: the key is {str(key)!r}")
        return self._reader(resource, key.namespace)

    async def _write(
        self,
        resource: Resource,
        metadata: Mapping[str, str],
        sent: Awaitable[StoredObject],
        subresource: str = "",
    ) -> StoredObject:
        """Send a write, tell of its beginning and end whoever asked, and show its answer."""
        under_way = self._informers.under_way(resource)
        if not under_way.is_asked:
            return self._wrote(resource, await sent, subresource)
        key = NamespacedName(metadata.get("namespace", ""), metadata.get("name", ""))
        write = under_way.begin(key)
        answer = None
        try:
            answer = await sent
        finally:
            if write is not None:
                under_way.end(key, write, answer)
        return self._wrote(resource, answer, subresource)

    def _holders(self, resource: Resource, namespace: str) -> Sequence[Informer]:
        informers = self._informers.of(resource)
        return [i for i in informers if i.selection.covers(namespace)]

    def _wrote(
        self, resource: Resource, stored: StoredObject, subresource: str = ""
    ) -> StoredObject:
        if subresource in _WHOLE_OBJECT:
            for informer in self._holders(resource, stored.meta.namespace):
                informer.wrote(stored)
        return stored
