# SPDX-License-Identifier: Apache-2.0
"""How many replicas a Model is to have now: by who asks for it, and by its turn on the GPUs. Pure.

Without a group the activity alone decides. In one, only the member that leads may have any, and
it starts once the pods of the others are gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controllers.model.activity import Activity, activity
from controllers.model.decision import Blocked
from controllers.model.group import elect
from controllers.model.member import group_of, keeps_loading, member_of
from controllers.model.outlook import Outlook, look_ahead
from controllers.model.standing import stand
from controllers.model.turns import take_turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from api.flexinfer.v1alpha2.model_types import Model
    from controllers.model.activity import Use
    from controllers.model.decision import Plan
    from controllers.model.standing import Standing
    from flexinfer.kinds.deployment import Deployment
    from flexinfer.kinds.pod import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Be what there is of a shared GPU group: its Models, their pods and Deployments."""

    models: tuple[Model, ...]
    pods: tuple[Pod, ...] = ()
    deployments: tuple[Deployment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Be the replicas to ask for now, and how the answer came about.

    `wanted` are those that requests call for. `idle` says why they call for none, `waiting` what
    the Model waits for although it leads its group, `outlook` why it does not lead, and until when.
    `until` is when the answer may change by time alone. `keeps_loading`: its pods go on although
    its weights are made anew. `standing` is None outside of groups, `swapped` is when the Model got
    its GPUs from another one, None if it did not.
    """

    replicas: int
    wanted: int
    idle: str = ""
    waiting: str = ""
    outlook: str = ""
    until: datetime | None = None
    keeps_loading: bool = False
    standing: Standing | None = None
    swapped: datetime | None = None


def demand(
    model: Model, decision: Plan | Blocked, use: Use, group: Group | None, *, now: datetime
) -> Demand:
    """Decide how many replicas the Model has now; *group* is None when it shares no GPUs.

    A Model for which nothing can be rolled out wants none, and stands in its group all the same.
    """
    asked = _asked(model, decision, use, now)
    wanted = asked.replicas
    if group is None:
        return Demand(replicas=wanted, wanted=wanted, idle=asked.because, until=asked.until)
    members = {m.metadata.name: member_of(m) for m in (*group.models, model)}
    election = elect(members.values(), now)
    standing = stand(election, members[model.metadata.name], group_of(model), now)
    outlook = Outlook()
    if not standing.is_active and (wanted or standing.is_preempted):
        outlook = look_ahead(election, members, model.key, now)
    turn = take_turn(
        model.metadata.name,
        wanted if standing.is_active else 0,
        pods=group.pods,
        deployments=group.deployments,
        yields_to=standing.yields_to,
    )
    return Demand(
        replicas=turn.replicas,
        wanted=wanted,
        idle=asked.because,
        waiting=turn.waiting,
        outlook=outlook.text,
        until=_first(asked.until, election.until, outlook.until),
        keeps_loading=keeps_loading(members[model.metadata.name], now),
        standing=standing,
        swapped=max(_losses_to(model.metadata.name, group), default=None),
    )


def _first(*moments: datetime | None) -> datetime | None:
    return min((at for at in moments if at is not None), default=None)


def _losses_to(name: str, group: Group) -> Iterator[datetime]:
    for member in group.models:
        shared = member.status.shared_group
        if shared and shared.preempted_by == name and shared.preempted_at:
            yield shared.preempted_at


def _asked(model: Model, decision: Plan | Blocked, use: Use, now: datetime) -> Activity:
    if isinstance(decision, Blocked):
        return Activity(replicas=0)
    return activity(
        model.key,
        model.spec.serverless,
        use,
        idle_seconds=decision.backend.idle_seconds,
        startup_seconds=decision.startup_seconds,
        now=now,
    )
