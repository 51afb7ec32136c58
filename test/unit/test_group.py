# SPDX-License-Identifier: Apache-2.0
"""Who leads a shared group: a table, and what holds for all groups."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model.group import Election, elect
from controllers.model.member import (
    DEMAND,
    SECOND_CHANCE,
    GroupState,
    Member,
    group_of,
    keeps_loading,
    member_of,
)
from controllers.model.standing import stand
from flexinfer.meta.envelope import meta_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flexinfer.meta.envelope import Tree

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ACTIVE, QUEUED, PREEMPTED = GroupState.ACTIVE, GroupState.QUEUED, GroupState.PREEMPTED
READY, LOADING, PENDING = Phase.READY, Phase.LOADING, Phase.PENDING
IDLE, FAILED = Phase.IDLE, Phase.FAILED


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def member(
    name: str,
    priority: int = 100,
    asked: float | None = None,
    *,
    preempted: float | None = None,
    cooldown: float | None = None,
    **more: object,
) -> Member:
    """A member that is idle unless told otherwise; all times are seconds."""
    values: Tree = {"phase": IDLE, **more}
    return Member(
        name=name,
        priority=priority,
        last_active=None if asked is None else ago(asked),
        preempted_at=None if preempted is None else ago(preempted),
        cooldown=None if cooldown is None else timedelta(seconds=cooldown),
        **values,
    )


def leads(name: str, priority: int = 100, asked: float | None = None, **more: object) -> Member:
    """The member that leads by its status, and is ready unless told otherwise."""
    values: Tree = {"state": ACTIVE, "phase": READY, **more}
    return member(name, priority, asked, **values)


CASES: dict[str, tuple[Sequence[Member], str]] = {
    # priority
    "the only member": ([member("a")], "a"),
    "the higher priority of two idle ones": ([member("a", 10), member("b", 20)], "b"),
    "the higher priority of two asked for": ([member("a", 10, 5), member("b", 20, 60)], "b"),
    "a higher priority that nobody asked for waits": ([leads("a", 10, 5), member("b", 20)], "a"),
    "a higher priority that is asked for ends one in use": (
        [leads("a", 10, 5), member("b", 20, 5)],
        "b",
    ),
    "a higher priority that is asked for ends one that starts": (
        [leads("a", 10, 5, phase=LOADING), member("b", 20, 5)],
        "b",
    ),
    "the same priority does not end one in use": ([leads("a", 10, 119), member("b", 10, 1)], "a"),
    "a lower priority does not end an idle one": ([leads("a", 20, 900), member("b", 10, 1)], "a"),
    # recency
    "the later asked for of two": ([member("a", asked=50), member("b", asked=40)], "b"),
    "the later asked for of two that nobody asks for any more": (
        [member("a", asked=290), member("b", asked=280)],
        "b",
    ),
    "once asked for goes before never": ([member("a"), member("b", asked=9999)], "b"),
    "asked for lately goes before a higher priority that is idle": (
        [member("a", 20, 301), member("b", 10, 299)],
        "b",
    ),
    "after five minutes the priority decides again": (
        [member("a", 20, 301), member("b", 10, 300)],
        "a",
    ),
    "among equals the incumbent, so that requests do not swap them": (
        [leads("a", asked=60, phase=IDLE), member("b", asked=1)],
        "a",
    ),
    "a clock that runs ahead makes no difference": (
        [member("a", asked=-30), member("b", asked=1)],
        "a",
    ),
    # name
    "the smaller name": ([member("b"), member("a"), member("c")], "a"),
    "the smaller name of two asked for in the same second": (
        [member("b", asked=7), member("a", asked=7)],
        "a",
    ),
    # ready preference
    "one that is ready, before a higher priority that is idle": (
        [member("a", 10, phase=READY), member("b", 20)],
        "a",
    ),
    "the better of two that are ready when a group is made of them": (
        [member("a", 10, phase=READY), member("b", 20, phase=READY)],
        "b",
    ),
    "one that is ready, before an incumbent that has scaled to zero": (
        [leads("a", 20, phase=IDLE), member("b", 10, phase=READY)],
        "b",
    ),
    "the incumbent of two that are ready": (
        [leads("a", 10, 5), member("b", 10, 1, phase=READY)],
        "a",
    ),
    # demand
    "an idle incumbent yields to the same priority": (
        [leads("a", 10, 120), member("b", 10, 1)],
        "b",
    ),
    "an incumbent nobody ever asked for yields": ([leads("a"), member("b", asked=1)], "b"),
    "demand ends after two minutes": ([leads("a", 10, 900), member("b", 10, 120)], "a"),
    "a lower priority has its way once the incumbent has scaled to zero": (
        [leads("a", 20, 900, phase=IDLE), member("b", 10, 1)],
        "b",
    ),
    "the best of all who are asked for": (
        [leads("a", 10, 900), member("b", 10, 1), member("c", 30, 90), member("d", 20, 1)],
        "c",
    ),
    # cooldown
    "within the cooldown the incumbent stays": (
        [leads("a", 10, 900), member("b", 10, 1, state=PREEMPTED, preempted=299)],
        "a",
    ),
    "within the cooldown not even a higher priority gets in": (
        [leads("a", 10, 900), member("b", 20, 1, state=PREEMPTED, preempted=299)],
        "a",
    ),
    "after the cooldown it does": (
        [leads("a", 10, 900), member("b", 20, 1, state=PREEMPTED, preempted=300)],
        "b",
    ),
    "the cooldown is the group's: a third waits too": (
        [leads("a", 10, 900), member("b", 10, preempted=10), member("c", 20, 1)],
        "a",
    ),
    "the last swap counts": (
        [leads("a", 10, 900), member("b", 10, preempted=10), member("c", 10, 1, preempted=999)],
        "a",
    ),
    "a shorter cooldown of the incumbent": (
        [leads("a", 10, 900, cooldown=10), member("b", 10, 1, preempted=11)],
        "b",
    ),
    "a longer cooldown of the incumbent": (
        [leads("a", 10, 900, cooldown=900), member("b", 10, 1, preempted=899)],
        "a",
    ),
    "no cooldown": ([leads("a", 10, 900, cooldown=0), member("b", 10, 1, preempted=0)], "b"),
    "the cooldown of another when the incumbent has none": (
        [leads("a", 10, 900), member("b", 10, 1, preempted=11, cooldown=10)],
        "b",
    ),
    "the longest of others when the incumbent has none": (
        [
            leads("a", 10, 900),
            member("b", 10, 1, preempted=11, cooldown=10),
            member("c", 10, cooldown=12),
        ],
        "a",
    ),
    "the cooldown of the incumbent goes before a longer one": (
        [leads("a", 10, 900, cooldown=10), member("b", 10, 1, preempted=11, cooldown=900)],
        "b",
    ),
    "the cooldown keeps one that failed": (
        [leads("a", 10, 900, phase=FAILED), member("b", 10, 1, preempted=10)],
        "a",
    ),
    "the cooldown keeps one that is woken and has no pods yet": (
        [leads("a", 10, 1, phase=IDLE), member("b", 20, 1, preempted=10)],
        "a",
    ),
    "the cooldown does not keep one that scaled to zero": (
        [leads("a", 10, 900, phase=IDLE), member("b", 10, 1, preempted=10)],
        "b",
    ),
    "the cooldown does not keep one that lost its weights": (
        [leads("a", 10, 900, phase=PENDING, is_cached=False), member("b", 10, 1, preempted=10)],
        "b",
    ),
    "without an incumbent there is no cooldown": (
        [member("a", 20), member("b", 10, 1, preempted=10)],
        "b",
    ),
    # force
    "force against a higher priority in use": (
        [leads("a", 900, 1), member("b", 1, is_forced=True)],
        "b",
    ),
    "force against the cooldown": (
        [leads("a", 900, 1), member("b", 1, is_forced=True, preempted=1)],
        "b",
    ),
    "force of one that failed": (
        [leads("a", 900, 1), member("b", 1, is_forced=True, phase=FAILED)],
        "b",
    ),
    "force waits for the weights": (
        [leads("a", 900, 1), member("b", 1, is_forced=True, is_cached=False)],
        "a",
    ),
    "several forced go by the usual rules": (
        [leads("a", 900, 1), member("b", 1, 1, is_forced=True), member("c", 2, 9, is_forced=True)],
        "c",
    ),
    "of two forced the incumbent stays while it is in use": (
        [leads("a", asked=9, is_forced=True), member("b", asked=1, is_forced=True)],
        "a",
    ),
    # cache miss, failure
    "without weights demand does not count": (
        [leads("a", 10, 900), member("b", 20, 1, is_cached=False)],
        "a",
    ),
    "one that failed has no demand": ([leads("a", 10, 900), member("b", 20, 1, phase=FAILED)], "a"),
    "idle with weights goes before higher without": (
        [member("a", 20, is_cached=False), member("b", 10)],
        "b",
    ),
    "if nobody can serve somebody leads still": (
        [member("a", 10, is_cached=False), member("b", 20, phase=FAILED)],
        "b",
    ),
    "an incumbent that failed yields to lower demand": (
        [leads("a", 20, 1, phase=FAILED), member("b", 10, 1)],
        "b",
    ),
    "an incumbent that failed stays while nobody is asked for": (
        [leads("a", 10, 1, phase=FAILED), member("b", 20)],
        "a",
    ),
    "an incumbent without weights is not starting": (
        [leads("a", 10, 1, phase=PENDING, is_cached=False), member("b", 10, 1)],
        "b",
    ),
    "a load goes on while the cache is made anew": (
        [leads("a", 10, 200, phase=LOADING, is_cached=False), member("b", 10, 1)],
        "a",
    ),
    # warm pins
    "a warm one reclaims from an idle one": (
        [leads("a", 10, 120), member("b", 10, is_warm=True)],
        "b",
    ),
    "a warm one waits while another is in use": (
        [leads("a", 10, 119), member("b", 90, is_warm=True)],
        "a",
    ),
    "a warm one of lower priority waits for an idle one to scale to zero": (
        [leads("a", 20, 900), member("b", 10, is_warm=True)],
        "a",
    ),
    "a warm one of lower priority goes before idle members": (
        [leads("a", 20, 900, phase=IDLE), member("b", 10, is_warm=True)],
        "b",
    ),
    "demand goes before a warm one that is not up": (
        [member("a", 10, 1), member("b", 20, is_warm=True)],
        "a",
    ),
    "a warm one waits within the cooldown": (
        [leads("a", 10, 900), member("b", 10, is_warm=True, preempted=10)],
        "a",
    ),
    "warm ones of one priority do not swap": (
        [leads("b", 10, is_warm=True), member("a", 10, 200, is_warm=True)],
        "b",
    ),
    "a warm one of higher priority goes before a warm one": (
        [leads("a", 10, is_warm=True), member("b", 11, is_warm=True)],
        "b",
    ),
    "a warm one without weights waits": (
        [leads("a", 10, 900), member("b", 10, is_warm=True, is_cached=False)],
        "a",
    ),
    "a warm one that starts is no worse off than one that idles": (
        [leads("a", 20, phase=LOADING, is_warm=True), member("b", 10, 1)],
        "a",
    ),
    "a warm one that starts yields to demand of its priority": (
        [leads("a", 10, phase=PENDING, is_warm=True), member("b", 10, 1)],
        "b",
    ),
    # cold-start window
    "one that loads stays for five minutes": (
        [leads("a", 10, 299, phase=LOADING), member("b", 10, 1)],
        "a",
    ),
    "one that is pending stays for five minutes": (
        [leads("a", 10, 299, phase=PENDING), member("b", 10, 1)],
        "a",
    ),
    "then it yields": ([leads("a", 10, 300, phase=LOADING), member("b", 5, 1)], "b"),
    "a longer cold start is waited for": (
        [leads("a", 10, 899, phase=LOADING, cold_start=timedelta(minutes=15)), member("b", 10, 1)],
        "a",
    ),
    "not for longer": (
        [leads("a", 10, 900, phase=LOADING, cold_start=timedelta(minutes=15)), member("b", 10, 1)],
        "b",
    ),
    "only the incumbent has a cold start": (
        [member("a", 10, 200, phase=LOADING), member("b", 10, 1)],
        "b",
    ),
    # deletion
    "one that is deleted does not lead": ([leads("a", 90, 1, is_deleting=True), member("b")], "b"),
    "nor by force": ([member("a", 90, is_forced=True, is_deleting=True), member("b")], "b"),
    "nobody is left": ([leads("a", is_deleting=True)], ""),
    # while one takes over from the other
    "two are Active, and the rules come to the one that claimed": (
        [leads("a", 10, 200), leads("b", 10, 1, phase=PENDING)],
        "b",
    ),
    "two are Active, and the first failed": (
        [leads("a", 20, 1, phase=FAILED), leads("b", 10, 1, phase=PENDING)],
        "b",
    ),
}


@pytest.mark.parametrize(("members", "leader"), CASES.values(), ids=CASES)
def test_choose_shared_group_leader_comprehensive(members: Sequence[Member], leader: str) -> None:
    election = elect(members, NOW)
    assert election.leader == leader, election.because
    assert elect(reversed(members), NOW) == election


def test_preserve_active_shared_loading_during_cache_refresh() -> None:
    """Only Active, loading and asked for lately keeps its replicas while the cache is made anew."""
    loading = leads("a", asked=299, phase=LOADING, is_cached=False)
    assert keeps_loading(loading, NOW)
    assert not keeps_loading(replace(loading, state=QUEUED), NOW)
    assert not keeps_loading(replace(loading, phase=PENDING), NOW)
    assert not keeps_loading(replace(loading, phase=READY), NOW)
    assert not keeps_loading(replace(loading, last_active=ago(300)), NOW)
    assert not keeps_loading(replace(loading, last_active=None), NOW)
    slow = replace(loading, last_active=ago(300), cold_start=timedelta(minutes=6))
    assert keeps_loading(slow, NOW)


# Why, in which order, until when


@pytest.mark.parametrize(
    ("members", "because"),
    [
        ([], "the group has no members"),
        ([member("a")], "nobody needs the GPUs and a ranks first"),
        ([member("a", is_forced=True)], "a has spec.gpu.forcePromotion"),
        (
            [leads("a", asked=9), member("b", preempted=60)],
            "after a swap a keeps the GPUs for the cooldown",
        ),
        ([member("a", asked=9)], "a was asked for"),
        (
            [leads("a", 1, 9), member("b", asked=9)],
            "b was asked for and has a higher priority than a",
        ),
        ([leads("a"), member("b", asked=9)], "b was asked for and a is idle"),
        ([leads("a", asked=9)], "a is in use"),
        ([leads("a", asked=200, phase=LOADING)], "a is starting"),
        ([member("a", is_warm=True)], "a is to run all the time"),
        ([leads("a"), member("b", is_warm=True)], "b is to run all the time and a is idle"),
        ([leads("a")], "a has the GPUs and nobody else needs them"),
        ([member("a", asked=200)], "a was asked for lately"),
        ([leads("a", phase=FAILED)], "it is the turn of a and nobody else needs the GPUs"),
    ],
)
def test_an_election_says_why(members: Sequence[Member], because: str) -> None:
    assert elect(members, NOW).because == because


def test_the_queue_goes_by_priority_and_name_so_that_requests_do_not_shuffle_it() -> None:
    members = [member("a", 10, 1), member("b", 20, 1), member("c", 20), leads("d", 5)]
    assert elect(members, NOW).order == ("b", "c", "a", "d")
    gone = [replace(m, is_deleting=m.name == "c") for m in members]
    assert elect(gone, NOW).order == ("b", "a", "d")


def test_an_election_tells_whether_the_leader_knows() -> None:
    assert elect([leads("a"), member("b")], NOW).is_claimed
    assert not elect([leads("a"), member("b", asked=1)], NOW).is_claimed
    assert not elect([], NOW).is_claimed


@pytest.mark.parametrize(
    ("members", "until"),
    [
        ([leads("a", asked=1)], None),
        ([leads("a", asked=1), member("b")], None),
        ([leads("a", asked=1), member("b", 10, 1)], None),
        # In a minute the incumbent is idle, and demand for the other goes on.
        ([leads("a", asked=60), member("b", asked=1)], -60),
        # ... and demand for the other has ended before.
        ([leads("a", asked=1), member("b", asked=60)], None),
        ([leads("a", 10, 1), member("b", 20, 1, preempted=280)], -20),
        ([leads("a", 10, 1, cooldown=290), member("b", 20, 1, preempted=280)], -10),
        ([leads("a", 10, 1), member("b", 10, is_warm=True, preempted=200)], -119),
        ([leads("a", 10, 280, phase=LOADING), member("b", 10, 1)], -20),
        ([member("a", 10, 280), member("b", 20, 9999)], -20),
        ([member("a", is_forced=True), member("b", is_forced=True), member("c", asked=1)], None),
    ],
)
def test_an_election_says_when_time_alone_changes_it(
    members: Sequence[Member], until: int | None
) -> None:
    assert elect(members, NOW).until == (None if until is None else ago(until))


def test_times_at_the_end_of_the_calendar_do_no_harm() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    members = [replace(leads("a"), last_active=last, preempted_at=last), member("b", asked=1)]
    assert elect(members, NOW).leader == "a"


# What holds for all groups

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
    """
    newcomers = any(not m.state and m.phase in {READY, LOADING} for m in members)
    forgetful = any(m.is_active and m.phase is READY and m.preempted_at for m in members)
    return not forgetful and sum(m.is_active for m in members) <= (0 if newcomers else 1)


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


