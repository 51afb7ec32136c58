# SPDX-License-Identifier: Apache-2.0
"""Many candidates against one server: no two ever lead at once.

The network between them delays and loses, but repeats nothing; clocks go at their own pace.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

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


@dataclass
class Server:
    """Hold one Lease as the API server does."""

    lease: Lease | None = None
    uids: itertools.count[int] = field(default_factory=itertools.count)
    versions: itertools.count[int] = field(default_factory=itertools.count)

    def handle(self, step: Read | Write) -> Lease | str | None:
        if isinstance(step, Read):
            return self.lease
        if step.base is None:
            if self.lease is not None:
                return "conflict"
            self.lease = self.stored(step.spec, uid=f"uid-{next(self.uids)}")
            return self.lease
        base = step.base
        known = self.lease
        if known is None or (known.uid, known.version) != (base.uid, base.version):
            return "conflict"
        self.lease = self.stored(base.replaced(step.spec)["spec"], uid=base.uid)
        return self.lease

    def stored(self, spec: Tree, uid: str) -> Lease:
        version = str(next(self.versions))
        meta = {"name": "lock", "namespace": "ns", "uid": uid, "resourceVersion": version}
        return Lease.read(decode_object(encode({"metadata": meta, "spec": spec})))


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
