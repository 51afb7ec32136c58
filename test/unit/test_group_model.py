# SPDX-License-Identifier: Apache-2.0
"""A shared group in a small cluster, in random steps: never two with pods, and no flapping."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model import names
from controllers.model.group import COOLDOWN, elect
from controllers.model.member import GroupState, Member, keeps_loading
from controllers.model.standing import stand
from controllers.model.turns import is_at_rest, take_turn
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import meta_from

if TYPE_CHECKING:
    from controllers.model.standing import Standing
    from flexinfer.meta.envelope import Tree

NAMES = st.sampled_from("abc")
IDLE_TIMEOUT = timedelta(minutes=5)
ENOUGH = 400  # steps in which everything has to come to rest


@dataclass
class Server:
    """One Model, with its Deployment, its ReplicaSet and its pods as the cluster has them."""

    member: Member
    preempted_by: str | None = None
    wanted: int = 0  # what the Deployment asks for
    generation: int = 1
    seen: int = 0  # the generation that its controller has made its ReplicaSet ask for
    replica_set: int = 0
    pods: list[str] = field(default_factory=list)  # starting, ready, going
    is_broken: bool = False
    timer: datetime | None = None

    def scale(self, replicas: int) -> None:
        if replicas != self.wanted:
            self.wanted, self.generation = replicas, self.generation + 1

    @property
    def left(self) -> int:
        return sum(pod != "going" for pod in self.pods)

    @property
    def deployment(self) -> Deployment:
        metadata = {"name": self.member.name, "generation": self.generation}
        return Deployment.model_validate(
            {
                "metadata": meta_from(metadata),
                "spec": {"replicas": self.wanted},
                "status": {"observedGeneration": self.seen, "replicas": self.left},
            }
        )

    def observed_pods(self) -> list[Pod]:
        def observed(state: str) -> Pod:
            metadata: Tree = {"name": "x", "labels": {names.MODEL_LABEL: self.member.name}}
            if state == "going":
                metadata["deletionTimestamp"] = "2026-01-02T03:04:05Z"
            return Pod.model_validate(
                {"metadata": meta_from(metadata), "status": {"phase": "Running"}}
            )

        return [observed(state) for state in self.pods]


class SharedGroup(RuleBasedStateMachine):
    """The reconciler is a few lines here; whom each change wakes is as it is wired."""

    def __init__(self) -> None:
        super().__init__()
        self.now = datetime(2026, 1, 2, tzinfo=UTC)
        self.servers: dict[str, Server] = {}
        self.queue: list[str] = []
        self.ghosts: list[tuple[str, Server]] = []  # Models that are gone and whose pods are not
        self.last_swap: tuple[datetime, str] | None = None

    # What users and time do

    @rule(
        name=NAMES,
        priority=st.sampled_from([10, 10, 20]),
        is_warm=st.booleans(),
        is_cached=st.sampled_from([True, True, False]),
    )
    def create(self, name: str, priority: int, *, is_warm: bool, is_cached: bool) -> None:
        if name not in self.servers and name not in {ghost for ghost, _ in self.ghosts}:
            self.servers[name] = Server(
                Member(name=name, priority=priority, is_warm=is_warm, is_cached=is_cached)
            )
            self.wake_all()

    @rule(name=NAMES)
    def ask_for(self, name: str) -> None:
        if server := self.servers.get(name):
            server.member = replace(server.member, last_active=self.now)
            self.wake(name)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if server := self.servers.pop(name, None):
            server.pods = ["going"] * len(server.pods)
            self.ghosts.append((name, server))
            self.forget_swap(name)
            self.wake_all()

    @rule(name=NAMES)
    def break_or_mend(self, name: str) -> None:
        if server := self.servers.get(name):
            server.is_broken = not server.is_broken
            self.wake(name)

    @rule(name=NAMES)
    def turn_the_cache(self, name: str) -> None:
        if server := self.servers.get(name):
            server.member = replace(server.member, is_cached=not server.member.is_cached)
            self.wake_all()

    @rule(name=NAMES)
    def turn_force(self, name: str) -> None:
        if server := self.servers.get(name):
            server.member = replace(server.member, is_forced=not server.member.is_forced)
            self.wake_all()

    @rule(seconds=st.sampled_from([1, 30, 90, 120, 180, 300, 1000]))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        for name, server in self.servers.items():
            if server.timer is not None and server.timer <= self.now:
                server.timer = None
                self.wake(name)

    # What the cluster does

    @rule(name=NAMES)
    def sync_deployment(self, name: str) -> None:
        server = self.servers.get(name)
        if server is None or server.seen == server.generation:
            return
        server.seen, server.replica_set = server.generation, server.wanted
        self.wake(name)
        if is_at_rest(server.deployment):
            self.wake_others(name)

    @rule(name=NAMES)
    def sync_replica_set(self, name: str) -> None:
        server = self.servers.get(name)
        if server is None or server.replica_set == server.left:
            return
        if server.replica_set > server.left:
            server.pods.append("starting")
        else:
            server.pods = ["going"] * len(server.pods)
        self.wake(name)
        if is_at_rest(server.deployment):
            self.wake_others(name)

    @rule(name=NAMES)
    def move_pods(self, name: str) -> None:
        if server := self.servers.get(name):
            self.move(name, server)
        self.ghosts = [(n, s) for n, s in self.ghosts if n != name or self.move(n, s)]

    def move(self, name: str, server: Server) -> bool:
        """Take a pod a step further; tell whether there was any."""
        if not server.pods:
            return False
        if server.pods[0] == "going":
            server.pods.pop(0)
            self.wake_others(name)
        elif server.pods[0] == "starting" and not server.is_broken:
            server.pods[0] = "ready"
        else:
            return True
        self.wake(name)
        return True

    # What the controller does

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.queue))
        self.queue.remove(name)
        self.reconcile(name)

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def fail_to_write_the_status(self, data: st.DataObject) -> None:
        self.reconcile(data.draw(st.sampled_from(self.queue)), is_written=False)

    def reconcile(self, name: str, *, is_written: bool = True) -> None:
        server = self.servers.get(name)
        if server is None:
            return
        member = server.member
        election = elect((s.member for s in self.servers.values()), self.now)
        standing = stand(election, member, "g", self.now)
        wanted = self.wanted(member) if standing.is_active else 0
        turn = take_turn(
            name,
            wanted,
            pods=[p for _, s in self.everybody() for p in s.observed_pods()],
            deployments=[s.deployment for s in self.servers.values()],
            yields_to=standing.yields_to,
        )
        server.scale(turn.replicas)
        server.timer = min(
            (at for at in (election.until, self.idle_at(member)) if at), default=None
        )
        if is_written:
            self.write(server, standing, self.phase(server, standing, wanted))

    def wanted(self, member: Member) -> int:
        if not member.is_cached:
            return int(keeps_loading(member, self.now))
        is_asked = member.was_asked_within(IDLE_TIMEOUT, self.now)
        return int(member.is_warm or is_asked or member.phase is Phase.LOADING)

    def idle_at(self, member: Member) -> datetime | None:
        at = member.last_active + IDLE_TIMEOUT if member.last_active else None
        return at if at and at > self.now else None

    def phase(self, server: Server, standing: Standing, wanted: int) -> Phase:
        if standing.is_preempted:
            return Phase.PREEMPTED
        if not server.member.is_cached and not wanted:
            return Phase.PENDING
        if not wanted:
            return Phase.IDLE
        if "ready" in server.pods:
            return Phase.READY
        if server.is_broken and "starting" in server.pods:
            return Phase.FAILED
        return Phase.LOADING if "starting" in server.pods else Phase.PENDING

    def write(self, server: Server, standing: Standing, phase: Phase) -> None:
        status, old = standing.with_phase(phase), server.member
        if standing.lost_to:
            self.check_swap(old, self.servers[standing.lost_to].member)
        new = replace(old, state=status.state or "", preempted_at=status.preempted_at, phase=phase)
        is_news = (new, status.preempted_by) != (old, server.preempted_by)
        server.member, server.preempted_by = new, status.preempted_by
        if new.preempted_at is None:
            self.forget_swap(old.name)
        if is_news:
            self.wake_others(old.name)

    def check_swap(self, loser: Member, winner: Member) -> None:
        """Let swaps be a cooldown apart, unless one is forced or the loser could not run."""
        if self.last_swap is not None and loser.is_cached and not winner.is_forced:
            is_forced = any(s.member.is_forced for s in self.servers.values())
            assert is_forced or self.now >= self.last_swap[0] + COOLDOWN
        self.last_swap = self.now, loser.name

    def forget_swap(self, loser: str) -> None:
        if self.last_swap is not None and self.last_swap[1] == loser:
            self.last_swap = None

    # Who hears of it

    def everybody(self) -> list[tuple[str, Server]]:
        return [*self.servers.items(), *self.ghosts]

    def wake(self, name: str) -> None:
        if name in self.servers and name not in self.queue:
            self.queue.append(name)

    def wake_others(self, name: str) -> None:
        for other in self.servers:
            if other != name:
                self.wake(other)

    def wake_all(self) -> None:
        self.wake_others("")

    # What holds

    @invariant()
    def never_two_have_pods(self) -> None:
        assert sum(bool(server.pods) for _, server in self.everybody()) <= 1

    @invariant()
    def never_two_deployments_ask_for_pods(self) -> None:
        assert sum(server.wanted > 0 for server in self.servers.values()) <= 1

    @rule()
    def come_to_rest(self) -> None:
        """Let all go on without time: one is Active, and it runs if it is to."""
        for _ in range(ENOUGH):
            before = self.snapshot()
            for name in "abc":
                self.sync_deployment(name)
                self.sync_replica_set(name)
                self.move_pods(name)
            if self.queue:
                self.reconcile(self.queue.pop(0))
            elif before == self.snapshot():
                break
            self.never_two_have_pods()
            self.never_two_deployments_ask_for_pods()
        else:
            raise AssertionError("the group does not come to rest")
        active = [s for s in self.servers.values() if s.member.state == GroupState.ACTIVE]
        assert len(active) == min(1, len(self.servers))
        for server in active:
            assert bool(server.pods) == bool(self.wanted(server.member))
            assert (
                server.member.name
                == elect((s.member for s in self.servers.values()), self.now).leader
            )

    def snapshot(self) -> object:
        return [
            (n, s.member, s.preempted_by, s.wanted, s.seen, s.replica_set, tuple(s.pods))
            for n, s in self.everybody()
        ]


TestSharedGroup = SharedGroup.TestCase
TestSharedGroup.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
