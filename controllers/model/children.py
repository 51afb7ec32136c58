# SPDX-License-Identifier: Apache-2.0
"""What the Model controller writes beside the status: its children, each brought to its intent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import cache_claim, desired, names
from controllers.model.lookup import controls
from controllers.model.ports import reclaim
from controllers.model.standing import active_services
from flexinfer import log
from flexinfer.apply import Applier
from flexinfer.apply.leftovers import clear_leftover, is_leftover
from flexinfer.client.protocol import Patch
from flexinfer.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    NotOursError,
    TerminalError,
)
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.job import Job
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.service import Service
from flexinfer.reconcile import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from controllers.model.decision import Plan
    from controllers.model.demand import Demand
    from controllers.model.lookup import ModelClient
    from flexinfer.apply import Applied
    from flexinfer.apply.reverted import RevertObserver
    from flexinfer.meta.envelope import ObjectMeta, Tree
    from flexinfer.meta.resource import NamespacedName, Resource

_log = log.get_logger(__name__)

# Seconds until a claim that could not grow is asked again: its class may allow it by then.
_GROW_AGAIN = 300.0


class _Growth(NamedTuple):
    """Be a growth that was refused: of which claim, for which spec, why, and when."""

    uid: str
    generation: int
    note: str
    at: float

    def holds(self, live: PersistentVolumeClaim, generation: int) -> bool:
        """Tell whether asking again would only be refused again."""
        is_same = (self.uid, self.generation) == (live.metadata.uid, generation)
        return is_same and time.monotonic() - self.at < _GROW_AGAIN


class Children:
    """Apply the Service, the Deployment, the claim and the Jobs of Models.

    Each method returns the immutable fields that are not what was asked for, and raises what the
    Applier raises. *environment* is the manager's.
    """

    def __init__(
        self,
        client: ModelClient,
        *,
        environment: Mapping[str, str],
        on_reverted: RevertObserver | None,
    ) -> None:
        self._client = client
        self._environment = environment
        self._applier = Applier(client, field_manager=names.FIELD_MANAGER, on_reverted=on_reverted)
        self._refused_growth: dict[NamespacedName, _Growth] = {}

    def forget(self, key: NamespacedName) -> None:
        """Drop what is remembered of the children of a Model that is gone."""
        self._applier.forget(Model.resource, key)
        # What is retained has no owner, so it is remembered by its own name.
        claim = Request(key.namespace, names.made_claim(key.name))
        self._applier.forget(PersistentVolumeClaim.resource, claim)
        self._refused_growth.pop(key, None)

    async def service(
        self, model: Model, plan: Plan, live: Deployment | None, demand: Demand
    ) -> Sequence[str]:
        """Apply the Service; *live* is the Deployment, whose selector it follows."""
        standing = demand.standing
        active = active_services(model, is_active=standing.is_active) if standing else None
        labels = desired.selector(model, live)
        intent = desired.service(model, plan, labels, active=active)
        return await self._apply_ports(model, Service.resource, intent)

    async def deployment(self, model: Model, plan: Plan, live: Deployment | None) -> Sequence[str]:
        """Apply the Deployment."""
        labels = desired.selector(model, live)
        intent = desired.deployment(model, plan, labels, self._environment)
        if plan.keeps_template:
            # What we hold and leave out of an apply would go, so the live one is said again.
            stored = await self._client.read(Deployment.resource, model.key)
            tree = stored.tree(Deployment.resource) if stored else {"spec": {}}
            intent["spec"]["template"] = tree["spec"].get("template")
        return await self._apply_ports(model, Deployment.resource, intent)

    async def park(self, model: Model) -> None:
        """End the pods of a Model that has lost its GPUs, although its spec cannot be applied.

        A merge patch: an apply of this one field would give up all the others.
        """
        _log.info("ending the pods of a model that cannot be rolled out")
        await self._client.patch(
            Deployment.resource,
            model.key,
            {"spec": {"replicas": 0}},
            content_type=Patch.MERGE,
            field_manager=names.FIELD_MANAGER,
        )

    async def job(self, model: Model, intent: Tree) -> None:
        """Apply a Job; one that has ended and was to do something else is made anew."""
        await self._applier.apply(Job.resource, intent, owner=model)

    async def end_jobs(self, jobs: Iterable[Job]) -> None:
        """Delete Jobs and their pods."""
        for job in jobs:
            _log.info("deleting a job that is not wanted any more", job=job.metadata.name)
            try:
                await self._client.delete(Job.resource, job.key, uid=job.metadata.uid)
            except NotFoundError:
                continue

    async def claim(self, model: Model, name: str) -> tuple[Sequence[str], str]:
        """Apply the claim made for the Model; return the drift, and what keeps it from growing.

        Raises NotOursError for a claim that was not made for this Model.
        """
        key = Request(model.metadata.namespace, name)
        live = await self._live_claim(model, key)
        if live is not None and live.deletion_timestamp is not None:
            return (), ""  # nothing can be changed in what is about to go
        if live is not None:
            await self._hand_over(model, live)
        found = await self._client.get(PersistentVolumeClaim, key)
        size, note = self._size_to_keep(model, found)
        if not note:
            try:
                return await self._apply_claim(model, cache_claim.claim(model, name)), ""
            except (ForbiddenError, InvalidError) as error:
                if not size or found is None:
                    raise
                note = f"PersistentVolumeClaim {name} cannot grow: {error}"
                growth = _Growth(
                    found.metadata.uid, model.metadata.generation, note, time.monotonic()
                )
                self._refused_growth[model.key] = growth
        return await self._apply_claim(model, cache_claim.claim(model, name, size=size)), note

    async def _live_claim(self, model: Model, key: NamespacedName) -> ObjectMeta | None:
        """Return the claim of that name, once what an earlier Model left behind is deleted."""
        resource = PersistentVolumeClaim.resource
        live = await self._client.read(resource, key)
        if live is not None and is_leftover(live.meta, model):
            live = await self._client.live_read(resource, key)
            if live is not None and is_leftover(live.meta, model):
                await clear_leftover(self._client, resource, live.meta, owner=model)
                live = await self._client.read(resource, key)
        return live.meta if live is not None else None

    def _size_to_keep(self, model: Model, live: PersistentVolumeClaim | None) -> tuple[str, str]:
        """Return the size of the claim, and why it is not to be asked to grow now, if so."""
        if live is None:
            return "", ""
        size = live.spec.resources.requests.get("storage", "")
        refused = self._refused_growth.get(model.key)
        if refused is not None and refused.holds(live, model.metadata.generation):
            return size, refused.note
        return size, cache_claim.unbound_growth_note(model, live)

    async def _apply_ports(self, model: Model, resource: Resource, intent: Tree) -> Sequence[str]:
        """Apply what has ports; those that somebody renumbered are taken back first."""
        try:
            applied = await self._applier.apply(resource, intent, owner=model)
        except (InvalidError, TerminalError):  # the second when it is known who holds the port
            if not await self._reclaim_ports(model, resource, intent):
                raise
            applied = await self._applier.apply(resource, intent, owner=model)
        return _drift(resource, applied)

    async def _apply_claim(self, model: Model, intent: Tree) -> Sequence[str]:
        resource = PersistentVolumeClaim.resource
        owner = None if cache_claim.is_retained(model) else model
        return _drift(resource, await self._applier.apply(resource, intent, owner=owner))

    async def _hand_over(self, model: Model, live: ObjectMeta) -> None:
        """Make the Model the owner of its claim, or no longer, as `spec.cache.retain` says."""
        if text := cache_claim.refusal(model, live):
            raise NotOursError(text)
        patch = cache_claim.handover(model, live)
        if not patch:
            return
        # Remembered with the owner it had, its next apply would be taken for a no-op.
        self._applier.forget(Model.resource, model.key)
        self._applier.forget(PersistentVolumeClaim.resource, live.key)
        await self._patch(PersistentVolumeClaim.resource, live.key, patch)

    async def _reclaim_ports(self, model: Model, resource: Resource, intent: Tree) -> bool:
        """Take back ports that somebody renumbered; tell whether there were any."""
        live = await self._client.read(resource, model.key)
        if live is None or not controls(model.metadata, live.meta):
            return False
        patch = reclaim(live.tree(resource), intent)
        if patch:
            _log.info("taking back a port that somebody changed", kind=resource.kind)
            await self._patch(resource, model.key, patch)
        return bool(patch)

    async def _patch(self, resource: Resource, key: NamespacedName, patch: list[Tree]) -> None:
        try:
            await self._client.patch(
                resource,
                key,
                patch,
                content_type=Patch.JSON,
                field_manager=names.FIELD_MANAGER,
            )
        except InvalidError as error:  # how the API server says that a test failed
            raise ConflictError(f"{resource.kind} {key} was changed meanwhile") from error


def _drift(resource: Resource, applied: Applied) -> Sequence[str]:
    return [f"{resource.kind} {path}" for path in applied.drift]
