# SPDX-License-Identifier: Apache-2.0
"""One reconcile at a time in each shared GPU group, so that no two members scale up at once."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class GroupLocks:
    """Hold a lock for each group that is at work; there are no more than workers."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, group: str) -> AsyncIterator[None]:
        """Keep other reconciles of *group* waiting; none without a group."""
        if not group:
            yield
            return
        lock = self._locks.get(group)
        if lock is None:
            lock = self._locks[group] = anyio.Lock()
        async with lock:
            yield
