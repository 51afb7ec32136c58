# SPDX-License-Identifier: Apache-2.0
"""How many replicas the Active member of a group may have by now. Pure.

It starts when no pod of another member is left, those included that are being deleted, and when
the Deployments of the others have come to rest at zero. What it runs already it keeps: its own
pods are never in its way, so that a rollout, which ends an old pod before it makes a new one,
goes on, and nobody can stop it by scaling another Deployment by hand.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controllers.model import names
from controllers.model.pods import OVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flexinfer.kinds.deployment import Deployment
    from flexinfer.kinds.pod import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Be the replicas to ask for, and what they wait for; empty when for nothing."""

    replicas: int
    waiting: str = ""


def take_turn(
    model: str,
    wanted: int,
    *,
    pods: Iterable[Pod],
    deployments: Iterable[Deployment],
    yields_to: str = "",
) -> Turn:
    """Say how many of the *wanted* replicas *model*, which is Active, may have now.

    *pods* and *deployments* are those of the whole group, its own among them; *yields_to* is
    who will lead soon in its stead.
    """
    holding = [pod for pod in pods if holds_gpu(pod)]
    others = Counter(_owner(pod) for pod in holding if _owner(pod) != model)
    if yields_to:
        waiting = f"making way for {yields_to}"
    else:
        waiting = _pods_left(others) if others else _deployments_left(model, deployments)
    is_there = any(
        _owner(pod) == model and pod.metadata.deletion_timestamp is None for pod in holding
    )
    if not waiting or wanted == 0 or is_there:
        return Turn(replicas=wanted)
    return Turn(replicas=0, waiting=waiting)


def holds_gpu(pod: Pod) -> bool:
    """Tell whether a pod of a group has GPUs, or may be given some.

    A pod that is being deleted has them until it is gone. Those of Jobs, which fetch weights,
    have none; those that lost their ReplicaSet have.
    """
    owner = pod.metadata.controller
    return pod.status.phase not in OVER and (owner is None or owner.kind == "ReplicaSet")


def is_at_rest(deployment: Deployment) -> bool:
    """Tell whether a Deployment asks for no pod, its controller knows, and has ended them all."""
    status = deployment.status
    is_seen = status.observed_generation >= deployment.metadata.generation
    return deployment.spec.replicas == 0 and is_seen and status.replicas == 0


def _owner(pod: Pod) -> str:
    return pod.metadata.labels.get(names.MODEL_LABEL, pod.metadata.name)


def _pods_left(counts: Counter[str]) -> str:
    who = " and ".join(sorted(counts))
    return f"waiting for the pods of {who} to go: {counts.total()} left"


def _deployments_left(model: str, deployments: Iterable[Deployment]) -> str:
    busy = sorted(d.metadata.name for d in deployments if not is_at_rest(d))
    others = " and ".join(name for name in busy if name != model)
    return f"waiting for the Deployment of {others} to end its pods" if others else ""
