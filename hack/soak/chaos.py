# SPDX-License-Identifier: Apache-2.0
"""What goes wrong during a soak, one thing at a time, chosen at random."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from flexinfer.envtest.behaviour import BEHAVIOUR, Behaviour
from flexinfer.errors import ApiError, NotFoundError
from hack.soak.crew import SPARED
from hack.soak.world import NAMESPACE

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree
    from hack.soak.crew import Crew, Member
    from hack.soak.world import World

_DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
_SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_API_SERVER_DOWN = 5.0
_HANG = 4.0


class Chaos:
    """Break things, and put right what does not heal by itself; `counts` says what was done."""

    def __init__(
        self, plane: ControlPlane, crew: Crew, world: World, nodes: list[str], rng: random.Random
    ) -> None:
        self.counts: dict[str, int] = {}
        self._plane = plane
        self._crew = crew
        self._world = world
        self._nodes = nodes
        self._rng = rng
        self._sick: list[str] = []
        self._deeds: list[tuple[int, Callable[[], None]]] = [
            (1, self.kill_api_server),
            (2, self.restart_api_server),
            (2, self.kill_leader),
            (1, self.stop_leader),
            (1, self.hang_leader),
            (1, self.kill_standby),
            (3, self.node_trouble),
            (4, self.pod_trouble),
            (4, self.edit_child),
            (4, self.delete_child),
        ]

    def strike(self) -> str:
        """Do one thing and return its name."""
        weights = [weight for weight, _ in self._deeds]
        deed = self._rng.choices([deed for _, deed in self._deeds], weights)[0]
        name = deed.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        deed()
        return name

    def heal(self) -> None:
        """Undo what would stay: cordons, nodes that are not ready, pods told to fail."""
        for node in self._nodes:
            self._plane.nodes.uncordon(node)
            self._plane.nodes.make_ready(node)
        for pod in self._sick:
            self._plane.admin.delete(f"{_PODS}/{pod}")

    def kill_api_server(self) -> None:
        """Take the API server away for a while."""
        self._plane.processes.kill("kube-apiserver")
        time.sleep(_API_SERVER_DOWN)
        self._plane.processes.start("kube-apiserver")
        self._plane.wait_ready(within=60)

    def restart_api_server(self) -> None:
        """Cut every watch and every connection at once."""
        self._plane.restart("kube-apiserver", within=60)

    def kill_leader(self) -> None:
        """End the leader with SIGKILL."""
        if (leader := self._leader_to_end()) is not None:
            self._crew.kill(leader)

    def stop_leader(self) -> None:
        """End the leader with SIGTERM."""
        if (leader := self._leader_to_end()) is not None:
            self._crew.stop(leader)

    def hang_leader(self) -> None:
        """Stop the leader's process for longer than its lease, then let it go on."""
        if (leader := self._crew.leader()) is not None:
            self._crew.pause(leader, _HANG)

    def kill_standby(self) -> None:
        """End one that does not lead with SIGKILL."""
        leader = self._crew.leader()
        others = [m for m in self._crew.members.values() if m is not leader and m.name != SPARED]
        self._crew.kill(self._rng.choice(others))

    def node_trouble(self) -> None:
        """Cordon a node or make it not ready; the one troubled before recovers."""
        node = self._rng.choice(self._nodes)
        for other in self._nodes:
            self._plane.nodes.uncordon(other)
        self._plane.nodes.make_ready(node)
        if self._rng.random() < 0.5:  # noqa: PLR2004 - a coin
            self._plane.nodes.cordon(node)
        else:
            self._plane.nodes.make_not_ready(node)

    def pod_trouble(self) -> None:
        """Delete some pods, and let some crash again and again."""
        pods = self._plane.admin.get(_PODS)["items"]
        for pod in self._sample(pods, 5):
            self._plane.admin.delete(f"{_PODS}/{pod['metadata']['name']}")
        for pod in self._sample(pods, 2):
            name = pod["metadata"]["name"]
            note = {"metadata": {"annotations": {BEHAVIOUR: Behaviour.CRASH_LOOP}}}
            self._quietly(lambda n=name, b=note: self._plane.admin.merge(f"{_PODS}/{n}", b))  # type: ignore[misc] # bound early on purpose
            self._sick.append(name)

    def edit_child(self) -> None:
        """Change what a controller owns by hand."""
        for deployment in self._sample(self._plane.admin.get(_DEPLOYMENTS)["items"], 5):
            path = f"{_DEPLOYMENTS}/{deployment['metadata']['name']}"
            spec = {"spec": {"replicas": self._rng.randrange(3)}}
            self._quietly(lambda p=path, b=spec: self._plane.admin.merge(p, b))  # type: ignore[misc] # bound early on purpose

    def delete_child(self) -> None:
        """Delete what a controller made."""
        for kind in (_DEPLOYMENTS, _SERVICES):
            for child in self._sample(self._plane.admin.get(kind)["items"], 3):
                if child["metadata"]["name"] != "kubernetes":
                    self._plane.admin.delete(f"{kind}/{child['metadata']['name']}")

    def _leader_to_end(self) -> Member | None:
        """Return the leader; the one that is spared hangs instead, so that another leads."""
        leader = self._crew.leader()
        if leader is None or leader.name != SPARED:
            return leader
        self._crew.pause(leader, _HANG)
        return None

    def _sample(self, items: list[Tree], count: int) -> list[Tree]:
        return self._rng.sample(items, min(count, len(items)))

    @staticmethod
    def _quietly(write: Callable[[], object]) -> None:
        """Let a write lose its object: somebody else may have deleted it."""
        try:
            write()
        except NotFoundError:
            return
        except ApiError as error:
            if error.status != 409:  # noqa: PLR2004 - a conflict with a controller is as good
                raise
