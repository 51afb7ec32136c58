# SPDX-License-Identifier: Apache-2.0
"""Service of v1, as far as it is read."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, Resource

__all__ = ["Service", "ServicePort", "ServiceSpec"]


class ServicePort(Model):
    """Be one port; `target_port` is a number or the name of a container port."""

    name: str = ""
    port: int
    protocol: str = "TCP"
    target_port: int | str | None = None


class ServiceSpec(Model):
    """Be what was asked for, and the addresses that the API server allocated.

    `cluster_ip` is `None` as a string for a headless service, empty before allocation.
    """

    type: str = "ClusterIP"
    cluster_ip: str = Field(default="", alias="clusterIP")
    cluster_ips: tuple[str, ...] = Field(default=(), alias="clusterIPs")
    selector: dict[str, str] = Field(default_factory=dict)
    ports: tuple[ServicePort, ...] = ()


class Service(Object):
    """Read a Service."""

    resource: ClassVar[Resource] = Resource(GroupVersionKind("", "v1", "Service"), "services")

    spec: ServiceSpec = ServiceSpec()
