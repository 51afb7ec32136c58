# SPDX-License-Identifier: Apache-2.0
"""The thread of an election: its loop, its connection, and term after term.

Work that does not end in time after a loss would go on beside the next leader, and only the end of
the process stops what the main loop does not: then the thread ends it.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Protocol

import anyio

from flexinfer import log
from flexinfer.leaderelection.elector import Elector
from flexinfer.leaderelection.term import Term, call_soon

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from prometheus_client import Gauge

    from flexinfer.client.transport import Transport
    from flexinfer.leaderelection.lease import FencingToken
    from flexinfer.leaderelection.options import LeaderElectionOptions

    Connect = Callable[[], AbstractAsyncContextManager[Transport]]

__all__ = ["Campaign", "Listener"]

_log = log.get_logger(__name__)

_EXIT_CODE = 1


class Listener(Protocol):
    """Be told of an election, in the main loop."""

    def came_up(self) -> None:
        """Take note that the thread takes orders."""

    def elected(self, term: Term) -> None:
        """Take note that a term begins."""

    def ended(self, failure: BaseException | None) -> None:
        """Take note that the thread has ended, and why when that was no order."""


class Campaign:
    """Be the thread; orders take effect only after `came_up`.

    *status* is 1 while leading. `elector` is None before `stand`.
    """

    def __init__(
        self,
        options: LeaderElectionOptions,
        connect: Connect,
        listener: Listener,
        *,
        status: Gauge,
        end_process: Callable[[int], object],
    ) -> None:
        self._options = options
        self._connect = connect
        self._listener = listener
        self._status = status
        self._end_process = end_process
        self._main_loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="leader-election", daemon=True)
        self._orders: _Orders | None = None
        self.elector: Elector | None = None

    def start(self) -> None:
        """Start the thread; it stands by only once it is told to."""
        self._thread.start()

    def stand(self) -> None:
        """Campaign for the Lease from now on."""
        self._order(_Orders.stand)

    def resign(self) -> None:
        """Begin no further term; the present one goes on."""
        self._order(_Orders.resign)

    def close(self) -> None:
        """Release the Lease and end; what it protects must have ended."""
        self._order(_Orders.close)

    def join(self, seconds: float) -> None:
        """Wait for the thread itself, once it has told its end."""
        self._thread.join(seconds)

    def _order(self, order: Callable[[_Orders], None]) -> None:
        if self._orders is not None:
            call_soon(self._orders.loop, order, self._orders)

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            anyio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - whatever ends this thread, the main loop has to know
            failure = error
        call_soon(self._main_loop, self._listener.ended, failure)

    async def _main(self) -> None:
        orders = self._orders = _Orders()
        call_soon(self._main_loop, self._listener.came_up)
        async with self._connect() as transport:
            with orders.until_closed:
                await orders.stands.wait()
                self.elector = Elector(transport, self._options)
                await self._serve_terms(self.elector, orders)
            if self.elector is not None:
                await self.elector.release()

    async def _serve_terms(self, elector: Elector, orders: _Orders) -> None:
        while (token := await _stand_by(elector, orders)) is not None:
            term = Term(token)
            self._status.set(1)
            call_soon(self._main_loop, self._listener.elected, term)
            try:
                reason = await elector.hold()
            except Exception as error:
                await self._surrender(term, repr(error))
                raise
            finally:
                self._status.set(0)
            await self._surrender(term, reason)

    async def _surrender(self, term: Term, reason: str) -> None:
        """Cancel the work of a term that was lost, and wait for its end as long as is safe."""
        grace = self._options.stop_grace
        _log.error("lease lost", lease=self._options.name, reason=reason, grace=grace)
        if not term.lose():
            return
        with anyio.move_on_after(grace):
            await term.over()
            return
        _log.critical("work went on after the lease was lost: ending the process")
        self._end_process(_EXIT_CODE)
        await term.over()


async def _stand_by(elector: Elector, orders: _Orders) -> FencingToken | None:
    token = None
    if not orders.has_resigned:
        with anyio.CancelScope() as orders.candidacy:
            token = await elector.acquire()
    return token


class _Orders:
    """Be what the main loop wants of the thread; changed and read in the thread only."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.stands = anyio.Event()
        self.until_closed = anyio.CancelScope()
        self.candidacy = anyio.CancelScope()
        self.has_resigned = False

    def stand(self) -> None:
        self.stands.set()

    def resign(self) -> None:
        self.has_resigned = True
        self.candidacy.cancel()

    def close(self) -> None:
        self.until_closed.cancel()
