# SPDX-License-Identifier: Apache-2.0
"""What a member of a shared GPU group that waits for the GPUs is told: why, and until when. Pure.

| why not now | until when |
|---|---|
| it could not start in its turn | its second chance |
| the leader has `forcePromotion` | that is removed |
| the leader has a higher priority | it idles, which one that runs all the time never does |
| the leader has just taken the GPUs | the cooldown is over |
| the leader is in use, or starting | nobody asked for it for a while, or it takes too long |
| nothing but that nobody asks for the member | somebody does |

The first line that fits is said, and the moment from which the member would lead if it was asked
for. Requests to the leader only put that off, so what is said stays true with each of them, and
the status need not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controllers.model.activity import wake_hint
from controllers.model.group import turn_at
from controllers.model.member import DEMAND, SECOND_CHANCE, after

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from controllers.model.group import Election
    from controllers.model.member import Member
    from flexinfer.meta.resource import NamespacedName

_MINUTES = DEMAND.total_seconds() / 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Be what a member is told, and when time alone makes something else of it; None for never."""

    text: str = ""
    until: datetime | None = None


def look_ahead(
    election: Election, members: Mapping[str, Member], key: NamespacedName, now: datetime
) -> Outlook:
    """Say why *key* does not lead the *members*, who are those that the election was among."""
    name = key.name
    leader, member = members[election.leader], members[name].at(now)
    if member.is_out and member.failed_at is not None:
        return _second_chance(member, member.failed_at)
    at = turn_at(members.values(), name, now)
    is_asked = member.was_asked_within(DEMAND, now)
    if at is not None and at <= now and not is_asked:
        text = f"nobody asked for {name} in the last {_MINUTES:g} minutes; {wake_hint(key)}"
        return Outlook(text=text)
    why = _why(leader, member, election)
    if at is None or at <= now:
        return Outlook(text=why)
    return Outlook(text=f"{why}; the turn of {name} comes at {_said(at)} at the earliest", until=at)


def _second_chance(member: Member, failed: datetime) -> Outlook:
    until = after(failed, SECOND_CHANCE)
    text = (
        f"{member.name} could not start at {_said(failed)}, and the others go first until "
        f"{_said(until)} or until its spec changes; see its events"
    )
    return Outlook(text=text, until=until)


def _why(leader: Member, member: Member, election: Election) -> str:
    """Say what the leader has that the member has not; it holds as long as nobody changes."""
    if leader.is_forced and leader.is_cached and not member.is_forced:
        return f"{leader.name} has spec.gpu.forcePromotion, and leads until that is removed"
    if leader.priority > member.priority:
        end = "runs all the time" if leader.is_warm else "leads until it idles"
        priorities = f"{leader.priority} to {member.priority}"
        return f"{leader.name} has a higher priority, {priorities}, and {end}"
    return election.because


def _said(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
