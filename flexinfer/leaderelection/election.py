# SPDX-License-Identifier: Apache-2.0
"""What a candidate does next, decided from what it saw and what was answered.

Ask `next_step`, do it, report how it went; the machine itself does nothing and waits for nothing.

| standing by | leading |
|---|---|
| `Read` unless the record is known | `Write` every retry period, without a read before it |
| `Follow` while another's record may still hold | `Read` after a conflict |
| `Write` a claim | `Lost` when the deadline is over, or the record is no longer ours |

A record holds for as long as it names, from when its last change was observed here. A Lease that
vanishes was not released, so it is waited out as well: its leader notices only at its next
renewal. A claim is the process's own when this object made it,
not when it bears the same name, and each one raises `leaseTransitions`: a term is never
continued once it was lost.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from flexinfer.leaderelection.lease import Claim

if TYPE_CHECKING:
    from collections.abc import Callable

    from flexinfer.leaderelection.lease import FencingToken, Lease
    from flexinfer.leaderelection.options import LeaderElectionOptions
    from flexinfer.meta.envelope import Tree

__all__ = ["Done", "Election", "Follow", "Lost", "Pause", "Read", "Step", "Write"]

# client-go's JitterFactor: standbys wait one to 2.2 retry periods.
_JITTER = 1.2
# Lost races in a row after which a writer waits: somebody else keeps changing the object.
_QUICK_RACES = 3
# Claims whose answer was lost and that may still turn up, held by nobody but us.
_CLAIMS_REMEMBERED = 8
# What client-go writes when it gives up a Lease; the API refuses 0.
_RELEASED_DURATION = 1
_INSTANT = 0.001


@dataclass(frozen=True, slots=True)
class Read:
    """Get the Lease; `at` is when that was decided."""

    at: float


@dataclass(frozen=True, slots=True)
class Write:
    """Put *spec* into the Lease `base`, or create one when that is None.

    `at` is not later than the request was sent. `claim` is what the record says then, None when
    it is given up.
    """

    at: float
    base: Lease | None
    spec: Tree
    claim: Claim | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing until then."""

    until: float


