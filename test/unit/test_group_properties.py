# SPDX-License-Identifier: Apache-2.0
"""What holds for all shared groups, whatever their members are like."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model.group import elect
from controllers.model.member import DEMAND, GroupState, Member
from controllers.model.standing import stand
from hack.modelcases import NOW
from hack.modelcases.members import member

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTIVE, QUEUED, PREEMPTED = GroupState.ACTIVE, GroupState.QUEUED, GroupState.PREEMPTED
READY, LOADING, PENDING = Phase.READY, Phase.LOADING, Phase.PENDING
IDLE, FAILED = Phase.IDLE, Phase.FAILED

# On both sides of each window.
asked = st.sampled_from([None, None, -10, 1, 60, 119, 120, 200, 299, 300, 1000])
preempted = st.sampled_from([None, None, None, 1, 9, 100, 299, 300, 599])
groups = st.lists(
    st.builds(
        member,
        st.sampled_from("abcde"),
        st.sampled_from([10, 20]),
        asked,
        preempted=preempted,
        # Without any, one that failed and is asked for has the GPUs back as soon as it lost them.
        cooldown=st.sampled_from([None, None, 10, 600]),
        state=st.sampled_from(["", ACTIVE, QUEUED, PREEMPTED]),
        phase=st.sampled_from([None, *Phase]),
        is_warm=st.booleans(),
        is_cached=st.sampled_from([True, True, False]),
        is_forced=st.sampled_from([False, False, False, True]),
        is_deleting=st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    unique_by=lambda m: m.name,
)


@settings(deadline=None)
@given(groups.flatmap(lambda group: st.tuples(st.just(group), st.permutations(group))))
def test_exactly_one_leads_whatever_the_order_and_however_often(
    orders: tuple[list[Member], list[Member]],
) -> None:
    members, shuffled = orders
    election = elect(members, NOW)
    living = {m.name for m in members if not m.is_deleting}
    assert (election.leader in living) or not living
    assert set(election.order) == living
    assert len(election.order) == len(living)
    assert election.order[:1] == ((election.leader,) if living else ())
    assert elect(members, NOW) == elect(shuffled, NOW) == election


@settings(deadline=None)
@given(groups, st.integers(1, 2000))
def test_until_then_nothing_changes_by_time(members: list[Member], later: int) -> None:
    election = elect(members, NOW)
    moment = NOW + timedelta(seconds=later)
    if election.until is None or moment < election.until:
        assert elect(members, moment).leader == election.leader
    if election.until is not None:
        assert election.until > NOW
        assert elect(members, election.until).leader != election.leader


@settings(deadline=None)
@given(groups)
def test_no_gpu_is_taken_from_one_in_use_but_by_force_or_priority(members: list[Member]) -> None:
    election = elect(members, NOW)
    by_name = {m.name: m for m in members}
    active = [m for m in members if m.is_active and not m.is_deleting]
    if len(active) != 1 or active[0].phase is not READY:
        return
    incumbent, leader = active[0], by_name[election.leader]
    if incumbent.was_asked_within(DEMAND, NOW) and leader is not incumbent:
        assert leader.is_forced or leader.priority > incumbent.priority
        assert leader.is_forced or leader.can_serve


def settle(members: list[Member], which: Sequence[str], now: datetime) -> list[Member]:
    """Let some members write their status, one after the other."""
    for name in which:
        found = next(m for m in members if m.name == name)
        if found.is_deleting:
            continue
        standing = stand(elect(members, now), found, "g", now)
        is_wanted = found.is_warm or found.was_asked_within(DEMAND, now)
        phase = found.phase
        if standing.lost_to or (standing.is_preempted and phase is not FAILED):
            phase = Phase.PREEMPTED
        elif standing.is_active and not found.is_running:
            phase = PENDING if is_wanted else IDLE
        elif not standing.is_active and found.is_cached and phase is not FAILED:
            phase = IDLE
        status = standing.with_phase(phase or IDLE)
        new = replace(
            found, state=status.state or "", preempted_at=status.preempted_at, phase=phase
        )
        members = [new if m.name == name else m for m in members]
    return members


def is_settled(members: list[Member]) -> bool:
    """One is Active at most, and nothing is left to write that is a swap or forgets one.

    Models that ran when they joined a group lose their GPUs to it, and who is ready forgets.
    Who is ready and does not lead has pods that are about to end.
    """
    newcomers = any(not m.state and m.phase in {READY, LOADING} for m in members)
    forgetful = any(m.is_active and m.phase is READY and m.preempted_at for m in members)
    ending = any(m.state and not m.is_active and m.phase is READY for m in members)
    return (
        not forgetful
        and not ending
        and sum(m.is_active for m in members) <= (0 if newcomers else 1)
    )


@settings(deadline=None)
@given(
    groups.filter(is_settled),
    st.lists(st.integers(0, 4), max_size=6),
)
def test_whoever_writes_first_the_same_one_leads(members: list[Member], turns: list[int]) -> None:
    leader = elect(members, NOW).leader
    writes = [members[turn % len(members)].name for turn in turns]
    for end in range(len(writes) + 1):
        assert elect(settle(members, writes[:end], NOW), NOW).leader == leader
    whole = settle(members, [m.name for m in members] * 2, NOW)
    living = [m for m in whole if not m.is_deleting]
    assert [m.name for m in living if m.is_active] == ([leader] if leader else [])
    assert settle(whole, [m.name for m in members], NOW) == whole
