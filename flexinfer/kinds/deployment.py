# SPDX-License-Identifier: Apache-2.0
"""Deployment of apps/v1, as far as it is read."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from flexinfer.kinds.condition import ForeignCondition
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, Resource

__all__ = [
    "Deployment",
    "DeploymentSpec",
    "DeploymentStatus",
    "LabelSelector",
    "PodTemplate",
    "TemplateMetadata",
]


class LabelSelector(Model):
    """Be the equality part of a selector; set-based expressions are not read."""

    match_labels: dict[str, str] = Field(default_factory=dict)


class TemplateMetadata(Model):
    """Be the metadata that every pod of the template gets."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class PodTemplate(Model):
    """Be what the pods are made from, without their spec."""

    metadata: TemplateMetadata = TemplateMetadata()


class DeploymentSpec(Model):
    """Be what was asked for; while `paused`, changes of the template reach no pod."""

    replicas: int = 1
    paused: bool = False
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()


class DeploymentStatus(Model):
    """Be what the deployment controller saw; the counts are its own, absent means 0."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[ForeignCondition, ...] = ()


class Deployment(Object):
    """Read a Deployment."""

    resource: ClassVar[Resource] = Resource(
        GroupVersionKind("apps", "v1", "Deployment"), "deployments"
    )

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()
