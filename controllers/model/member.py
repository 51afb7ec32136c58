# SPDX-License-Identifier: Apache-2.0
"""What the election of a shared GPU group reads of a Model. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_spec import ServerlessSpec
from api.flexinfer.v1alpha2.reasons import Phase
from flexinfer.errors import ConfigurationError
from internal.backends.registry import find_backend

if TYPE_CHECKING:
    from api.flexinfer.v1alpha2.model_types import Model

DEMAND = timedelta(minutes=2)
"""How long after a request a Model counts as asked for."""

RECENT = timedelta(minutes=5)
"""How long after a request a Model that is not up yet goes before the others."""

SECOND_CHANCE = timedelta(minutes=10)
"""How long a Model that could not start lets others go first, unless its spec changes."""

_LATEST = datetime.max.replace(tzinfo=UTC)
# Seconds: no longer than this is a start waited for, whatever a config says that is reported wrong.
_LONGEST_START = 86400.0

_RUNNING = {Phase.READY, Phase.LOADING, Phase.PENDING, Phase.FAILED}


class GroupState(StrEnum):
    """Say how a Model stands in its group, in `status.sharedGroup.state`."""

    ACTIVE = "Active"
    QUEUED = "Queued"
    PREEMPTED = "Preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Be what the election reads of a Model.

    `is_cached` says that its weights are where replicas can start from; `cold_start` how long it
    may take to come up; `cooldown` is its own `swapCooldown`. `failed_at` is when it could not
    start with its present spec, and `is_out`, which `at` sets, whether that still counts. `phase`,
    `state` and `preempted_at` are those of its last status.
    """

    name: str
    priority: int = 100
    is_forced: bool = False
    is_warm: bool = False
    is_cached: bool = True
    is_deleting: bool = False
    phase: Phase | None = None
    state: str = ""
    last_active: datetime | None = None
    preempted_at: datetime | None = None
    failed_at: datetime | None = None
    is_out: bool = False
    cooldown: timedelta | None = None
    cold_start: timedelta = timedelta(0)

    @property
    def is_active(self) -> bool:
        """Tell whether it leads by its status."""
        return self.state == GroupState.ACTIVE

    @property
    def is_running(self) -> bool:
        """Tell whether it has pods, or would have some by now if nothing were in the way."""
        return self.phase in _RUNNING

    @property
    def can_serve(self) -> bool:
        """Tell whether it would come up if it had the GPUs, as far as is known."""
        return self.is_cached and self.phase is not Phase.FAILED and not self.is_out

    def at(self, now: datetime) -> Member:
        """Return the member as it is *now*."""
        is_out = self.failed_at is not None and now < after(self.failed_at, SECOND_CHANCE)
        return self if is_out == self.is_out else replace(self, is_out=is_out)

    @property
    def patience(self) -> timedelta:
        """Return how long after a request it may be starting."""
        return max(RECENT, self.cold_start)

    def was_asked_within(self, window: timedelta, now: datetime) -> bool:
        """Tell whether a request came so lately; one that a clock puts into the future did."""
        return self.last_active is not None and now < after(self.last_active, window)


def group_of(model: Model) -> str:
    """Return the name of the Model's group, empty for none."""
    return (model.spec.gpu and model.spec.gpu.shared) or ""


def member_of(model: Model) -> Member:
    """Read a Model; how it stood in another group does not count."""
    gpu, status = model.spec.gpu, model.status
    shared = status.shared_group
    if shared is not None and shared.group_name != group_of(model):
        shared = None
    cooldown = gpu.swap_cooldown if gpu else None
    return Member(
        name=model.metadata.name,
        priority=gpu.priority if gpu else 0,
        is_forced=gpu is not None and gpu.force_promotion,
        is_warm=model.wanted_replicas > 0,
        is_cached=status.cache is not None and status.cache.ready,
        is_deleting=model.metadata.deletion_timestamp is not None,
        phase=status.phase,
        state=(shared and shared.state) or "",
        last_active=status.last_active_time,
        preempted_at=shared.preempted_at if shared else None,
        failed_at=shared.failed_at if shared and _is_told_of_now(model) else None,
        cooldown=None if cooldown is None else timedelta(seconds=cooldown.seconds),
        cold_start=timedelta(seconds=_start_seconds(model)),
    )


def _is_told_of_now(model: Model) -> bool:
    return model.status.observed_generation == model.metadata.generation


def keeps_loading(member: Member, now: datetime) -> bool:
    """Tell whether its pods are to go on loading, even while its cache is made anew."""
    return (
        member.is_active
        and member.phase is Phase.LOADING
        and member.was_asked_within(member.patience, now)
    )


def after(moment: datetime, length: timedelta) -> datetime:
    """Add, as far as the calendar goes: anybody may have written *moment*."""
    try:
        return moment + length
    except OverflowError:
        return _LATEST


def _start_seconds(model: Model) -> float:
    at_least = (model.spec.serverless or ServerlessSpec()).cold_start_timeout.seconds
    backend = find_backend(model.spec.backend)
    try:
        budget = backend.startup_budget(model.spec.config, at_least=at_least) if backend else 0
    except ConfigurationError:
        budget = 0  # the Model's own reconcile reports what its config lacks
    return min(max(budget, at_least), _LONGEST_START)
