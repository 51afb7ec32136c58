# SPDX-License-Identifier: Apache-2.0
"""Members of a shared group, with their times in seconds before NOW."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model.member import GroupState, Member
from hack.modelcases import NOW

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree


def ago(seconds: float) -> datetime:
    """Return the time so many seconds before NOW."""
    return NOW - timedelta(seconds=seconds)


def member(
    name: str,
    priority: int = 100,
    asked: float | None = None,
    *,
    preempted: float | None = None,
    cooldown: float | None = None,
    **more: object,
) -> Member:
    """Return a member that is idle unless told otherwise; all times are seconds."""
    values: Tree = {"phase": Phase.IDLE, **more}
    return Member(
        name=name,
        priority=priority,
        last_active=None if asked is None else ago(asked),
        preempted_at=None if preempted is None else ago(preempted),
        cooldown=None if cooldown is None else timedelta(seconds=cooldown),
        **values,
    )


def leads(name: str, priority: int = 100, asked: float | None = None, **more: object) -> Member:
    """Return one that leads by its status, and is ready unless told otherwise."""
    values: Tree = {"state": GroupState.ACTIVE, "phase": Phase.READY, **more}
    return member(name, priority, asked, **values)
