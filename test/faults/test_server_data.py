# SPDX-License-Identifier: Apache-2.0
"""Data that is legal for the server and unexpected for a model: null, unknown, invalid."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, ClassVar

import anyio
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.builder import controller_for
from flexinfer.cache.informers import Informers
from flexinfer.client.protocol import Patch
from flexinfer.crd.generate import crd_for
from flexinfer.crd.markers import resource
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import Footprint
from flexinfer.errors import DecodeError
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.envelope import decode_tree
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource
from flexinfer.reconcile import Request, Result
from hack.faultcases import Case, bounded, running

if TYPE_CHECKING:
    from flexinfer.client.protocol import Client
    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree

CSI_NODES = Resource(
    GroupVersionKind("storage.k8s.io", "v1", "CSINode"), "csinodes", namespaced=False
)
EVENTS = Resource(GroupVersionKind("events.k8s.io", "v1", "Event"), "events")


class ParcelSpec(Model):
    """What a parcel is, as far as this version knows."""

    size: int = 0
    """How large it is."""


@resource(group="data.example.com", version="v1", plural="parcels", status=False)
class Parcel(Object):
    """An object that a newer version knows more of, and an older one allowed more."""

    resource: ClassVar[Resource]
    spec: ParcelSpec = ParcelSpec()
    """What it is."""


def install(plane: ControlPlane, crd: Tree) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    plane.admin.apply(f"{path}/{crd['metadata']['name']}", crd)
    plane.wait_established(crd["metadata"]["name"])


def spec_schema(crd: Tree) -> Tree:
    (version,) = crd["spec"]["versions"]
    schema: Tree = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


@pytest.fixture
def newer(fault_plane: ControlPlane) -> str:
    """Serve Parcels with a field that the model does not know."""
    crd = copy.deepcopy(crd_for(Parcel))
    spec_schema(crd)["properties"]["future"] = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    install(fault_plane, crd)
    return Parcel.resource.plural


async def test_c40_null_where_a_list_was_expected_does_not_harm_an_informer(case: Case) -> None:
    admin, name = case.plane.admin, case.namespace
    node = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name}}
    admin.create("/apis/storage.k8s.io/v1/csinodes", node | {"spec": {"drivers": None}})
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "without-a-time"},
        "involvedObject": {"namespace": name},
    }
    admin.create(case.path(plural="events"), event)
    async with case.transport() as transport:
        informers = Informers(transport)
        nodes, events = informers.informer(CSI_NODES), informers.informer(EVENTS)
        async with anyio.create_task_group() as group:
            await group.start(informers.run)
            await informers.wait_synced(30)
            await eventually(lambda: open_watches(case) == 2)
            before = Footprint.take(case.proxy)
            found = nodes.get(NamespacedName("", name))
            assert found is not None
            assert decode_tree(found.body)["spec"]["drivers"] is None
            timeless = events.get(NamespacedName(name, "without-a-time"))
            assert timeless is not None
            assert decode_tree(timeless.body)["eventTime"] is None
            admin.merge(f"/apis/storage.k8s.io/v1/csinodes/{name}", labelled("later"))
            await eventually(
                lambda: labels_of(nodes.get(NamespacedName("", name))) == {"l": "later"}
            )
            assert nodes.health() is None
            bounded(case.proxy.traffic, total=6, per_second=6)
            await case.leaves_nothing(before)
            group.cancel_scope.cancel()
    admin.delete(f"/apis/storage.k8s.io/v1/csinodes/{name}")


def open_watches(case: Case) -> int:
    return sum(exchange.is_open for exchange in case.proxy.traffic.watches())


def labelled(value: str) -> Tree:
    return {"metadata": {"labels": {"l": value}}}


def labels_of(item: object) -> object:
    return getattr(getattr(item, "meta", None), "labels", None)


class Growing:
    """Read each Parcel as a model, make it one larger, and write it back in every way there is."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.sizes: list[int] = []
        self.misfits: dict[str, str] = {}

    async def reconcile(self, request: Request) -> Result:
        if request.namespace != self.namespace:
            return Result()
        try:
            parcel = await self.client.get(Parcel, request)
        except DecodeError as error:
            self.misfits[request.name] = error.field
            raw = await self.client.read(Parcel.resource, request)
            assert raw is not None
            return Result()
        if parcel is None or parcel.spec.size >= 2:
            return Result()
        self.sizes.append(parcel.spec.size)
        grown = ParcelSpec(size=parcel.spec.size + 1).wire()
        metadata = {"name": request.name, "namespace": request.namespace}
        if parcel.spec.size == 0:
            intent = {"metadata": metadata, "spec": grown}
            await self.client.apply(Parcel.resource, intent, field_manager="growing")
        else:
            patch = {"spec": grown}
            await self.client.patch(
                Parcel.resource,
                request,
                patch,
                content_type=Patch.MERGE,
                field_manager="growing",
            )
        return Result()


def parcel(name: str, spec: Tree) -> Tree:
    head = {"apiVersion": "data.example.com/v1", "kind": "Parcel"}
    return head | {"metadata": {"name": name}, "spec": spec}


async def test_c40_fields_that_the_model_does_not_know_survive_a_write(
    case: Case, newer: str
) -> None:
    assert newer
    collection = Parcel.resource.collection_path(case.namespace)
    future = {"of": ["our", "own"], "large": 2**53 + 1}
    case.plane.admin.create(collection, parcel("old", {"size": 0, "future": future}))
    options = ManagerOptions(metrics_address="0", probe_address="0", grace=10, signals=())
    async with case.transport() as transport:
        manager = Manager(transport, options=options, registry=CollectorRegistry())
        reconciler = Growing(manager.client, case.namespace)
        controller_for(manager, Parcel).complete(reconciler)
        async with running(manager):
            await eventually(lambda: reconciler.sizes == [0, 1])
            path = f"{collection}/old"
            await eventually(lambda: case.plane.admin.get(path)["spec"]["size"] == 2)
            assert case.plane.admin.get(path)["spec"] == {"size": 2, "future": future}
            bounded(case.proxy.traffic.writes(path), total=2, per_second=2)


async def test_c40_an_object_that_no_longer_fits_reaches_its_reconciler(case: Case) -> None:
    older = copy.deepcopy(crd_for(Parcel))
    spec_schema(older)["properties"]["size"] = {"x-kubernetes-int-or-string": True}
    install(case.plane, older)
    collection = Parcel.resource.collection_path(case.namespace)
    admin = case.plane.admin
    await eventually(lambda: admin.create(collection, parcel("misfit", {"size": "large"})))
    install(case.plane, crd_for(Parcel))
    admin.create(collection, parcel("fits", {"size": 1}))
    options = ManagerOptions(metrics_address="0", probe_address="0", grace=10, signals=())
    async with case.transport() as transport:
        manager = Manager(transport, options=options, registry=CollectorRegistry())
        reconciler = Growing(manager.client, case.namespace)
        controller_for(manager, Parcel).complete(reconciler)
        async with running(manager):
            await eventually(lambda: reconciler.misfits == {"misfit": "spec.size"})
            await eventually(lambda: reconciler.sizes == [1])
            assert manager.readyz.report().healthy
            # It is one object's trouble: the next event of it is delivered like any other.
            reconciler.misfits.clear()
            admin.merge(f"{collection}/misfit", {"spec": {"size": 2}})
            await eventually(lambda: admin.get(f"{collection}/misfit")["spec"]["size"] == 2)
            assert reconciler.misfits == {}
            bounded(case.proxy.traffic, total=20, per_second=20)
