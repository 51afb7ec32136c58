# SPDX-License-Identifier: Apache-2.0
"""What one that waits for shared GPUs is told: why, and until when."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model.group import elect, turn_at
from controllers.model.member import SECOND_CHANCE, GroupState, Member
from controllers.model.outlook import Outlook, look_ahead
from flexinfer.meta.resource import NamespacedName

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ACTIVE, QUEUED, PREEMPTED = GroupState.ACTIVE, GroupState.QUEUED, GroupState.PREEMPTED
WAKE = (
    "wake it with `flexinfer wake a -n ns` or "
    "`kubectl annotate mdl/a -n ns flexinfer.ai/activate=now --overwrite`"
)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def member(name: str = "a", asked: float | None = 1, **more: object) -> Member:
    """A member that was asked for just now and has no pods, unless told otherwise."""
    values: Tree = {"phase": Phase.PENDING, "state": QUEUED, **more}
    return Member(name=name, last_active=None if asked is None else ago(asked), **values)


def leader(asked: float | None = 1, **more: object) -> Member:
    return member("b", asked, **{"phase": Phase.READY, "state": ACTIVE, **more})


def outlook(waits: Member, *others: Member) -> Outlook:
    members = {m.name: m for m in (waits, *others)}
    election = elect(members.values(), NOW)
    assert election.leader != waits.name
    return look_ahead(election, members, NamespacedName("ns", waits.name), NOW)


LOST = ago(60)
CASES: dict[str, tuple[Member, Member, str, datetime | None]] = {
    "force": (
        member(priority=900),
        leader(is_forced=True),
        "b has spec.gpu.forcePromotion, and leads until that is removed",
        None,
    ),
    "force during a cooldown": (
        member(preempted_at=LOST),
        leader(is_forced=True),
        "b has spec.gpu.forcePromotion, and leads until that is removed",
        None,
    ),
    "a higher priority in use": (
        member(),
        leader(priority=200),
        "b has a higher priority, 200 to 100, and leads until it idles",
        None,
    ),
    "a higher priority that nobody asks for": (
        member(),
        leader(None, priority=200),
        "b has a higher priority, 200 to 100, and leads until it idles",
        None,
    ),
    "a higher priority that never idles": (
        member(),
        leader(None, priority=200, is_warm=True),
        "b has a higher priority, 200 to 100, and runs all the time",
        None,
    ),
    "a higher priority during a cooldown": (
        member(preempted_at=LOST),
        leader(priority=200),
        "b has a higher priority, 200 to 100, and leads until it idles",
        None,
    ),
    "a higher priority that may not come up": (
        member(),
        leader(280, priority=200, phase=Phase.LOADING),
        (
            "b has a higher priority, 200 to 100, and leads until it idles; the turn of a comes at "
            "2026-01-02T03:04:25Z at the earliest"
        ),
        ago(-20),
    ),
    "the cooldown of a lower priority": (
        member(priority=200, preempted_at=LOST),
        leader(1),
        (
            "after a swap b keeps the GPUs for the cooldown; the turn of a comes at "
            "2026-01-02T03:08:05Z at the earliest"
        ),
        ago(-240),
    ),
    "a cooldown that ends while the leader is in use": (
        member(preempted_at=ago(250)),
        leader(1),
        (
            "after a swap b keeps the GPUs for the cooldown; the turn of a comes at "
            "2026-01-02T03:06:04Z at the earliest"
        ),
        ago(-119),
    ),
    "the same priority in use": (
        member(),
        leader(30),
        "b is in use; the turn of a comes at 2026-01-02T03:05:35Z at the earliest",
        ago(-90),
    ),
    "the same priority that starts": (
        member(),
        leader(200, phase=Phase.LOADING),
        "b is starting; the turn of a comes at 2026-01-02T03:05:45Z at the earliest",
        ago(-100),
    ),
    "nobody asks any more for one that had lower demand": (
        member(asked=200),
        leader(200),
        f"nobody asked for a in the last 2 minutes; {WAKE}",
        None,
    ),
    "nobody asks for one of higher priority": (
        member(asked=None, priority=900),
        leader(1),
        f"nobody asked for a in the last 2 minutes; {WAKE}",
        None,
    ),
    "nobody asks for one, and the other is in use": (
        member(asked=None, state=PREEMPTED, phase=Phase.PREEMPTED),
        leader(30),
        "b is in use; the turn of a comes at 2026-01-02T03:05:35Z at the earliest",
        ago(-90),
    ),
    "the other was asked for later and has not begun": (
        member(asked=50),
        leader(5, phase=Phase.IDLE, state=QUEUED),
        "b was asked for",
        None,
    ),
    "one that could not start": (
        member(failed_at=ago(60), priority=200),
        leader(1),
        (
            "a could not start at 2026-01-02T03:03:05Z, and the others go first until "
            "2026-01-02T03:13:05Z or until its spec changes; see its events"
        ),
        ago(60) + SECOND_CHANCE,
    ),
    "one whose second chance has come": (
        member(failed_at=ago(600)),
        leader(30),
        "b is in use; the turn of a comes at 2026-01-02T03:05:35Z at the earliest",
        ago(-90),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_that_waits_is_told_why_and_until_when(case: str) -> None:
    waits, leads, text, until = CASES[case]
    assert outlook(waits, leads) == Outlook(text=text, until=until)


def test_a_third_that_goes_first_puts_the_turn_off() -> None:
    third = member("c", 60, priority=50, failed_at=ago(60))
    assert outlook(member(), leader(30), third).until == ago(-90)
    forced = member("c", is_forced=True, is_cached=True)
    assert outlook(member(), leader(30), forced).until is None


# On both sides of each window.
asked = st.sampled_from([None, 1, 60, 119, 120, 299, 300, 1000])
groups = st.lists(
    st.builds(
        member,
        st.sampled_from("abcd"),
        asked,
        priority=st.sampled_from([10, 20]),
        preempted_at=st.sampled_from([None, None, ago(1), ago(299), ago(300)]),
        failed_at=st.sampled_from([None, None, ago(1), ago(700)]),
        cooldown=st.sampled_from([None, timedelta(0), timedelta(seconds=600)]),
        state=st.sampled_from(["", ACTIVE, QUEUED, PREEMPTED]),
        phase=st.sampled_from([None, *Phase]),
        is_warm=st.booleans(),
        is_cached=st.sampled_from([True, True, False]),
        is_forced=st.sampled_from([False, False, True]),
    ),
    min_size=2,
    unique_by=lambda m: m.name,
)


@settings(deadline=None)
@given(groups, st.integers(0, 2000))
def test_asked_for_at_any_moment_before_its_turn_it_does_not_lead(
    members: list[Member], seconds: int
) -> None:
    first, *others = members
    at, moment = turn_at(members, first.name, NOW), NOW + timedelta(seconds=seconds)
    leads = elect([replace(first, last_active=moment), *others], moment).leader == first.name
    if at is None or moment < at:
        assert not leads
    if at is not None:
        found = elect([replace(first, last_active=at), *others], at)
        assert found.leader == first.name


@settings(deadline=None)
@given(groups)
def test_everybody_who_waits_is_told_something_that_ends_later_or_not_by_time(
    members: list[Member],
) -> None:
    waits, *others = members
    assume(elect(members, NOW).leader != waits.name)
    found = outlook(waits, *others)
    assert found.text
    assert found.until is None or found.until > NOW
