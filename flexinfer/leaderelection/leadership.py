# SPDX-License-Identifier: Apache-2.0
"""Leadership in the main event loop: work that runs while a thread of its own holds the Lease.

The thread has its own event loop and its own connection, so neither a reconciler that blocks nor
a hundred watches can lose the Lease. Both sides speak by `call_soon_threadsafe` alone, and share
nothing but a `Term`:

| the thread | the main loop |
|---|---|
| acquires: a term | begins the work, unless the term is lost by then |
| renews | works |
| loses; waits until the work has ended | cancels the work |
| stands by again | waits for the next term |
| releases when told to | leaves, after the work has ended |
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

import anyio
from prometheus_client import Gauge

from flexinfer import log
from flexinfer.errors import ConfigurationError, FlexInferError, NotLeadingError
from flexinfer.leaderelection.campaign import Campaign
from flexinfer.metrics import REGISTRY, once_per_registry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry

    from flexinfer.leaderelection.campaign import Connect
    from flexinfer.leaderelection.lease import FencingToken
    from flexinfer.leaderelection.options import LeaderElectionOptions
    from flexinfer.leaderelection.term import Term

__all__ = ["Leadership"]

_log = log.get_logger(__name__)

# Seconds for a thread to start, or to end when it has nothing left to do; it takes milliseconds.
_THREAD_SECONDS = 5.0


class Leadership:
    """Elect a leader by a Lease, and run what needs leadership; use as a context manager.

    *connect* is called in the thread and gives a transport that nobody else uses. Leaving the
    context releases the Lease, so whatever it protects has to have ended by then. `token` is the
    number of the present term, None without one. *end_process* is called with an exit code when
    work goes on for `options.stop_grace` seconds after a loss.
    """

    def __init__(
        self,
        options: LeaderElectionOptions,
        connect: Connect,
        *,
        end_process: Callable[[int], object] = os._exit,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.options = options
        self.token: FencingToken | None = None
        self._term: Term | None = None
        self._connect = connect
        self._end_process = end_process
        self._status = _gauge(registry).labels(options.name)
        self._campaign: Campaign | None = None
        self._inbox = _Inbox()
        self._has_resigned = False

    async def __aenter__(self) -> Self:
        """Start the thread; it does nothing before `lead`."""
        if self._campaign is not None:
            raise ConfigurationError("a leadership is entered once: make another one")
        self._campaign = Campaign(
            self.options,
            self._connect,
            self._inbox,
            status=self._status,
            end_process=self._end_process,
        )
        with anyio.fail_after(_THREAD_SECONDS):
            self._campaign.start()
            await self._inbox.wait_until(lambda: self._inbox.is_up or self._inbox.has_ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Release the Lease if it is held, also when cancelled.

        Takes half the renew deadline and the renew deadline at most: a request that is on its
        way is waited for before the release begins.
        """
        self.resign()
        limit = self.options.attempt_timeout + self.options.renew_deadline + _THREAD_SECONDS
        with anyio.CancelScope(shield=True), anyio.move_on_after(limit):
            self._entered().close()
            await self._inbox.wait_until(lambda: self._inbox.has_ended)
            self._entered().join(_THREAD_SECONDS)
            return
        _log.error("the election did not end in time", lease=self.options.name, seconds=limit)

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work* whenever we are elected; return when it ends by itself, or we resigned.

        Cancels *work* when the Lease is lost, waits for its end and stands by again. Raises what
        *work* raises, and the error of a thread that failed.
        """
        self._entered().stand()
        while (term := await self._next_term()) is not None:
            if await self._serve(term, work):
                return

    def resign(self) -> None:
        """Stand by no longer; a Lease that is held stays held until the context is left."""
        self._has_resigned = True
        if self._campaign is not None:
            self._campaign.resign()
        self._inbox.announce()

    def check_ready(self) -> str | None:
        """Say for how long the Lease was neither renewed nor seen to be held by another."""
        elector = None if self._campaign is None else self._campaign.elector
        return None if elector is None or self._has_resigned else elector.health()

    def check_alive(self) -> str | None:
        """Say that we lead by a Lease that has run out, which only a restart can end."""
        return None if self.token is None else self.check_ready()

    def check_write(self) -> None:
        """Raise NotLeadingError for a write of a term that may be over.

        A process that was stopped, or a machine that slept, goes on in the middle of its work: it
        must not write before it knows whether it still leads. What is done without leading, on a
        standby, is not held back.
        """
        term = self._term
        elector = None if self._campaign is None else self._campaign.elector
        if term is None or elector is None:
            return
        limit = self.options.renew_deadline
        if term.is_lost or elector.silence >= limit:
            raise NotLeadingError(
                f"nothing was sent: Lease {self.options.namespace}/{self.options.name} was not"
                f" renewed for {elector.silence:.1f} s, and another may lead after {limit:g} s"
            )

    def _entered(self) -> Campaign:
        if self._campaign is None:
            raise ConfigurationError("the leadership has no thread yet: use it as a context")
        return self._campaign

    async def _next_term(self) -> Term | None:
        inbox = self._inbox
        await inbox.wait_until(
            lambda: self._has_resigned or inbox.term is not None or inbox.has_ended
        )
        if self._has_resigned:
            return None
        if inbox.has_ended:
            raise inbox.error()
        return inbox.take_term()

    async def _serve(self, term: Term, work: Callable[[], Awaitable[None]]) -> bool:
        """Work for one term; return whether the work ended by itself."""
        with anyio.CancelScope() as scope:
            if not term.begin(scope):
                return False
            self.token, self._term = term.token, term
            try:
                await work()
            finally:
                self.token = self._term = None
                term.end()
        return not term.is_lost


class _Inbox:
    """Hold what the thread has told, for whoever waits for it in the main loop."""

    def __init__(self) -> None:
        self.is_up = False
        self.has_ended = False
        self.term: Term | None = None
        self._failure: BaseException | None = None
        self._news: anyio.Event | None = None

    def came_up(self) -> None:
        self.is_up = True
        self.announce()

    def elected(self, term: Term) -> None:
        self.term = term
        self.announce()

    def ended(self, failure: BaseException | None) -> None:
        self.has_ended = True
        self._failure = failure
        self.announce()

    def announce(self) -> None:
        """Wake whoever waits; there may be several."""
        if self._news is not None:
            self._news.set()
            self._news = None

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._news is None:
                self._news = anyio.Event()
            await self._news.wait()

    def take_term(self) -> Term | None:
        term, self.term = self.term, None
        return term

    def error(self) -> Exception:
        """Return why the thread ended although nobody told it to."""
        if isinstance(self._failure, FlexInferError):
            return self._failure
        error = FlexInferError(f"the leader election ended: {self._failure!r}")
        error.__cause__ = self._failure
        return error


@once_per_registry
def _gauge(registry: CollectorRegistry) -> Gauge:
    return Gauge(
        "leader_election_master_status",
        "1 while this process leads, 0 while it stands by",
        ["name"],
        registry=registry,
    )
