# SPDX-License-Identifier: Apache-2.0
"""Pod of v1, as far as the runner reads it, and the parts of its status that it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from flexinfer.envtest.behaviour import LOCAL_IMAGES
from flexinfer.meta.condition import Timestamp
from flexinfer.meta.envelope import Tree
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from flexinfer.meta.envelope import StoredObject


class SecretKey(Model):
    """Name one value of a Secret; when `optional` it may be missing."""

    name: str = ""
    key: str
    optional: bool = False


class FieldRef(Model):
    """Name a field of the pod itself, such as `metadata.name`."""

    field_path: str


class EnvSource(Model):
    """Be where a value comes from; neither when it is a source that is not read here."""

    secret_key_ref: SecretKey | None = None
    field_ref: FieldRef | None = None


class EnvVar(Model):
    """Be a variable: a value with `$(NAME)` in it, or a source."""

    name: str
    value: str = ""
    value_from: EnvSource | None = None


class VolumeMount(Model):
    """Say where a container sees a volume, or the `sub_path` of it."""

    name: str
    mount_path: str
    sub_path: str = ""
    read_only: bool = False


class HttpGet(Model):
    """Ask for a path; `port` is a number or the name of a container port."""

    path: str = "/"
    port: int | str


class TcpSocket(Model):
    """Ask for a connection; `port` is a number or the name of a container port."""

    port: int | str


class Probe(Model):
    """Be how readiness is asked for; neither kind when it is one that is not asked here."""

    http_get: HttpGet | None = None
    tcp_socket: TcpSocket | None = None
    period_seconds: float = 10
    timeout_seconds: float = 1
    failure_threshold: int = 3


class ContainerPort(Model):
    """Give a port a name."""

    name: str = ""
    container_port: int


class Container(Model):
    """Be one container of the spec."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[Tree, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    readiness_probe: Probe | None = None
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"

    @property
    def is_local(self) -> bool:
        """Tell whether its image is one of those that are run here."""
        return self.image.startswith(LOCAL_IMAGES)


class PodSpec(Model):
    """Be what was asked for; a volume is its source under its kind, beside `name`."""

    node_name: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: float = 30
    volumes: tuple[Tree, ...] = ()
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()


class Waiting(Model):
    """Say why a container does not run."""

    reason: str
    message: str = ""


class Running(Model):
    """Say since when a container runs."""

    started_at: Timestamp | None = None


class Terminated(Model):
    """Say how a container ended; a process that a signal ended has 128 and its number."""

    exit_code: int
    reason: str = ""
    message: str = ""
    started_at: Timestamp | None = None
    finished_at: Timestamp | None = None


class ContainerState(Model):
    """Be one of the three, or none for a last state that there is not."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Model):
    """Be what the runner saw of one container."""

    name: str
    image: str = ""
    image_id: str = Field(default="", alias="imageID")
    ready: bool = False
    started: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(Model):
    """Be one condition of a pod, which has no generation and need not have a reason."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_transition_time: Timestamp | None = None


class PodStatus(Model):
    """Be what scheduler and runner wrote."""

    phase: str = ""
    start_time: Timestamp | None = None
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Object):
    """Read a Pod."""

    resource: ClassVar[Resource] = Resource(GroupVersionKind("", "v1", "Pod"), "pods")

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_ours(self) -> bool:
        """Tell whether it has a node, and a container that is run here: then kwok is out."""
        return bool(self.spec.node_name) and any(c.is_local for c in self.spec.containers)

    @property
    def is_finished(self) -> bool:
        """Tell whether nothing of it will run any more."""
        return self.status.phase in {"Succeeded", "Failed"}


def may_be_ours(stored: StoredObject) -> bool:
    """Tell, without reading the pod, whether it is worth reading."""
    return LOCAL_IMAGES.encode() in stored.body
