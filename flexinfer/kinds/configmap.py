# SPDX-License-Identifier: Apache-2.0
"""ConfigMap of v1, as far as it is read."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource

__all__ = ["ConfigMap"]


class ConfigMap(Object):
    """Read a ConfigMap; the values of `binary_data` are base64."""

    resource: ClassVar[Resource] = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")

    data: dict[str, str] = Field(default_factory=dict)
    binary_data: dict[str, str] = Field(default_factory=dict)
