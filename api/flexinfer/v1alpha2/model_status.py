# SPDX-License-Identifier: Apache-2.0
"""What the controller, and later the proxy, observed of a Model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StringConstraints, ValidationError, WrapValidator

from api.flexinfer.v1alpha2.model_spec import CacheStrategy
from api.flexinfer.v1alpha2.reasons import LoadingSubstage, Phase
from flexinfer.crd.markers import ListMap
from flexinfer.meta.condition import Condition, Timestamp
from flexinfer.meta.object import Model

if TYPE_CHECKING:
    from datetime import datetime

    from pydantic import ValidatorFunctionWrapHandler

Name = Annotated[str, StringConstraints(max_length=253)]
Text = Annotated[str, StringConstraints(max_length=1024)]


def _read_time(value: object, read: ValidatorFunctionWrapHandler) -> datetime | None:
    """Take for never what cannot be read: the API server lets in times that UTC has no year for."""
    try:
        time: datetime | None = read(value)
    except ValidationError:
        return None
    return time


class GPUStatus(Model):
    """Say where the Model runs, or ran last."""

    node: Name | None = None
    """Node of the newest replica that was placed."""

    device: Name | None = None
    """Product name of the GPU."""

    vendor: Name | None = None
    """NVIDIA or AMD."""

    architecture: Name | None = None
    """GPU architecture, such as sm_90 or gfx942."""

    memory_mb: int | None = Field(default=None, ge=0, le=2147483647, alias="memoryMB")
    """Memory of one GPU in MB."""


class SharedGroupStatus(Model):
    """Say how the Model stands in its shared GPU group."""

    group_name: Name | None = None
    """The group."""

    state: Name | None = None
    """Active for the leader, Preempted for who has lost the GPUs to another, else Queued."""

    queue_position: int | None = Field(default=None, ge=0, le=2147483647)
    """Place in the queue; 0 for the leader."""

    preempted_by: Name | None = None
    """The Model that leads, for all others."""

    preempted_at: Timestamp | None = None
    """When the GPUs were lost last; kept until the Model is Ready again."""

    failed_at: Timestamp | None = None
    """When the Model could not start although it was its turn. Others go first for ten minutes
    from then, or until its spec changes."""


class CacheStatus(Model):
    """Say where the weights are kept and whether they are there."""

    strategy: CacheStrategy | None = None
    """The strategy in effect."""

    ready: bool = False
    """Whether replicas can start from it."""

    pvc_name: Name | None = None
    """The claim that is mounted."""

    job_name: Name | None = None
    """The Job that fills the claim."""

    job_phase: Name | None = None
    """Pending, Running, Succeeded or Failed."""

    message: Text | None = None
    """What the Job said last."""

    size_bytes: int | None = Field(default=None, ge=0)
    """Size of the weights."""


class ModelStatus(Model):
    """Say how the Model is doing."""

    phase: Phase | None = None
    """Idle, Pending, Loading, Ready, Preempted or Failed."""

    observed_generation: int | None = Field(default=None, ge=0)
    """The generation of the spec that this status speaks of."""

    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = Field(default=(), max_length=16)
    """Ready, Schedulable and Cached, and ImmutableFieldDrift when a change cannot take effect.
    Ready says what is wrong."""

    endpoint: Text | None = None
    """URL of the Model inside the cluster."""

    gpu: GPUStatus | None = None
    """Where the Model runs, or ran last."""

    last_active_time: Annotated[Timestamp | None, WrapValidator(_read_time)] = None
    """When a client asked for the Model last."""

    shared_group: SharedGroupStatus | None = None
    """How the Model stands in its shared GPU group."""

    cache: CacheStatus | None = None
    """Where the weights are kept."""

    loading_substage: LoadingSubstage | None = None
    """What the newest replica is at while the Model is loading."""

    loading_progress_at: Timestamp | None = None
    """When the substage last changed."""

    message: Text | None = None
    """The message of Ready in short."""


def read_status(value: object) -> ModelStatus:
    """Read a status; one that another version wrote counts as none, to be computed anew."""
    try:
        return ModelStatus.model_validate(value)
    except ValidationError:
        return ModelStatus()
