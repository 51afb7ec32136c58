# SPDX-License-Identifier: Apache-2.0
"""Which Model of a shared GPU group has the GPUs. Pure: members and the time decide, nothing else.

Forced members that have their weights shut out all others; then the first rule that fits decides.

| rule | who leads |
|---|---|
| cooldown | the incumbent that runs or was asked for, for a while after the last swap |
| demand | who was asked for within 2 min and can serve: when nobody has the GPUs; instead of an \
idle holder of at most its priority; instead of a busy one of lower priority |
| busy | the holder that was asked for within 2 min, or is starting in time |
| warm | who is to run all the time and can serve: when nobody has the GPUs; instead of an idle \
holder of at most its priority, if that is warm itself only of a lower one |
| idle | the holder |
| recent | who was asked for within 5 min and can serve |
| stuck | the incumbent that failed, or does not come up |
| rank | the best that can serve, else the best |

The *incumbent* is who leads by its status; the *holder* is the incumbent if it is ready or
starts, else a member that is ready although it never was elected, as when Models that run join a
group. Of two, the better has the higher priority; then it is the incumbent, was asked for later,
or has the smaller name. A member nobody ever asked for counts as asked for longest ago, so that
this is a total order.

Nothing but force breaks a cooldown, not even a higher priority: so swaps that end pods are at
least a cooldown apart, until who lost the GPUs is ready again. Demand that goes on gets its turn
at the end of it. It does not protect who scaled to zero meanwhile or has lost its weights, since
there are no pods to end; nor who could not start, and so lets the others go first for a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model.member import DEMAND, RECENT, SECOND_CHANCE, after

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from controllers.model.member import Member

    _Choice = tuple[Member, str]

COOLDOWN = timedelta(minutes=5)
"""How long a swap is not followed by another, unless members set `swapCooldown`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """Be who leads, and why.

    `order` is the queue, the leader first; it does not depend on requests, so that those change
    no status. `until` is when another will lead if nothing but time changes, or None.
    `is_claimed` says that the leader knows: its status says Active. Without members the leader
    is empty.
    """

    leader: str = ""
    order: tuple[str, ...] = ()
    because: str = ""
    until: datetime | None = None
    is_claimed: bool = False


def elect(members: Iterable[Member], now: datetime) -> Election:
    """Choose the leader; the order of *members*, whose names differ, does not matter."""
    living = _living(members)
    if not living:
        return Election(because="the group has no members")
    leader, because = _choose(living, now)
    others = sorted(
        (m for m in living if m.name != leader.name), key=lambda m: (-m.priority, m.name)
    )
    changes = (at for at in _later(living, now) if _choose(living, at)[0].name != leader.name)
    return Election(
        leader=leader.name,
        order=(leader.name, *(member.name for member in others)),
        because=because,
        until=next(changes, None),
        is_claimed=leader.is_active,
    )


def turn_at(members: Iterable[Member], name: str, now: datetime) -> datetime | None:
    """Return from when on *name* would lead if it was asked for then, and nobody else any more.

    That is *now* for one that only has to be asked for, and None when time alone does not help.
    """
    living = _living(members)

    def leads(at: datetime) -> bool:
        asked = [replace(m, last_active=at) if m.name == name else m for m in living]
        return _choose(asked, at)[0].name == name

    return next((at for at in (now, *_later(living, now)) if leads(at)), None)


@dataclass(frozen=True, kw_only=True)
class _Field:
    """Be the members that may lead at a moment, and the end of the cooldown, if there is one."""

    members: Sequence[Member]
    incumbent: Member | None
    cooldown_end: datetime | None
    now: datetime

    @cached_property
    def holder(self) -> Member | None:
        incumbent = self.incumbent
        if incumbent and (incumbent.phase is Phase.READY or self._is_coming_up(incumbent)):
            return incumbent
        return self.best(m for m in self.members if m.phase is Phase.READY)

    def _is_coming_up(self, member: Member) -> bool:
        return self.is_starting(member) or (member.is_warm and _is_starting(member))

    def is_starting(self, member: Member) -> bool:
        in_time = member.was_asked_within(member.patience, self.now)
        return member.is_active and in_time and _is_starting(member)

    def is_asked(self, member: Member) -> bool:
        return member.was_asked_within(DEMAND, self.now)

    def best(self, members: Iterable[Member]) -> Member | None:
        def rank(member: Member) -> tuple[int, bool, float, str]:
            return (-member.priority, member is not self.incumbent, _age(member), member.name)

        return min(members, key=rank, default=None)


def _choose(living: Sequence[Member], now: datetime) -> _Choice:
    living = [member.at(now) for member in living]
    forced = [m for m in living if m.is_forced and m.is_cached]
    if len(forced) == 1:
        return forced[0], f"{forced[0].name} has spec.gpu.forcePromotion"
    members = forced or living
    incumbent = _incumbent(members)
    field = _Field(
        members=members,
        incumbent=incumbent,
        cooldown_end=_cooldown_end(living, incumbent),
        now=now,
    )
    return next(choice for rule in _RULES if (choice := rule(field)))


