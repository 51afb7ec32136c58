# SPDX-License-Identifier: Apache-2.0
"""One term of leadership: all that the main loop and the election's thread share."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec

    from flexinfer.leaderelection.lease import FencingToken

    P = ParamSpec("P")

__all__ = ["Term", "call_soon"]


def call_soon(
    loop: asyncio.AbstractEventLoop,
    function: Callable[P, object],
    *args: P.args,
    **_: P.kwargs,
) -> None:
    """Have the loop of another thread call *function*, unless that loop has ended."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


class Term:
    """Be made in the election's thread when a Lease was acquired.

    The lock decides between a loss and a beginning that happen at the same time: a term that was
    lost before the main loop came to it never begins, and nobody has to wait for its end.
    """

    def __init__(self, token: FencingToken) -> None:
        self.token = token
        self._lock = threading.Lock()
        self._is_lost = False
        self._work: tuple[asyncio.AbstractEventLoop, anyio.CancelScope] | None = None
        self._has_ended = False
        self._over = anyio.Event()
        self._election_loop = asyncio.get_running_loop()

    @property
    def is_lost(self) -> bool:
        """Say whether the Lease was lost."""
        return self._is_lost

    def begin(self, scope: anyio.CancelScope) -> bool:
        """Let the work inside *scope* begin unless the term is lost; call it in the main loop."""
        with self._lock:
            if not self._is_lost:
                self._work = asyncio.get_running_loop(), scope
            return not self._is_lost

    def end(self) -> None:
        """Say that the work has ended; call it in the main loop."""
        self._has_ended = True
        call_soon(self._election_loop, self._over.set)

    def lose(self) -> bool:
        """Cancel the work and say whether there is any; call it in the election's thread."""
        with self._lock:
            self._is_lost = True
            work = self._work
        if work is None:
            return False
        loop, scope = work
        call_soon(loop, self._cancel, scope)
        return True

    async def over(self) -> None:
        """Wait until the work has ended, in the election's thread."""
        await self._over.wait()

    def _cancel(self, scope: anyio.CancelScope) -> None:
        if not self._has_ended:
            scope.cancel()
