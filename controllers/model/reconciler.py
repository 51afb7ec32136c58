# SPDX-License-Identifier: Apache-2.0
"""The shell around the pure modules: read, decide, apply, observe, write the status once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from pydantic import ValidationError

from api.flexinfer.v1alpha2.model_status import GPUStatus, ModelStatus
from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model import desired, names, status
from controllers.model.decision import Blocked, claim_of, decide
from controllers.model.pods import living
from controllers.model.ports import reclaim
from controllers.model.rollout import REFUSALS, Rollout
from controllers.model.verdict import Observed
from flexinfer import log
from flexinfer.apply import Applier, LiveClient, StatusWriter
from flexinfer.client.protocol import Patch
from flexinfer.errors import ConflictError, DecodeError, InvalidError, TerminalError
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.node import Node
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.pod import Pod
from flexinfer.kinds.service import Service
from flexinfer.reconcile import Request, Result
from internal.gpu.inventory import gpus_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from controllers.model.decision import Plan
    from flexinfer.apply.reverted import RevertObserver
    from flexinfer.meta.envelope import ObjectMeta, Tree
    from flexinfer.meta.object import Object
    from flexinfer.meta.resource import Resource

    T = TypeVar("T", bound=Object)

_log = log.get_logger(__name__)

PODS_BY_MODEL = "model"
"""Index of the pod informer: namespace/name of the Model that a pod says it belongs to."""


class ModelClient(LiveClient, Protocol):
    """Be a client that has indexes."""

    async def by_index(
        self, kind: type[T], index: str, value: str, *, namespace: str = ""
    ) -> Sequence[T]:
        """Return the objects that an index has under *value*."""


class ModelReconciler:
    """Turn a Model into a Service and a Deployment, and say in its status how it is doing.

    *environment* holds the default images. Never deletes anything: children go with their Model
    by their owner reference. A Model that cannot be scheduled is looked at again every 30
    seconds, one whose child's name is taken every 10, one of which the API server refused a
    child every 5 minutes. A change that a field can never take waits for the Model to change;
    all else is left to the queue's backoff.
    """

    def __init__(
        self,
        client: ModelClient,
        *,
        environment: Mapping[str, str],
        on_reverted: RevertObserver | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._environment = environment
        self._now = now
        self._applier = Applier(client, field_manager=names.FIELD_MANAGER, on_reverted=on_reverted)
        self._status = StatusWriter(
            client, field_manager=names.FIELD_MANAGER, foreign=("lastActiveTime",)
        )

    async def reconcile(self, request: Request) -> Result:
        """Bring one Model nearer to what its spec asks for."""
        try:
            model = await self._client.get(Model, request)
        except DecodeError as error:
            return await self._report_misfit(request, error)
        if model is None:
            self._applier.forget(Model.resource, request)
            self._status.forget(Model.resource, request)
            return Result()
        if model.metadata.deletion_timestamp is not None:
            return Result()
        return await self._reconcile(model)

    async def _reconcile(self, model: Model) -> Result:
        nodes = await self._client.list(Node) if model.gpu_count else ()
        decision = decide(model, nodes, self._environment)
        claim = await self._claim(model)
        rollout = Rollout()
        if not isinstance(decision, Blocked):
            is_claimless = bool(decision.claim) and claim is None
            rollout = await self._apply(model, decision, is_claimless=is_claimless)
        pods = await self._pods(model)
        observed = Observed(
            decision=decision,
            claim=claim,
            deployment=await self._deployment(model),
            pods=pods,
            gpu=await self._gpu(pods) if model.gpu_count else None,
            problem=rollout.problem,
            drift=rollout.drift,
        )
        new = status.compute(model.metadata, model.status, observed, now=self._now())
        await self._status.write(Model.resource, model.metadata, new.wire())
        return rollout.look_again(decision)

    async def _report_misfit(self, request: Request, error: DecodeError) -> Result:
        """Write into the status that the Model does not fit its type, and wait for a change."""
        stored = await self._client.read(Model.resource, request)
        if stored is None or stored.meta.deletion_timestamp is not None:
            return Result()
        _log.warning("the model does not fit its type", field=error.field)
        observed = Observed(decision=Blocked(reason=Reason.INVALID_SPEC, message=str(error)))
        previous = _readable_status(stored.tree(Model.resource))
        new = status.compute(stored.meta, previous, observed, now=self._now())
        await self._status.write(Model.resource, stored.meta, new.wire())
        return Result()

    async def _apply(self, model: Model, plan: Plan, *, is_claimless: bool) -> Rollout:
        """Apply the children; without the claim nothing that would mount it is rolled out."""
        labels = desired.selector(model, await self._deployment(model))
        drift: list[str] = []
        try:
            service = desired.service(model, plan, labels)
            drift += await self._apply_child(model, Service.resource, service)
            if not is_claimless:
                deployment = desired.deployment(model, plan, labels, self._environment)
                drift += await self._apply_child(model, Deployment.resource, deployment)
        except REFUSALS as error:
            return Rollout(drift=tuple(drift), error=error)
        return Rollout(drift=tuple(drift))

    async def _apply_child(self, model: Model, resource: Resource, intent: Tree) -> Sequence[str]:
        """Return the fields that are not what *intent* asks for because they never change."""
        try:
            applied = await self._applier.apply(resource, intent, owner=model)
        except (InvalidError, TerminalError):  # the second when it is known who holds the port
            if not await self._reclaim_ports(model, resource, intent):
                raise
            applied = await self._applier.apply(resource, intent, owner=model)
        return [f"{resource.kind} {path}" for path in applied.drift]

    async def _reclaim_ports(self, model: Model, resource: Resource, intent: Tree) -> bool:
        """Take back ports that somebody renumbered; tell whether there were any."""
        live = await self._client.read(resource, model.key)
        if live is None or not _controls(model.metadata, live.meta):
            return False
        patch = reclaim(live.tree(resource), intent)
        if not patch:
            return False
        _log.info("taking back a port that somebody changed", kind=resource.kind)
        try:
            await self._client.patch(
                resource,
                model.key,
                patch,
                content_type=Patch.JSON,
                field_manager=names.FIELD_MANAGER,
            )
        except InvalidError as error:  # how the API server says that a test failed
            raise ConflictError(f"{resource.kind} {model.key} was changed meanwhile") from error
        return True

    async def _deployment(self, model: Model) -> Deployment | None:
        """Return the Model's own Deployment; one of somebody else counts as none."""
        live = await self._client.get(Deployment, model.key)
        if live is None or not _controls(model.metadata, live.metadata):
            return None
        return live

    async def _claim(self, model: Model) -> PersistentVolumeClaim | None:
        name = claim_of(model)
        if not name:
            return None
        key = Request(model.metadata.namespace, name)
        return await self._client.get(PersistentVolumeClaim, key)

    async def _pods(self, model: Model) -> tuple[Pod, ...]:
        """Return the pods that carry the Model's label and come from its Deployment."""
        found = await self._client.by_index(
            Pod, PODS_BY_MODEL, str(model.key), namespace=model.metadata.namespace
        )
        return tuple(pod for pod in found if _comes_from(model, pod))

    async def _gpu(self, pods: Sequence[Pod]) -> GPUStatus | None:
        """Describe the GPU of the newest pod that was placed."""
        name = next((pod.spec.node_name for pod in living(pods) if pod.spec.node_name), "")
        node = await self._client.get(Node, Request("", name)) if name else None
        gpus = next(iter(gpus_of(node)), None) if node else None
        if gpus is None:
            return None
        return GPUStatus(
            node=name,
            device=gpus.product or None,
            vendor=gpus.vendor.display_name,
            architecture=gpus.architecture or None,
            memory_mb=gpus.memory_mb,
        )


def _controls(owner: ObjectMeta, child: ObjectMeta) -> bool:
    return child.controller is not None and child.controller.uid == owner.uid


def _comes_from(model: Model, pod: Pod) -> bool:
    """Tell whether a ReplicaSet of the Model's Deployment made the pod.

    A ReplicaSet is named after its Deployment and a hash. Reading ReplicaSets would cost one
    more informer to tell the same.
    """
    owner = pod.metadata.controller
    if owner is None or owner.kind != "ReplicaSet":
        return False
    return owner.name.rpartition("-")[0] == model.metadata.name


def _readable_status(tree: Tree) -> ModelStatus:
    """Return the status of an object that does not fit its type, if at least that can be read."""
    try:
        return ModelStatus.model_validate(tree.get("status") or {})
    except ValidationError:
        return ModelStatus()
