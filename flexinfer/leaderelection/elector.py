# SPDX-License-Identifier: Apache-2.0
"""Carries out an election against an API server, in one task.

A standby watches the Lease, so that one that is released is taken over in milliseconds. The watch
is a help and nothing hangs on it: while it is silent, refused or cut short the Lease is read now
and then, and a claim that rests on something outdated is refused by its resourceVersion.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from flexinfer import log
from flexinfer.client.lines import OversizedLine
from flexinfer.client.retry import NEVER
from flexinfer.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    DeadlineError,
    FlexInferError,
    NotFoundError,
)
from flexinfer.leaderelection.election import Done, Election, Follow, Lost, Pause, Read, Write
from flexinfer.leaderelection.lease import LEASES, Lease
from flexinfer.meta.envelope import decode_object, encode
from flexinfer.meta.resource import NamespacedName
from flexinfer.meta.wire import decode_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from flexinfer.client.lines import Line
    from flexinfer.client.transport import Transport
    from flexinfer.leaderelection.lease import FencingToken
    from flexinfer.leaderelection.options import LeaderElectionOptions
    from flexinfer.meta.envelope import Tree

__all__ = ["Elector"]

_log = log.get_logger(__name__)

_FIELD_MANAGER = "flexinfer-leader-election"
# Seconds; like an informer's, the server then ends the watch and another one is opened.
_WATCH_SECONDS = 300
# The reason of a Status for an object that is not there, in contrast to a path that is not served.
_NO_OBJECT = "NotFound"
# A lease may be late by a third before somebody should worry: time for two tries of a standby.
_TOLERANCE = 1 / 3


class Elector:
    """Be one candidate; `acquire`, `hold` and `release` are called in turn, one at a time.

    `well_at` is when the Lease was last renewed, or seen to be held, by `clock`.
    """

    def __init__(
        self,
        transport: Transport,
        options: LeaderElectionOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._transport = transport
        self._options = options
        self._clock = clock
        self._election = Election(options, clock=clock, wall=wall, jitter=jitter)
        self._collection = LEASES.collection_path(options.namespace)
        self._path = LEASES.object_path(NamespacedName(options.namespace, options.name))
        self._log = _log.bind(lease=f"{options.namespace}/{options.name}")
        self._watch_again_at = clock()
        self._trouble = ""
        self._holder: str | None = None
        self.well_at = clock()

    async def acquire(self) -> FencingToken:
        """Stand by until the Lease is ours, and return the number of the term."""
        while True:
            await checkpoint_if_cancelled()
            step = self._election.next_step()
            if isinstance(step, Follow):
                await self._follow(step)
            elif isinstance(step, Read | Write):
                await self._exchange(step)
            elif isinstance(step, Pause):
                await self._sleep_until(step.until)
            if (token := self._election.token) is not None:
                self._holder = None
                self._log.info("leading", identity=self._options.identity, term=token.transitions)
                return token

    async def hold(self) -> str:
        """Renew the Lease until it is lost, and return why."""
        while True:
            step = self._election.next_step()
            if isinstance(step, Lost):
                return f"{step.reason}: {self._trouble}" if self._trouble else step.reason
            if isinstance(step, Read | Write):
                await self._exchange(step)
            elif isinstance(step, Pause):
                await self._sleep_until(step.until)

    async def release(self) -> None:
        """Give up the Lease if it is ours; return within the renew deadline, done or not."""
        self._election.resign()
        released = False
        while not isinstance(step := self._election.next_step(), Done):
            if isinstance(step, Read | Write):
                released = await self._exchange(step) and isinstance(step, Write)
            elif isinstance(step, Pause):
                await self._sleep_until(step.until)
        if released:
            self._log.info("lease released")

    @property
    def silence(self) -> float:
        """Return for how many seconds the Lease was neither renewed nor seen to be held."""
        return self._clock() - self.well_at

    def health(self) -> str | None:
        """Say for how long the Lease was neither renewed nor seen to be held, and why."""
        silent = self.silence
        if silent <= self._options.lease_duration * (1 + _TOLERANCE):
            return None
        return (
            f"lease {self._options.namespace}/{self._options.name} was neither renewed nor seen"
            f" to be held for {silent:.0f} s: {self._trouble or 'no answer'}"
        )

    async def _exchange(self, step: Read | Write) -> bool:
        """Send one request and tell the election how it went; return whether it succeeded.

        A cancellation waits for the answer, as far as the request's own deadline allows: whoever
        leaves without it may leave a Lease behind that nobody knows to be his.
        """
        election = self._election
        try:
            with anyio.CancelScope(shield=True):
                lease = await self._send(step)
        except (ConflictError, AlreadyExistsError):
            return self._yield_to_another(step)
        except NotFoundError as error:
            if isinstance(step, Write) and step.base is not None:
                return self._yield_to_another(step)
            self._note_failure(step, error)
        except FlexInferError as error:
            self._note_failure(step, error)
        else:
            if isinstance(step, Read):
                election.observe(lease)
                if lease is not None and election.held_until() is not None:
                    self._note_well(step.at)
            elif lease is not None:
                election.wrote(step, lease)
                self._note_well(step.at)
            return True
        return False

    def _yield_to_another(self, step: Read | Write) -> bool:
        if isinstance(step, Write):
            self._election.lost_race(step)
        return False

    async def _send(self, step: Read | Write) -> Lease | None:
        if isinstance(step, Write):
            return await self._write(step)
        try:
            answer = await self._request("GET", self._path)
        except NotFoundError as error:
            if error.reason != _NO_OBJECT:
                raise
            return None
        return Lease.read(decode_object(answer))

    async def _write(self, step: Write) -> Lease:
        if step.base is not None:
            answer = await self._request("PUT", self._path, step.base.replaced(step.spec))
        else:
            tree = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"namespace": self._options.namespace, "name": self._options.name},
                "spec": step.spec,
            }
            answer = await self._request("POST", self._collection, tree)
        return Lease.read(decode_object(answer))

    async def _request(self, method: str, path: str, tree: Tree | None = None) -> bytes:
        return await self._transport.request(
            method,
            path,
            params={} if tree is None else {"fieldManager": _FIELD_MANAGER},
            body=None if tree is None else encode(tree),
            timeout=self._election.time_left(),
            retry=NEVER,
        )

    async def _follow(self, step: Follow) -> None:
        """Wait until there is something to do about a record that another holds."""
        holder = "" if step.lease is None else step.lease.claim.holder
        if holder != self._holder:
            self._holder = holder
            self._log.info("standing by", holder=holder)
        if step.lease is None or self._clock() < self._watch_again_at:
            await self._sleep_until(min(step.until, self._clock() + self._election.poll_period()))
            self._election.forget()
            return
        began = self._clock()
        try:
            heard = await self._watch(step.lease, step.until)
        except FlexInferError as error:
            heard = False
            self._log.info("cannot watch the lease", error=str(error))
        if not heard and self._clock() - began < self._options.retry_period:
            self._watch_again_at = self._clock() + self._options.lease_duration

    async def _watch(self, lease: Lease, until: float) -> bool:
        """Observe the Lease until there is something to do; return whether anything came."""
        params = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self._options.name}",
            "resourceVersion": lease.version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        heard = False
        async with self._transport.stream(
            self._collection,
            params=params,
            # A leader renews sooner: either it is dead or this connection is.
            idle_timeout=self._options.renew_deadline,
            open_timeout=self._options.attempt_timeout,
            retry=NEVER,
        ) as lines:
            while True:
                line = None
                try:
                    with anyio.move_on_after(max(until - self._clock(), 0.0)) as waiting:
                        line = await anext(lines, None)
                except DeadlineError:
                    heard = True  # a watch that was silent for long was not cut short
                if waiting.cancelled_caught:
                    return True
                if line is None or not self._take(line):
                    self._election.forget()
                    return heard
                heard = True
                held_until = self._election.held_until()
                if held_until is None:
                    return True
                until = held_until
                self._note_well(self._clock())

    def _take(self, line: Line) -> bool:
        """Observe what one line of the watch says; return whether the watch is still good."""
        if isinstance(line, OversizedLine):
            return False
        event = decode_event(line)
        if event.object is None:
            return False
        if event.type == "DELETED":
            self._election.observe(None)
        elif event.type != "BOOKMARK":
            self._election.observe(Lease.read(event.object))
        return True

    async def _sleep_until(self, until: float) -> None:
        await anyio.sleep(max(until - self._clock(), 0.0))

    def _note_well(self, at: float) -> None:
        self.well_at = max(self.well_at, at)
        if self._trouble:
            self._trouble = ""
            self._log.info("the lease can be reached again")

    def _note_failure(self, step: Read | Write, error: FlexInferError) -> None:
        retry_after = error.retry_after if isinstance(error, ApiError) else None
        self._election.failed(step, retry_after=retry_after or 0.0)
        if str(error) != self._trouble:
            self._trouble = str(error)
            verb = "get" if isinstance(step, Read) else "update"
            self._log.warning("cannot reach the lease", verb=verb, error=self._trouble)