@dataclass(frozen=True, slots=True)
class Follow:
    """Look out for changes of a record that holds until then; None: of one that vanished."""

    lease: Lease | None
    until: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Stop what needed leadership; this object stands by already."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """Have nothing more to do: the Lease is not ours, as far as we can tell or change."""


Step = Read | Write | Pause | Follow | Lost | Done


class Election:
    """Be one candidate; `clock` is monotonic, `wall` only stamps what is written."""

    def __init__(
        self,
        options: LeaderElectionOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._options = options
        self._clock, self._wall, self._jitter = clock, wall, jitter
        self._lease: Lease | None = None
        self._is_fresh = False
        self._free_at = self._next_try = clock()
        self._deadline = 0.0
        self._leads: Claim | None = None
        self._claims: deque[Claim] = deque(maxlen=_CLAIMS_REMEMBERED)
        self._races = 0
        # Whether the record may be ours although we do not lead.
        self._in_doubt = False
        self._gives_up_at: float | None = None

    @property
    def token(self) -> FencingToken | None:
        """Return the number of the present term, None while standing by."""
        return self._lease.token if self._lease is not None and self._leads is not None else None

    def time_left(self) -> float:
        """Return how long a request may take at most, in seconds above 0."""
        until = self._gives_up_at
        if until is None and self._leads is not None:
            until = self._deadline
        left = self._options.attempt_timeout
        return left if until is None else min(left, max(until - self._clock(), _INSTANT))

    def held_until(self) -> float | None:
        """Return until when nobody may claim the Lease; None when it is free or unknown."""
        is_held = self._is_fresh and self._leads is None and self._clock() < self._free_at
        return self._free_at if is_held else None

    def next_step(self) -> Step:
        """Decide what to do now."""
        now = self._clock()
        if self._gives_up_at is not None:
            return self._next_of_release(now, self._gives_up_at)
        if self._leads is None:
            return self._next_of_standby(now)
        return self._next_of_leader(now, self._leads)

    def resign(self) -> None:
        """Give up the Lease, if it is ours, by the next steps and within the renew deadline."""
        self._gives_up_at = self._next_try = self._clock()
        self._gives_up_at += self._options.renew_deadline

    def observe(self, lease: Lease | None) -> None:
        """Take note of the Lease, None when there is none."""
        now = self._clock()
        before, self._lease = self._lease, lease
        self._is_fresh = True
        if lease is None or lease.claim not in self._claims:
            self._in_doubt = False
        if _is_same(before, lease):
            return
        # What a vanished Lease is still owed does not end when a new one appears.
        owed = self._free_at if before is None else now + self._owed(before, lease)
        self._free_at = max(now + self._holds(lease), owed)

    def forget(self) -> None:
        """Read the Lease again before the next decision: it may have changed unseen."""
        self._is_fresh = False

    def wrote(self, write: Write, lease: Lease) -> None:
        """Take note that a write succeeded, and of its answer."""
        self._lease, self._is_fresh, self._in_doubt = lease, True, False
        self._races = 0
        self._leads = write.claim
        self._next_try = write.at + self._options.retry_period
        self._deadline = write.at + self._options.renew_deadline
        if write.claim is None:
            self._claims.clear()

    def lost_race(self, write: Write) -> None:
        """Take note that somebody else was first: the write was not done."""
        self._is_fresh = False
        self._races += 1
        if self._races >= _QUICK_RACES:
            self._next_try = write.at + self._retry_period()

    def failed(self, step: Read | Write, *, retry_after: float = 0.0) -> None:
        """Take note that nothing is known of how a request went.

        *retry_after* is what the server asked for, in seconds; a leader heeds it for half of the
        time it has left at most, a standby for the length of a lease.
        """
        now = self._clock()
        if self._leads is None:
            self._is_fresh = False
            longest = self._options.lease_duration
        else:
            longest = max((self._deadline - now) / 2, 0.0)
        asked = now + min(retry_after, longest)
        self._next_try = max(step.at + self._retry_period(), asked)

    def poll_period(self) -> float:
        """Return how long a standby waits between two reads, each time another time."""
        return self._options.retry_period * (1 + _JITTER * self._jitter())

    def _next_of_standby(self, now: float) -> Step:
        if now < self._next_try:
            return Pause(self._next_try)
        if not self._is_fresh:
            return Read(now)
        if (until := self.held_until()) is not None:
            self._races = 0
            return Follow(self._lease, until)
        return self._claim(now)

    def _next_of_leader(self, now: float, claim: Claim) -> Step:
        if now >= self._deadline:
            self._in_doubt = True
            return self._lose(f"it was not renewed for {self._options.renew_deadline:g} s")
        lease = self._lease
        if self._is_fresh and (lease is None or lease.claim != claim):
            if lease is None:
                return self._lose("it was deleted")
            return self._lose(f"it is held by {lease.claim.holder or 'nobody'}")
        if now < self._next_try:
            return Pause(min(self._next_try, self._deadline))
        return self._write(now, claim) if self._is_fresh else Read(now)

    def _next_of_release(self, now: float, until: float) -> Step:
        if self._leads is None and not self._in_doubt:
            return Done()
        if now >= until:
            return Done()
        if now < self._next_try:
            return Pause(min(self._next_try, until))
        if not self._is_fresh:
            return Read(now)
        lease = self._lease
        if lease is None or lease.claim not in self._claims:
            self._leads = None
            return Done()
        given_up = Claim("", None, lease.claim.transitions)
        spec = given_up.spec(duration=_RELEASED_DURATION, renewed=self._wall())
        return Write(now, lease, spec, None)

    def _claim(self, now: float) -> Write:
        transitions = 0 if self._lease is None else self._lease.claim.transitions + 1
        claim = Claim(self._options.identity, self._wall().astimezone(UTC), transitions)
        self._claims.append(claim)
        self._in_doubt = True
        return self._write(now, claim)

    def _write(self, now: float, claim: Claim) -> Write:
        spec = claim.spec(duration=self._options.lease_duration, renewed=self._wall())
        return Write(now, self._lease, spec, claim)

    def _lose(self, reason: str) -> Lost:
        self._leads = None
        self._is_fresh = False
        return Lost(reason)

    def _holds(self, lease: Lease | None) -> float:
        """Return for how long a record keeps others away; 0 when it is ours or nobody's."""
        if lease is None or not lease.claim.holder or lease.claim in self._claims:
            return 0.0
        return lease.duration or self._options.lease_duration

    def _owed(self, before: Lease, after: Lease | None) -> float:
        """Return how long to wait because the Lease we knew has vanished; else 0.

        Whoever held it last, maybe unseen by us, notices only at its next renewal. If that was us
        there is nobody to wait for.
        """
        if self._leads is not None or (after is not None and after.uid == before.uid):
            return 0.0
        return max(before.duration, self._options.lease_duration)

    def _retry_period(self) -> float:
        leads = self._leads is not None or self._gives_up_at is not None
        return self._options.retry_period if leads else self.poll_period()


def _is_same(before: Lease | None, after: Lease | None) -> bool:
    if before is None or after is None:
        return before is after
    return before.says_the_same(after)