def _cooldown(field: _Field) -> _Choice | None:
    end, incumbent = field.cooldown_end, field.incumbent
    if end is None or field.now >= end or incumbent is None or not incumbent.is_cached:
        return None
    if not (incumbent.is_running or field.is_asked(incumbent)) or incumbent.is_out:
        return None
    return incumbent, f"after a swap {incumbent.name} keeps the GPUs for the cooldown"


def _demand(field: _Field) -> _Choice | None:
    holder = field.holder
    asked = field.best(
        m for m in field.members if m is not holder and m.can_serve and field.is_asked(m)
    )
    if asked is None:
        return None
    if holder is None:
        return asked, f"{asked.name} was asked for"
    if asked.priority > holder.priority:
        return asked, f"{asked.name} was asked for and has a higher priority than {holder.name}"
    if asked.priority == holder.priority and not _is_busy(field, holder):
        return asked, f"{asked.name} was asked for and {holder.name} is idle"
    return None


def _busy(field: _Field) -> _Choice | None:
    holder = field.holder
    if holder is None or not _is_busy(field, holder):
        return None
    return holder, f"{holder.name} is {'in use' if field.is_asked(holder) else 'starting'}"


def _warm(field: _Field) -> _Choice | None:
    holder = field.holder
    warm = field.best(m for m in field.members if m is not holder and m.is_warm and m.can_serve)
    if warm is None:
        return None
    because = f"{warm.name} is to run all the time"
    if holder is None:
        return warm, because
    lowest = holder.priority + 1 if holder.is_warm else holder.priority
    return (warm, f"{because} and {holder.name} is idle") if warm.priority >= lowest else None


def _idle(field: _Field) -> _Choice | None:
    holder = field.holder
    return (holder, f"{holder.name} has the GPUs and nobody else needs them") if holder else None


def _recent(field: _Field) -> _Choice | None:
    found = field.best(
        m for m in field.members if m.can_serve and m.was_asked_within(RECENT, field.now)
    )
    return (found, f"{found.name} was asked for lately") if found else None


def _stuck(field: _Field) -> _Choice | None:
    incumbent = field.incumbent
    if incumbent is None or not incumbent.is_running:
        return None
    return incumbent, f"it is the turn of {incumbent.name} and nobody else needs the GPUs"


def _rank(field: _Field) -> _Choice | None:
    found = field.best(m for m in field.members if m.can_serve) or field.best(field.members)
    return (found, f"nobody needs the GPUs and {found.name} ranks first") if found else None


_RULES = (_cooldown, _demand, _busy, _warm, _idle, _recent, _stuck, _rank)


def _is_busy(field: _Field, holder: Member) -> bool:
    return field.is_asked(holder) or field.is_starting(holder)


def _is_starting(member: Member) -> bool:
    """Tell whether it comes up; without its weights only pods that are there already do."""
    if member.is_out:
        return False
    if member.phase is Phase.PENDING:
        return member.is_cached
    return member.phase is Phase.LOADING


def _incumbent(members: Iterable[Member]) -> Member | None:
    """Return who leads by its status.

    There are two while one takes over from the other: whichever is chosen, the rules come to
    the same.
    """

    def rank(member: Member) -> tuple[bool, bool, int, float, str]:
        is_ready = member.phase is Phase.READY
        return (
            not is_ready,
            not member.is_running,
            -member.priority,
            _age(member),
            member.name,
        )

    return min((m for m in members if m.is_active), key=rank, default=None)


def _cooldown_end(living: Sequence[Member], incumbent: Member | None) -> datetime | None:
    """Add to the last swap what the incumbent asks for, else the longest that anybody does."""
    swaps = [m.preempted_at for m in living if m.preempted_at is not None]
    if not swaps or incumbent is None:
        return None
    wishes = [m.cooldown for m in living if m.cooldown is not None]
    own = incumbent.cooldown
    return after(max(swaps), own if own is not None else max(wishes, default=COOLDOWN))


def _living(members: Iterable[Member]) -> list[Member]:
    return sorted((m for m in members if not m.is_deleting), key=lambda m: m.name)


def _later(living: Sequence[Member], now: datetime) -> list[datetime]:
    return sorted(moment for moment in _moments(living) if moment > now)


def _moments(living: Sequence[Member]) -> Iterator[datetime]:
    """Yield when the answer may change by time alone."""
    for member in living:
        if member.last_active is not None:
            windows = (DEMAND, RECENT, member.patience)
            yield from (after(member.last_active, window) for window in windows)
        if member.is_active and (end := _cooldown_end(living, member)):
            yield end
        if member.failed_at is not None:
            yield after(member.failed_at, SECOND_CHANCE)


def _age(member: Member) -> float:
    """Return a number that is the smaller the later the member was asked for."""
    return -member.last_active.timestamp() if member.last_active else math.inf
