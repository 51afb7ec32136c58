# SPDX-License-Identifier: Apache-2.0
"""What the Model controller reads: everything comes from the caches, own writes included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from api.flexinfer.v1alpha2.model_status import GPUStatus
from api.flexinfer.v1alpha2.model_types import Model
from controllers.model.cache_jobs import job_names
from controllers.model.cache_run import Seen
from controllers.model.demand import Group
from controllers.model.member import group_of
from controllers.model.pods import living
from controllers.model.siblings import MODELS_BY_GROUP, PODS_BY_GROUP
from flexinfer.apply import LiveClient
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.job import Job
from flexinfer.kinds.node import Node
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.pod import Pod
from flexinfer.reconcile import Request
from internal.gpu.inventory import gpus_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controllers.model.cache import Cache
    from flexinfer.meta.envelope import ObjectMeta
    from flexinfer.meta.object import Object

    T = TypeVar("T", bound=Object)

PODS_BY_MODEL = "model"
"""Index of the pod informer: namespace/name of the Model that a pod says it belongs to."""


class ModelClient(LiveClient, Protocol):
    """Be a client that has indexes."""

    async def by_index(
        self, kind: type[T], index: str, value: str, *, namespace: str = ""
    ) -> Sequence[T]:
        """Return the objects that an index has under *value*."""


class Lookup:
    """Find what belongs to a Model."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    async def nodes(self, model: Model) -> Sequence[Node]:
        """Return the nodes, if they have a say in where the Model runs."""
        return await self._client.list(Node) if model.is_placed_by_nodes else ()

    async def deployment(self, model: Model) -> Deployment | None:
        """Return the Model's own Deployment; one of somebody else counts as none."""
        live = await self._client.get(Deployment, model.key)
        return live if live is not None and controls(model.metadata, live.metadata) else None

    async def claim(self, model: Model, name: str) -> PersistentVolumeClaim | None:
        """Return a claim of the Model's namespace; None without a name."""
        key = Request(model.metadata.namespace, name)
        return await self._client.get(PersistentVolumeClaim, key) if name else None

    async def cache(self, model: Model, cache: Cache, pods: Sequence[Pod]) -> Seen:
        """Return what there is of the Model's cache; *pods* are all that carry its label."""
        keys = (Request(model.metadata.namespace, name) for name in job_names(model))
        jobs = [await self._client.get(Job, key) for key in keys]
        return Seen(
            claim=await self.claim(model, cache.claim),
            source_claim=await self.claim(model, cache.source_claim),
            jobs=tuple(j for j in jobs if j and controls(model.metadata, j.metadata)),
            pods=tuple(pods),
            previous=model.status,
        )

    async def pods(self, model: Model) -> Sequence[Pod]:
        """Return all pods that carry the Model's label, those of its Jobs included."""
        return await self._client.by_index(
            Pod, PODS_BY_MODEL, str(model.key), namespace=model.metadata.namespace
        )

    async def group(self, model: Model, *, is_live: bool = False) -> Group | None:
        """Return what there is of the Model's shared GPU group, None when it is in none.

        With *is_live* the Deployments are read from the API server: a write whose answer was
        lost is in no cache yet.
        """
        name, namespace = group_of(model), model.metadata.namespace
        if not name:
            return None
        key = str(Request(namespace, name))
        models = await self._client.by_index(Model, MODELS_BY_GROUP, key, namespace=namespace)
        pods = list(await self._client.by_index(Pod, PODS_BY_GROUP, key, namespace=namespace))
        for member in models:  # one that has just joined may have pods without the group's label
            pods += await self.pods(member)
            if is_live:
                await self._client.live_read(Deployment.resource, member.key)
        deployments = [await self.deployment(member) for member in models]
        return Group(
            models=tuple(models),
            pods=tuple({pod.metadata.uid: pod for pod in pods}.values()),
            deployments=tuple(d for d in deployments if d is not None),
        )

    async def gpu(self, pods: Sequence[Pod]) -> GPUStatus | None:
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


def controls(owner: ObjectMeta, child: ObjectMeta) -> bool:
    """Tell whether *child* is controlled by *owner*, and not by an earlier one of its name."""
    return child.controller is not None and child.controller.uid == owner.uid


def serving(model: Model, pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """Return the pods that a ReplicaSet of the Model's Deployment made.

    A ReplicaSet is named after its Deployment and a hash. Reading ReplicaSets would cost one
    more informer to tell the same.
    """
    return tuple(
        pod
        for pod in pods
        if (owner := pod.metadata.controller) is not None
        and owner.kind == "ReplicaSet"
        and owner.name.rpartition("-")[0] == model.metadata.name
    )
