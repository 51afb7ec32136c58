# SPDX-License-Identifier: Apache-2.0
"""A bound on what goes on at once, first come first served, that costs nothing while it is free."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Slots"]


class Slots:
    """Hand out *number* slots; each that was had is given back by `give_back`.

    Unlike a semaphore it can be asked without a coroutine, as nearly always is enough.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Return how many wait."""
        return len(self._waiters)

    def take(self) -> bool:
        """Take a slot if one is free: then nobody waits."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Take a slot, if none is free the next that is given back after those who wait already."""
        if self.take():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():  # it was handed over in the same moment
                self.give_back()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def give_back(self) -> None:
        """Hand a slot to whoever has waited longest, or keep it free."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1