# Reading a Model


def model(status: Tree | None = None, **spec: object) -> Model:
    return Model.model_validate(
        {
            "metadata": meta_from({"name": "m", "namespace": "ns"}),
            "spec": {"backend": "vllm", "source": "HF://o/m", **spec},
            "status": status or {},
        }
    )


def test_a_member_is_read_from_a_model() -> None:
    shared = {"groupName": "g", "state": "Active", "preemptedAt": "2026-01-02T03:00:00Z"}
    status: Tree = {
        "phase": "Loading",
        "lastActiveTime": "2026-01-02T03:04:05Z",
        "sharedGroup": shared,
        "cache": {"ready": True},
    }
    gpu = {"shared": "g", "priority": 7, "swapCooldown": "30s", "forcePromotion": True}
    found = model(status, gpu=gpu, serverless={"minReplicas": 1, "coldStartTimeout": "20m"})
    assert group_of(found) == "g"
    assert member_of(found) == Member(
        name="m",
        priority=7,
        is_forced=True,
        is_warm=True,
        phase=LOADING,
        state="Active",
        last_active=NOW,
        preempted_at=datetime(2026, 1, 2, 3, 0, tzinfo=UTC),
        cooldown=timedelta(seconds=30),
        cold_start=timedelta(minutes=20),
    )


