# SPDX-License-Identifier: Apache-2.0
"""The Client that reconcilers see, whether it reads a cache or asks the API server."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flexinfer.meta.envelope import StoredObject, Tree
    from flexinfer.meta.object import Object
    from flexinfer.meta.resource import NamespacedName, Resource
    from flexinfer.meta.selector import Selector

    T = TypeVar("T", bound=Object)

__all__ = ["Client", "Patch", "Propagation"]


class Propagation(StrEnum):
    """Say what happens to what a deleted object owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class Patch(StrEnum):
    """Name the content types of PATCH other than apply."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"


class Client(Protocol):
    """Read and write objects of any kind.

    Every method raises the `ApiError` of the answer, `TransportError` when none came and
    `DeadlineError` when it came too late. Reads return what this process last wrote or newer.
    An object that is not there is None or a success; a kind that is not served is NotFoundError.
    """

    async def get(self, kind: type[T], key: NamespacedName) -> T | None:
        """Return the object, or None when there is none.

        Raises DecodeError, naming the field, when it does not fit its model.
        """

    async def read(self, resource: Resource, key: NamespacedName) -> StoredObject | None:
        """Return the object undecoded, or None when there is none."""

    async def list(
        self, kind: type[T], *, namespace: str = "", labels: Selector | None = None
    ) -> Sequence[T]:
        """Return the objects of a namespace (empty: of all) in unspecified order.

        Raises DecodeError for the first object that does not fit its model.
        """

    async def create(self, resource: Resource, intent: Tree, *, field_manager: str) -> StoredObject:
        """Create an object; raise AlreadyExistsError when the name is taken."""

    async def apply(
        self,
        resource: Resource,
        intent: Tree,
        *,
        field_manager: str,
        force: bool = True,
        subresource: str = "",
    ) -> StoredObject:
        """Send a server-side apply and return the server's answer.

        Name and namespace come from `intent["metadata"]`. With a `metadata.uid` in the intent
        a deleted object is not re-created: ConflictError is raised instead.
        """

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

        With *resource_version* only if nobody changed it since (ConflictError too). An
        object that is already gone is a success.
        """
