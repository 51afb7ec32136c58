# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from api.flexinfer.v1alpha2.model_status import SharedGroupStatus
from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model.group import elect
from controllers.model.member import SECOND_CHANCE, GroupState, Member
from controllers.model.standing import active_services, stand

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
SECOND = NOW.replace(microsecond=0)
BEFORE = SECOND - timedelta(hours=1)
ACTIVE, QUEUED, PREEMPTED = GroupState.ACTIVE, GroupState.QUEUED, GroupState.PREEMPTED

WANTED = Member(name="a", last_active=NOW, phase=Phase.IDLE)
CLAIMED = Member(name="a", last_active=NOW, phase=Phase.PENDING, state=ACTIVE)


def status(
    state: GroupState, position: int, by: str | None = None, at: datetime | None = None
) -> SharedGroupStatus:
    return SharedGroupStatus(
        group_name="g", state=state, queue_position=position, preempted_by=by, preempted_at=at
    )


def test_the_leader_is_active_at_the_head_of_the_queue() -> None:
    standing = stand(elect([WANTED], NOW), WANTED, "g", NOW)
    assert standing.status == status(ACTIVE, 0)
    assert standing.is_active
    assert not standing.is_preempted
    assert not standing.yields_to
    assert not standing.lost_to


def test_the_incumbent_waits_for_the_leader_to_claim_and_calls_it() -> None:
    incumbent = Member(name="b", state=ACTIVE, phase=Phase.READY)
    standing = stand(elect([WANTED, incumbent], NOW), incumbent, "g", NOW)
    assert standing.status == status(ACTIVE, 1, "a")
    assert standing.is_active
    assert standing.yields_to == "a"
    assert not standing.lost_to


@pytest.mark.parametrize("phase", [Phase.READY, Phase.LOADING, Phase.PENDING, Phase.FAILED])
def test_an_incumbent_that_loses_pods_is_preempted_by_whom_and_when(phase: Phase) -> None:
    incumbent = Member(name="b", state=ACTIVE, phase=phase, preempted_at=BEFORE, priority=1)
    standing = stand(elect([CLAIMED, incumbent], NOW), incumbent, "g", NOW)
    assert standing.status == status(PREEMPTED, 1, "a", NOW.replace(microsecond=0))
    assert standing.is_preempted
    assert not standing.is_active
    assert standing.lost_to == "a"


@pytest.mark.parametrize("phase", [None, Phase.IDLE, Phase.PREEMPTED])
@pytest.mark.parametrize("leader", [WANTED, CLAIMED])
def test_an_incumbent_without_pods_yields_at_once_and_loses_nothing(
    phase: Phase | None, leader: Member
) -> None:
    incumbent = Member(name="b", state=ACTIVE, phase=phase, preempted_at=BEFORE, priority=1)
    standing = stand(elect([leader, incumbent], NOW), incumbent, "g", NOW)
    assert standing.status == status(QUEUED, 1, "a", BEFORE)
    assert not standing.yields_to
    assert not standing.lost_to


def test_it_stays_preempted_by_the_first_loss_until_it_leads_again() -> None:
    loser = Member(name="b", state=PREEMPTED, phase=Phase.PREEMPTED, preempted_at=BEFORE)
    standing = stand(elect([CLAIMED, loser], NOW), loser, "g", NOW)
    assert standing.status == status(PREEMPTED, 1, "a", BEFORE)
    assert not standing.lost_to


@pytest.mark.parametrize("state", ["", QUEUED])
def test_others_are_queued_behind_the_leader(state: str) -> None:
    other = Member(name="b", state=state, phase=Phase.IDLE)
    standing = stand(elect([WANTED, other], NOW), other, "g", NOW)
    assert standing.status == status(QUEUED, 1, "a")


@pytest.mark.parametrize("phase", [Phase.READY, Phase.LOADING])
def test_one_that_ran_before_it_joined_is_preempted_at_once(phase: Phase) -> None:
    newcomer = Member(name="b", phase=phase, priority=1)
    standing = stand(elect([WANTED, newcomer], NOW), newcomer, "g", NOW)
    assert standing.status == status(PREEMPTED, 1, "a", NOW.replace(microsecond=0))
    assert standing.lost_to == "a"


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.FAILED])
def test_one_that_never_ran_is_queued(phase: Phase) -> None:
    newcomer = Member(name="b", phase=phase, priority=1)
    assert stand(elect([WANTED, newcomer], NOW), newcomer, "g", NOW).status == status(
        QUEUED, 1, "a"
    )


def test_a_leader_remembers_its_loss_until_it_is_ready_again() -> None:
    again = Member(name="a", state=PREEMPTED, phase=Phase.PREEMPTED, preempted_at=BEFORE)
    standing = stand(elect([again], NOW), again, "g", NOW)
    for phase in (Phase.IDLE, Phase.PENDING, Phase.LOADING, Phase.FAILED):
        assert standing.with_phase(phase) == status(ACTIVE, 0, None, BEFORE)
    assert standing.with_phase(Phase.READY) == status(ACTIVE, 0)


def test_what_is_ready_without_leading_keeps_its_loss() -> None:
    loser = Member(name="b", state=PREEMPTED, phase=Phase.PREEMPTED, preempted_at=BEFORE)
    standing = stand(elect([CLAIMED, loser], NOW), loser, "g", NOW)
    assert standing.with_phase(Phase.READY) == status(PREEMPTED, 1, "a", BEFORE)
    yielding = Member(name="b", state=ACTIVE, phase=Phase.READY, preempted_at=BEFORE)
    standing = stand(elect([WANTED, yielding], NOW), yielding, "g", NOW)
    assert standing.with_phase(Phase.READY) == status(ACTIVE, 1, "a", BEFORE)


def test_the_active_one_answers_for_its_service_labels() -> None:
    spec = {"backend": "vllm", "source": "HF://o/m", "serviceLabels": ["textgen", "code"]}
    model = Model.model_validate({"spec": spec})
    assert active_services(model, is_active=True) == "code,textgen"
    assert active_services(model, is_active=False) == ""


@pytest.mark.parametrize(
    ("failed", "marked"),
    [
        (None, NOW),
        (SECOND - SECOND_CHANCE / 2, SECOND - SECOND_CHANCE / 2),
        (SECOND - SECOND_CHANCE, NOW),
    ],
)
def test_a_turn_that_failed_is_marked_once_for_as_long_as_it_counts(
    failed: datetime | None, marked: datetime
) -> None:
    member = Member(name="a", state=ACTIVE, phase=Phase.FAILED, failed_at=failed)
    standing = stand(elect([member], NOW), member, "g", NOW)
    assert standing.with_failure(standing.status, NOW).failed_at == marked
    assert standing.with_phase(Phase.READY).failed_at is None


def test_what_fails_without_having_its_turn_is_not_held_against_it() -> None:
    queued = Member(name="b", phase=Phase.FAILED, state=QUEUED)
    standing = stand(elect([WANTED, queued], NOW), queued, "g", NOW)
    assert standing.with_failure(standing.status, NOW).failed_at is None
