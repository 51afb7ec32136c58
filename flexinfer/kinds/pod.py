# SPDX-License-Identifier: Apache-2.0
"""Pod of v1, as far as it is read: where it runs, and why it does not."""

from __future__ import annotations

from typing import ClassVar

from flexinfer.kinds.condition import ForeignCondition
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, Resource

__all__ = [
    "Container",
    "ContainerRunning",
    "ContainerState",
    "ContainerStatus",
    "ContainerTerminated",
    "ContainerWaiting",
    "Pod",
    "PodSpec",
    "PodStatus",
]


class Container(Model):
    """Be one container of the spec."""

    name: str
    image: str = ""


class PodSpec(Model):
    """Be what was asked for; `node_name` is empty until the scheduler has bound the pod."""

    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class ContainerWaiting(Model):
    """Say why a container has not started, such as ImagePullBackOff or CrashLoopBackOff."""

    reason: str = ""
    message: str = ""


class ContainerRunning(Model):
    """Say since when a container runs, in RFC 3339."""

    started_at: str | None = None


class ContainerTerminated(Model):
    """Say how a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(Model):
    """Be exactly one of waiting, running and terminated; none of them means waiting."""

    waiting: ContainerWaiting | None = None
    running: ContainerRunning | None = None
    terminated: ContainerTerminated | None = None


class ContainerStatus(Model):
    """Be what the kubelet saw of one container; `last_state` is how its previous run ended."""

    name: str
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(Model):
    """Be what scheduler and kubelet saw."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[ForeignCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Object):
    """Read a Pod."""

    resource: ClassVar[Resource] = Resource(GroupVersionKind("", "v1", "Pod"), "pods")

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
