# SPDX-License-Identifier: Apache-2.0
"""A pod's status, from what its containers have been through; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hack.podrunner.pod import PodCondition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from flexinfer.meta.envelope import Tree
    from hack.podrunner.pod import Pod, Terminated
    from hack.podrunner.record import ContainerRecord, PodRecord


def restarts(policy: str, ended: Terminated) -> bool:
    """Tell whether a container that ended so is run again."""
    return policy == "Always" or (policy == "OnFailure" and ended.exit_code != 0)


def phase(pod: Pod, containers: Sequence[ContainerRecord]) -> str:
    """Return the phase, by the kubelet's rules.

    A pod that is being deleted and runs no more has ended, whatever its restart policy, and one
    that has ended stays as it is.
    """
    if pod.is_finished:
        return pod.status.phase
    is_going = pod.metadata.deletion_timestamp is not None
    policy = "Never" if is_going else pod.spec.restart_policy
    ends = [c.ended for c in containers]
    if is_going and not any(c.process for c in containers) and None in ends:
        return "Failed"
    if all(end is not None and not restarts(policy, end) for end in ends):
        return "Failed" if any(end is not None and end.exit_code for end in ends) else "Succeeded"
    return "Running" if all(c.has_run for c in containers) else "Pending"


def intent(pod: Pod, record: PodRecord, *, at: datetime) -> Tree:
    """Return the whole of what the runner says; times move only with what they time."""
    containers = list(record.containers.values())
    found = phase(pod, containers)
    ready = _readiness(found, containers)
    wanted = [
        PodCondition(type="Initialized", status="True"),
        ready.model_copy(update={"type": "ContainersReady"}),
        ready,
    ]
    old = {condition.type: condition for condition in pod.status.conditions}
    return {
        "phase": found,
        "startTime": record.start_time.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "conditions": [_timed(condition, old.get(condition.type), at) for condition in wanted],
        "containerStatuses": [c.status().wire() for c in containers],
    }


def _readiness(found: str, containers: Sequence[ContainerRecord]) -> PodCondition:
    unready = [c.name for c in containers if not c.ready]
    if not unready:
        return PodCondition(type="Ready", status="True")
    if found == "Succeeded":
        return PodCondition(type="Ready", status="False", reason="PodCompleted")
    if found == "Failed":
        return PodCondition(type="Ready", status="False", reason="PodFailed")
    return PodCondition(
        type="Ready",
        status="False",
        reason="ContainersNotReady",
        message=f"containers with unready status: [{' '.join(unready)}]",
    )


def _timed(condition: PodCondition, old: PodCondition | None, at: datetime) -> Tree:
    is_same = old is not None and old.status == condition.status
    when = old.last_transition_time if is_same and old is not None else at
    return condition.model_copy(update={"last_transition_time": when}).wire()
