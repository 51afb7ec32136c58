# SPDX-License-Identifier: Apache-2.0
"""How one Model stands in its group, by the election and by how it stood before. Pure.

The winner claims first: its status says Active. Only then an incumbent that runs yields, so at
every moment between somebody is Active, and elections come to the same leader: an incumbent that
failed, say, cannot win by having yielded. For that moment two are Active; never do both have
pods, of which `turns` makes sure.

Whoever sees that another leads names it in `preemptedBy`. That is a change of a status, which
wakes the others: so a leader that time alone has chosen hears of it, whoever woke first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_status import SharedGroupStatus
from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model.member import SECOND_CHANCE, GroupState, after

if TYPE_CHECKING:
    from datetime import datetime

    from api.flexinfer.v1alpha2.model_types import Model
    from controllers.model.group import Election
    from controllers.model.member import Member

_HAD_PODS = {Phase.READY, Phase.LOADING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Be how a Model stands in its group.

    Only an Active one may have replicas; one that `yields_to` another starts no new ones.
    `lost_to` names the Model that has just taken the GPUs from it, which is worth an event. Both
    are empty for none.
    """

    status: SharedGroupStatus
    lost_to: str = ""

    @property
    def is_active(self) -> bool:
        """Tell whether it may have replicas when its turn comes."""
        return self.status.state == GroupState.ACTIVE

    @property
    def is_preempted(self) -> bool:
        """Tell whether it had the GPUs, lost them, and has not got them back."""
        return self.status.state == GroupState.PREEMPTED

    @property
    def yields_to(self) -> str:
        """Return who will lead as soon as it hears of it, if this one is Active until then."""
        return (self.status.preempted_by or "") if self.is_active else ""

    def with_phase(self, phase: Phase) -> SharedGroupStatus:
        """Return what to write beside *phase*: a leader that is Ready again forgets its loss."""
        if phase is Phase.READY and self.is_active and not self.yields_to:
            return self.status.model_copy(update={"preempted_at": None, "failed_at": None})
        return self.status

    def with_failure(self, shared: SharedGroupStatus, now: datetime) -> SharedGroupStatus:
        """Return *shared* for a Model that does not come up: the others go first for a while."""
        failed = shared.failed_at
        if not self.is_active or (failed is not None and now < after(failed, SECOND_CHANCE)):
            return shared
        return shared.model_copy(update={"failed_at": now})


def stand(election: Election, member: Member, group: str, now: datetime) -> Standing:
    """Say how *member*, one of those that the election was among, stands in *group*.

    `preemptedAt` is when it last lost the GPUs; it stays until the Model is Ready again, and
    starts the group's cooldown.
    """
    is_leader = member.name == election.leader
    is_lost = not is_leader and _loses(election, member)
    return Standing(
        status=SharedGroupStatus(
            group_name=group,
            state=_state(election, member, is_lost=is_lost),
            queue_position=election.order.index(member.name),
            preempted_by=None if is_leader else election.leader,
            preempted_at=now if is_lost else member.preempted_at,
            failed_at=member.failed_at,
        ),
        lost_to=election.leader if is_lost else "",
    )


def active_services(model: Model, *, is_active: bool) -> str:
    """Return the groups of names that the Model answers for now, comma-joined.

    Empty for all but the Active one: routers would take a missing annotation for all of them.
    """
    return ",".join(sorted(model.spec.service_labels)) if is_active else ""


def _loses(election: Election, member: Member) -> bool:
    """Tell whether it had the GPUs up to now; one that was never elected may have had them."""
    if member.is_active:
        return election.is_claimed and member.is_running
    return not member.state and member.phase in _HAD_PODS


def _state(election: Election, member: Member, *, is_lost: bool) -> GroupState:
    if member.name == election.leader:
        return GroupState.ACTIVE
    if is_lost or member.state == GroupState.PREEMPTED:
        return GroupState.PREEMPTED
    if member.is_active and member.is_running and not election.is_claimed:
        return GroupState.ACTIVE
    return GroupState.QUEUED
