# SPDX-License-Identifier: Apache-2.0
"""The election as a machine: what follows what."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from flexinfer.leaderelection.election import Done, Election, Follow, Lost, Pause, Read, Write
from flexinfer.leaderelection.lease import Lease
from flexinfer.leaderelection.options import LeaderElectionOptions
from flexinfer.meta.envelope import decode_object, encode

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
VERSIONS = itertools.count(1)


def lease(spec: Tree, uid: str = "u") -> Lease:
    meta = {"name": "lock", "namespace": "ns", "uid": uid, "resourceVersion": str(next(VERSIONS))}
    return Lease.read(decode_object(encode({"metadata": meta, "spec": spec})))


def held_by(holder: str, *, duration: int = 15, renewed: int = 0, uid: str = "u") -> Lease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration, "leaseTransitions": 4}
    return lease({**spec, "renewTime": f"at {renewed}"}, uid)


class Bench:
    """Be one candidate and its clocks."""

    def __init__(self, **options: Any) -> None:
        self.now = 1000.0
        self.wall = EPOCH
        self.election = Election(
            LeaderElectionOptions(name="lock", namespace="ns", identity="me", **options),
            clock=lambda: self.now,
            wall=lambda: self.wall,
            jitter=lambda: 0.5,
        )

    def step(self) -> Any:
        return self.election.next_step()

    def write(self) -> Write:
        step = self.step()
        assert isinstance(step, Write), step
        return step

    def do_write(self) -> Lease:
        """Carry out the write that is due now."""
        step = self.write()
        base = step.base
        written = lease(step.spec if base is None else base.replaced(step.spec)["spec"])
        self.election.wrote(step, written)
        return written

    def lead(self) -> Lease:
        assert self.step() == Read(self.now)
        self.election.observe(None)
        return self.do_write()


def test_without_a_lease_one_is_created() -> None:
    bench = Bench()
    assert bench.step() == Read(1000)
    bench.election.observe(None)
    step = bench.write()
    assert step.base is None
    assert step.spec["holderIdentity"] == "me"
    assert step.spec["leaseTransitions"] == 0
    bench.election.wrote(step, lease(step.spec))
    assert bench.election.token == ("u", 0)
    assert bench.step() == Pause(1002)


def test_a_leader_renews_without_reading_and_keeps_the_time_it_acquired() -> None:
    bench = Bench()
    bench.lead()
    for _ in range(3):
        bench.now += 2
        bench.wall += timedelta(seconds=2)
        renewal = bench.write()
        assert renewal.spec["acquireTime"] == "2026-01-01T00:00:00.000000Z"
        assert renewal.spec["leaseTransitions"] == 0
        bench.do_write()
    assert renewal.spec["renewTime"] == "2026-01-01T00:00:06.000000Z"
    assert renewal.base is not None


def test_a_candidate_waits_as_long_as_the_record_says_from_when_it_saw_it_change() -> None:
    bench = Bench()
    first = held_by("other", duration=60)
    bench.election.observe(first)
    assert bench.step() == Follow(first, 1060)
    bench.now += 50
    bench.election.forget()
    assert bench.step() == Read(1050)
    bench.election.observe(first)
    assert bench.step() == Follow(first, 1060)
    second = held_by("other", duration=60, renewed=1)
    bench.election.observe(second)
    assert bench.step() == Follow(second, 1110)
    bench.now = 1110
    claim = bench.write()
    assert claim.base is second
    assert claim.spec["leaseTransitions"] == 5


def test_c47_wall_clocks_do_not_matter() -> None:
    bench = Bench()
    bench.election.observe(held_by("other"))
    for hours in (-1, 1, 1000):
        bench.wall += timedelta(hours=hours)
        assert isinstance(bench.step(), Follow)
    bench.now += 15
    bench.do_write()
    bench.wall -= timedelta(hours=5)
    assert bench.step() == Pause(1017)
    bench.now += 2
    bench.do_write()
    assert bench.election.token == ("u", 5)


def test_a_released_lease_is_claimed_at_once() -> None:
    bench = Bench()
    bench.election.observe(held_by("other"))
    bench.election.observe(held_by("", duration=1))
    assert bench.write().spec["leaseTransitions"] == 5


def test_a_record_that_names_no_duration_is_given_our_own() -> None:
    bench = Bench()
    bench.election.observe(lease({"holderIdentity": "other", "renewTime": "rubbish"}))
    assert isinstance(bench.step(), Follow)
    assert bench.election.held_until() == 1015


@pytest.mark.parametrize("after", [None, held_by("", uid="another")])
def test_a_lease_that_vanished_while_it_was_held_is_waited_out(after: Lease | None) -> None:
    bench = Bench()
    bench.election.observe(held_by("other"))
    bench.now += 10
    bench.election.observe(None)
    bench.now += 1
    bench.election.observe(after)
    assert bench.step() == Follow(after, 1025)
    bench.now = 1025
    assert bench.write().base is after


def test_who_led_when_the_lease_vanished_creates_it_anew_at_once() -> None:
    bench = Bench()
    bench.lead()
    bench.now = 1002
    bench.election.lost_race(bench.write())
    bench.election.observe(None)
    assert isinstance(bench.step(), Lost)
    bench.election.observe(None)
    assert bench.write().base is None


def test_a_lost_race_is_read_again_and_one_lost_again_and_again_waits() -> None:
    bench = Bench()
    bench.election.observe(held_by(""))
    for _ in range(2):
        bench.election.lost_race(bench.write())
        assert bench.step() == Read(1000)
        bench.election.observe(held_by(""))
    bench.election.lost_race(bench.write())
    assert bench.step() == Pause(1000 + 2 * 1.6)


def test_a_failed_attempt_of_a_standby_waits_one_to_two_point_two_periods() -> None:
    bench = Bench()
    bench.election.failed(bench.step())
    assert bench.step() == Pause(1003.2)
    bench.now = 1003.2
    bench.election.failed(bench.step(), retry_after=3600)
    assert bench.step() == Pause(1018.2)


def test_a_leader_tries_again_each_period_until_its_deadline() -> None:
    bench = Bench()
    bench.lead()
    for at in (1002, 1004, 1006, 1008):
        bench.now = at
        bench.election.failed(bench.write())
    assert bench.step() == Pause(1010)
    bench.now = 1010
    assert bench.step() == Lost("it was not renewed for 10 s")
    assert bench.election.token is None


def test_a_hung_renewal_is_given_half_the_deadline_and_followed_by_another_at_once() -> None:
    bench = Bench()
    bench.lead()
    bench.now = 1002
    hung = bench.write()
    assert bench.election.time_left() == 5
    bench.now = 1007
    bench.election.failed(hung)
    bench.write()
    assert bench.election.time_left() == 3
    bench.now = 1010.5
    assert bench.election.time_left() > 0


def test_retry_after_does_not_make_a_leader_sleep_through_its_deadline() -> None:
    bench = Bench()
    bench.lead()
    bench.now = 1002
    bench.election.failed(bench.write(), retry_after=60)
    assert bench.step() == Pause(1006)


def test_the_deadline_counts_from_when_a_renewal_was_sent() -> None:
    bench = Bench()
    bench.lead()
    bench.now = 1002
    sent = bench.write()
    bench.now = 1006
    bench.election.wrote(sent, lease(sent.spec))
    bench.now = 1012
    assert isinstance(bench.step(), Lost)


def test_a_leader_whose_answer_was_lost_goes_on() -> None:
    bench = Bench()
    bench.lead()
    bench.now = 1002
    lost = bench.write()
    bench.election.failed(lost)
    bench.now = 1004
    bench.election.lost_race(bench.write())
    assert bench.step() == Read(1004)
    bench.election.observe(lease(lost.spec))
    bench.do_write()
    assert bench.election.token == ("u", 0)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "deleted"),
        (held_by("other"), "held by other"),
        (held_by(""), "held by nobody"),
        (held_by("me"), "held by me"),
    ],
)
def test_a_leader_that_sees_another_record_gives_up(found: Lease | None, reason: str) -> None:
    bench = Bench()
    bench.lead()
    bench.now = 1002
    bench.election.lost_race(bench.write())
    bench.election.observe(found)
    step = bench.step()
    assert isinstance(step, Lost)
    assert reason in step.reason
    assert bench.step() == Read(1002)


def test_a_claim_whose_answer_was_lost_is_known_again_and_becomes_a_new_term() -> None:
    bench = Bench()
    bench.election.observe(held_by(""))
    claim = bench.write()
    bench.election.failed(claim)
    bench.now += 4
    assert bench.step() == Read(1004)
    bench.election.observe(lease(claim.spec))
    bench.do_write()
    assert bench.election.token == ("u", 6)


def test_another_process_of_the_same_identity_is_another() -> None:
    bench = Bench()
    bench.election.observe(held_by("me"))
    assert isinstance(bench.step(), Follow)


def test_who_lost_the_lease_takes_it_again_at_once_if_nobody_else_did() -> None:
    bench = Bench()
    last = bench.lead()
    bench.now = 1010
    assert isinstance(bench.step(), Lost)
    bench.election.observe(last)
    bench.do_write()
    assert bench.election.token == ("u", 1)


def test_a_release_names_nobody_and_one_second() -> None:
    bench = Bench()
    bench.lead()
    bench.election.resign()
    step = bench.write()
    assert step.spec["holderIdentity"] == ""
    assert step.spec["leaseDurationSeconds"] == 1
    assert step.spec["leaseTransitions"] == 0
    bench.election.wrote(step, lease(step.spec))
    assert bench.step() == Done()


def test_a_release_that_conflicts_is_tried_again_and_ends_with_the_renew_deadline() -> None:
    bench = Bench()
    last = bench.lead()
    bench.election.resign()
    bench.election.lost_race(bench.write())
    assert bench.step() == Read(1000)
    bench.election.observe(last)
    for at in (1000, 1002, 1004, 1006, 1008):
        bench.now = at
        bench.election.failed(bench.write())
    assert bench.step() == Pause(1010)
    bench.now = 1010
    assert bench.step() == Done()


def test_nothing_is_released_that_is_not_ours() -> None:
    bench = Bench()
    bench.election.observe(held_by("other"))
    bench.election.resign()
    assert bench.step() == Done()
    bench = Bench()
    bench.lead()
    bench.election.resign()
    bench.election.lost_race(bench.write())
    bench.election.observe(held_by("other"))
    assert bench.step() == Done()


def test_a_claim_in_doubt_is_released_if_it_turns_out_ours() -> None:
    bench = Bench()
    bench.election.observe(held_by(""))
    claim = bench.write()
    bench.election.failed(claim)
    bench.election.resign()
    assert bench.step() == Read(1000)
    bench.election.observe(lease(claim.spec))
    assert bench.write().spec["holderIdentity"] == ""
