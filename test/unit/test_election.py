# SPDX-License-Identifier: Apache-2.0
"""The election as a machine: what follows what, and that no two candidates ever lead at once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.leaderelection.election import Done, Election, Follow, Lost, Pause, Read, Write
from flexinfer.leaderelection.lease import Lease
from flexinfer.leaderelection.options import LeaderElectionOptions
from flexinfer.meta.envelope import decode_object, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from flexinfer.leaderelection.lease import FencingToken
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


# --- many candidates against one server, over a network that delays, loses and repeats nothing


@dataclass
class Server:
    """Hold one Lease as the API server does."""

    lease: Lease | None = None
    uids: itertools.count[int] = field(default_factory=itertools.count)

    def handle(self, step: Read | Write) -> Lease | str | None:
        if isinstance(step, Read):
            return self.lease
        if step.base is None:
            if self.lease is not None:
                return "conflict"
            self.lease = lease(step.spec, uid=f"uid-{next(self.uids)}")
            return self.lease
        base = step.base
        known = self.lease
        if known is None or (known.uid, known.version) != (base.uid, base.version):
            return "conflict"
        self.lease = lease(base.replaced(step.spec)["spec"], uid=base.uid)
        return self.lease


class Node:
    """Be one process: an election and a clock that may be slow or fast."""

    numbers = itertools.count()

    def __init__(self, world: World) -> None:
        self.world = world
        self.rate = world.random.uniform(1.0, world.skew)
        self.offset = world.random.uniform(0, 1e6)
        self.name = f"node-{next(self.numbers)}"
        self.turn = 0
        self.has_resigned = False
        self.is_dead = False
        self.election = Election(
            LeaderElectionOptions(name="lock", namespace="ns", identity=self.name),
            clock=self.clock,
            # Every wall clock is wrong, each in its own way.
            wall=lambda: EPOCH + timedelta(seconds=self.clock() % 86400),
            jitter=world.random.random,
        )
        world.at(world.random.uniform(0, 2), self.act, self.turn)

    def clock(self) -> float:
        return self.offset + self.world.now * self.rate

    @property
    def leads(self) -> bool:
        return self.election.token is not None and not self.has_resigned

    def act(self, turn: int) -> None:
        if turn != self.turn or self.is_dead:
            return
        self.turn += 1
        step = self.election.next_step()
        if isinstance(step, Lost):
            self.world.at(0, self.act, self.turn)
        elif isinstance(step, Pause):
            self.wake_at(step.until)
        elif isinstance(step, Follow):
            self.wake_at(min(step.until, self.clock() + self.election.poll_period()), forget=True)
        elif isinstance(step, Read | Write):
            self.send(step)
        elif isinstance(step, Done):
            self.world.replace(self)

    def wake_at(self, until: float, *, forget: bool = False) -> None:
        def wake(turn: int) -> None:
            if turn == self.turn and forget:
                self.election.forget()
            self.act(turn)

        # At the deadline of a leader to the instant: that it stops in time is its own duty.
        late = 0.0 if self.leads else self.world.random.uniform(0, 0.3)
        self.world.at((until - self.clock()) / self.rate + late, wake, self.turn)

    def send(self, step: Read | Write) -> None:
        turn = self.turn
        patience = self.election.time_left() / self.rate

        def arrive() -> None:
            before = self.world.server.lease
            answer = self.world.server.handle(step)
            if self.world.server.lease is not before:
                self.world.changed()
            if not self.world.loses(self):
                self.world.at(self.world.delay(), self.take, turn, step, answer)

        def give_up() -> None:
            if turn == self.turn:
                self.election.failed(step)
                self.act(turn)

        if not self.world.loses(self):
            self.world.at(self.world.delay(), arrive)
        self.world.at(patience, give_up)

    def take(self, turn: int, step: Read | Write, answer: Lease | str | None) -> None:
        if turn != self.turn:
            return
        if isinstance(step, Read):
            assert not isinstance(answer, str)
            self.election.observe(answer)
        elif isinstance(answer, Lease):
            self.election.wrote(step, answer)
        else:
            self.election.lost_race(step)
        self.act(turn)

    def hear(self, seen: Lease | None) -> None:
        """Take an event of the watch, if there still is one."""
        if self.election.held_until() is not None:
            self.election.observe(seen)
            self.act(self.turn)

    def resign(self) -> None:
        self.has_resigned = True
        self.election.resign()
        self.world.at(0, self.act, self.turn)


class World:
    """Be time, network and fate."""

    def __init__(self, random: Random, *, skew: float, loss: float, slowest: float) -> None:
        self.random, self.skew, self.loss, self.slowest = random, skew, loss, slowest
        self.now = 0.0
        self.server = Server()
        self.agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.order = itertools.count()
        self.nodes = [Node(self) for _ in range(3)]
        self.cut_off: Node | None = None
        self.leader: Node | None = None
        self.terms: list[FencingToken] = []

    def at(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        heappush(self.agenda, (self.now + max(delay, 0.0), next(self.order), what, args))

    def loses(self, node: Node) -> bool:
        return node is self.cut_off or self.random.random() < self.loss

    def delay(self) -> float:
        return (
            self.random.uniform(0, 0.05)
            if self.random.random() < 0.7
            else self.random.uniform(0, self.slowest)
        )

    def changed(self) -> None:
        seen = self.server.lease
        for node in self.nodes:
            if not self.loses(node):
                self.at(self.delay(), node.hear, seen)

    def replace(self, node: Node) -> None:
        if node in self.nodes:
            node.is_dead = True
            self.nodes[self.nodes.index(node)] = Node(self)

    def leaders(self) -> list[Node]:
        return [node for node in self.nodes if node.leads]

    def all_have_seen(self, current: Lease) -> bool:
        seen = [node.election._lease for node in self.nodes]
        return all(one is not None and one.uid == current.uid for one in seen)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.agenda and self.agenda[0][0] <= until:
            self.now, _, what, args = heappop(self.agenda)
            what(*args)
            leaders = self.leaders()
            assert len(leaders) <= 1, [node.name for node in leaders]
            self.note_term(leaders[0] if leaders else None)
        self.now = until

    def note_term(self, leader: Node | None) -> None:
        """Check that each term of one Lease has a larger number than all before it."""
        before, self.leader = self.leader, leader
        token = None if leader is None else leader.election.token
        if token is not None and leader is not before:
            earlier = [term.transitions for term in self.terms if term.uid == token.uid]
            assert token.transitions > max(earlier, default=-1)
            self.terms.append(token)

    def heals(self) -> None:
        """Show that without faults one leads soon."""
        self.loss, self.slowest, self.cut_off = 0.0, 0.05, None
        self.run(60)
        assert len(self.leaders()) == 1


# Less than lease over renew deadline, 1.5, by what a standby's clock may be fast.
seeds = st.integers(0, 2**64)
skews = st.floats(1.0, 1.4)
losses = st.sampled_from([0.0, 0.1, 0.4])
slowness = st.sampled_from([0.1, 3.0, 20.0])


@settings(max_examples=60, deadline=None)
@given(seeds, skews, losses, slowness)
def test_no_two_lead_whatever_the_network_loses_and_the_clocks_show(
    seed: int, skew: float, loss: float, slowest: float
) -> None:
    random = Random(seed)  # noqa: S311 - for a simulation
    world = World(random, skew=skew, loss=loss, slowest=slowest)
    for _ in range(6):
        world.run(random.uniform(0, 20))
        # Cut off at any moment, so also with a renewal that was done and not answered.
        world.cut_off = random.choice([None, *world.nodes, *world.leaders()])
        world.run(random.uniform(0, 20))
        node = random.choice(world.nodes)
        if random.random() < 0.5:
            world.replace(node)  # killed, and started anew
        else:
            node.resign()
    world.heals()


@settings(max_examples=60, deadline=None)
@given(seeds, skews, losses)
def test_no_two_lead_when_the_lease_is_deleted(seed: int, skew: float, loss: float) -> None:
    random = Random(seed)  # noqa: S311 - for a simulation
    world = World(random, skew=skew, loss=loss, slowest=1.0)
    for _ in range(4):
        world.run(random.uniform(0, 40))
        # Who never saw that a Lease was held cannot know that it is owed time.
        if world.server.lease is not None and world.all_have_seen(world.server.lease):
            world.server.lease = None
            world.changed()
    world.heals()
