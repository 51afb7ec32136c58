# SPDX-License-Identifier: Apache-2.0
"""Why a member of a shared group leads, in which order the others wait, and until when."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model.group import Election, elect
from hack.modelcases import NOW
from hack.modelcases.members import ago, leads, member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controllers.model.member import Member


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
        ([leads("a", asked=200, phase=Phase.LOADING)], "a is starting"),
        ([member("a", is_warm=True)], "a is to run all the time"),
        ([leads("a"), member("b", is_warm=True)], "b is to run all the time and a is idle"),
        ([leads("a")], "a has the GPUs and nobody else needs them"),
        ([member("a", asked=200)], "a was asked for lately"),
        ([leads("a", phase=Phase.FAILED)], "it is the turn of a and nobody else needs the GPUs"),
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
        ([leads("a", 10, 280, phase=Phase.LOADING), member("b", 10, 1)], -20),
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


def test_an_election_of_nobody_is_empty() -> None:
    assert elect([], NOW) == Election(because="the group has no members")