def test_a_new_model_has_no_weights_yet() -> None:
    found = member_of(model(gpu={"shared": "g"}))
    assert (found.is_cached, found.can_serve, found.state, found.cooldown) == (
        False,
        False,
        "",
        None,
    )
    assert not found.is_warm
    assert not found.is_deleting


def test_how_it_stood_in_another_group_does_not_count() -> None:
    status: Tree = {"sharedGroup": {"groupName": "h", "state": "Active"}}
    assert member_of(model(status, gpu={"shared": "g"})).state == ""
    assert group_of(model()) == ""
    assert member_of(model(status)).state == ""


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({}, 300),  # vllm's own
        ({"config": {"startupTimeoutSeconds": 1200}}, 1200),
        ({"config": {"startupTimeoutSeconds": 1e300}}, 86400),
        ({"config": {"startupTimeoutSeconds": -5}}, 60),
        ({"config": {"startupTimeout": "soon"}}, 60),
        ({"backend": "none such", "serverless": {"coldStartTimeout": "2m"}}, 120),
    ],
)
def test_how_long_a_start_may_take(spec: Tree, seconds: int) -> None:
    assert member_of(model(**spec)).cold_start == timedelta(seconds=seconds)


def test_a_deleted_model_is_deleting() -> None:
    metadata = meta_from({"name": "m", "deletionTimestamp": "2026-01-02T03:04:05Z"})
    assert member_of(model().model_copy(update={"metadata": metadata})).is_deleting


def test_an_election_of_nobody_is_empty() -> None:
    assert elect([], NOW) == Election(because="the group has no members")


# Who could not start


def test_who_could_not_start_lets_the_others_go_first_for_ten_minutes() -> None:
    broken = member("broken", 200, asked=1, is_warm=True, failed_at=ago(60))
    healthy = member("healthy", 100, phase=READY, state=ACTIVE, is_warm=True)
    found = elect([broken, healthy], NOW)
    assert found.leader == "healthy"
    assert found.until == ago(60) + SECOND_CHANCE
    assert elect([broken, healthy], NOW + SECOND_CHANCE).leader == "broken"


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.PENDING])
def test_a_leader_that_could_not_start_keeps_nobody_waiting(phase: Phase) -> None:
    stuck = member(
        "stuck", 200, phase=phase, state=ACTIVE, is_warm=True, failed_at=NOW, preempted=1
    )
    assert elect([stuck, member("next", 100, is_warm=True)], NOW).leader == "next"
    assert elect([stuck, member("nobody-asks", 100, is_cached=False)], NOW).leader == "stuck"
