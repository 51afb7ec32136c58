# SPDX-License-Identifier: Apache-2.0
"""Namespace of v1, as far as it is read."""

from __future__ import annotations

from typing import ClassVar

from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, Resource

__all__ = ["Namespace", "NamespaceStatus"]


class NamespaceStatus(Model):
    """Be what the namespace controller saw; `phase` is Active or Terminating."""

    phase: str = ""


class Namespace(Object):
    """Read a Namespace."""

    resource: ClassVar[Resource] = Resource(
        GroupVersionKind("", "v1", "Namespace"), "namespaces", namespaced=False
    )

    status: NamespaceStatus = NamespaceStatus()
