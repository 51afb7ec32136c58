# SPDX-License-Identifier: Apache-2.0
"""What apply needs of a client beside the protocol of all clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from flexinfer.client.protocol import Client

if TYPE_CHECKING:
    from flexinfer.meta.envelope import StoredObject, Tree
    from flexinfer.meta.resource import NamespacedName, Resource


class LiveClient(Client, Protocol):
    """Be a client that can also look past its cache."""

    async def live_read(self, resource: Resource, key: NamespacedName) -> StoredObject | None:
        """Return the object as the API server has it now, or None when there is none.

        Later reads of this client are not older.
        """

    async def live_tree(self, resource: Resource, key: NamespacedName) -> Tree | None:
        """Return the whole object as the API server has it, with its `managedFields`.

        Later reads of this client are not older.
        """
