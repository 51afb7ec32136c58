# SPDX-License-Identifier: Apache-2.0
"""PersistentVolumeClaim of v1, as far as it is read."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from flexinfer.kinds.condition import ForeignCondition
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, Resource

__all__ = ["ClaimResources", "ClaimSpec", "ClaimStatus", "PersistentVolumeClaim"]


class ClaimResources(Model):
    """Be the amount of storage asked for, under the key `storage`."""

    requests: dict[str, str] = Field(default_factory=dict)


class ClaimSpec(Model):
    """Be what was asked for; `volume_name` is empty until the claim is bound.

    `storage_class_name` None asks for the cluster's default, the empty string for none.
    """

    access_modes: tuple[str, ...] = ()
    resources: ClaimResources = ClaimResources()
    storage_class_name: str | None = None
    volume_name: str = ""


class ClaimStatus(Model):
    """Be what the volume controller saw; `phase` is Pending, Bound or Lost."""

    phase: str = ""
    capacity: dict[str, str] = Field(default_factory=dict)
    conditions: tuple[ForeignCondition, ...] = ()


class PersistentVolumeClaim(Object):
    """Read a PersistentVolumeClaim."""

    resource: ClassVar[Resource] = Resource(
        GroupVersionKind("", "v1", "PersistentVolumeClaim"), "persistentvolumeclaims"
    )

    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def is_bound(self) -> bool:
        """Tell whether there is a volume for pods to mount."""
        return self.status.phase == "Bound"
