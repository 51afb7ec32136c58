# SPDX-License-Identifier: Apache-2.0
"""Who leads a shared group: a table."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model.group import elect
from controllers.model.member import SECOND_CHANCE, GroupState, Member
from hack.modelcases import NOW
from hack.modelcases.members import ago, leads, member

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTIVE, PREEMPTED = GroupState.ACTIVE, GroupState.PREEMPTED
READY, LOADING, PENDING = Phase.READY, Phase.LOADING, Phase.PENDING
IDLE, FAILED = Phase.IDLE, Phase.FAILED

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
