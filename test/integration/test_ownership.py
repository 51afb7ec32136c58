# SPDX-License-Identifier: Apache-2.0
"""Owners that cannot be, and what to do instead; owners that are not the same any more."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

import anyio
import pytest

from flexinfer import finalizers
from flexinfer.apply import Applier
from flexinfer.builder import controller_for
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.errors import ConfigurationError, NotFoundError
from flexinfer.finalizers import Stage
from flexinfer.kinds.namespace import Namespace
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.envelope import meta_from
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource
from flexinfer.metrics import Registry
from flexinfer.reconcile import Request, Result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.envtest.eventually import Eventually
    from flexinfer.meta.envelope import Tree

FINALIZER = "example.com/elsewhere"


class ConfigMap(Object):
    resource: ClassVar[Resource] = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")


class Secret(Object):
    resource: ClassVar[Resource] = Resource(GroupVersionKind("", "v1", "Secret"), "secrets")


@asynccontextmanager
async def connected(plane: ControlPlane) -> AsyncIterator[Transport]:
    credentials = StaticCredentials(
        plane.url, token=plane.admin_token, context=client_context(plane.ca_file.read_text())
    )
    async with Transport(credentials) as transport:
        yield transport


def config_map(namespace: str, name: str = "m", **metadata: object) -> Tree:
    head = {"name": name, "namespace": namespace, **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": head}


def create(plane: ControlPlane, namespace: str, name: str = "m", **metadata: object) -> ConfigMap:
    path = ConfigMap.resource.collection_path(namespace)
    made = plane.admin.create(path, config_map(namespace, name, **metadata))
    return ConfigMap(metadata=meta_from(made["metadata"]))


@pytest.fixture
def elsewhere(control_plane: ControlPlane, namespace: str) -> Iterator[str]:
    name = f"{namespace}-elsewhere"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    control_plane.admin.create("/api/v1/namespaces", body)
    yield name
    control_plane.admin.delete(f"/api/v1/namespaces/{name}")


async def test_c61_an_owner_that_cannot_be_is_refused_and_a_finalizer_does_instead(
    control_plane: ControlPlane, namespace: str, elsewhere: str
) -> None:
    owner = create(control_plane, namespace)
    async with connected(control_plane) as transport:
        client = DirectClient(transport)
        applier = Applier(client, field_manager="m")
        cluster_scoped: Tree = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}
        mark = control_plane.audit_log.mark()
        for resource, intent in (
            (ConfigMap.resource, config_map(elsewhere)),
            (Namespace.resource, cluster_scoped),
        ):
            with pytest.raises(ConfigurationError, match="mark the child with labels"):
                await applier.apply(resource, intent, owner=owner)
        assert control_plane.audit(mark).at(elsewhere).writes() == ()

        labels = {"example.com/owner-uid": owner.metadata.uid}
        key = NamespacedName(elsewhere, "m")

        async def clean_up() -> bool:
            await client.delete(ConfigMap.resource, key)
            return await client.read(ConfigMap.resource, key) is None

        async def guard(subject: ConfigMap | None) -> Stage:
            assert subject is not None
            return await finalizers.guard(
                client,
                ConfigMap.resource,
                subject.metadata,
                FINALIZER,
                field_manager="m",
                clean_up=clean_up,
            )

        assert await guard(owner) is Stage.LIVE
        child = config_map(elsewhere, labels=labels)
        applied = await applier.apply(ConfigMap.resource, child, owner=None)
        assert applied.object.meta.owner_references == ()
        path = ConfigMap.resource.object_path(owner.key)
        control_plane.admin.delete(path)
        assert await client.read(ConfigMap.resource, key) is not None
        assert await guard(await client.get(ConfigMap, owner.key)) is Stage.RELEASED
        assert await client.read(ConfigMap.resource, key) is None
        with pytest.raises(NotFoundError):
            control_plane.admin.get(path)


class Seen:
    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.runs: list[str] = []

    async def reconcile(self, request: Request) -> Result:
        if request.namespace == self.namespace:
            self.runs.append(request.name)
        return Result()


async def test_c62_the_child_of_an_earlier_owner_does_not_concern_the_one_of_its_name(
    control_plane: ControlPlane, namespace: str, eventually: Eventually
) -> None:
    first = create(control_plane, namespace)
    secrets = Secret.resource.collection_path(namespace)

    def owned_by(owner: ConfigMap) -> Tree:
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "m", "controller": True}
        return {"metadata": {"ownerReferences": [reference | {"uid": owner.metadata.uid}]}}

    child: Tree = {"apiVersion": "v1", "kind": "Secret", **owned_by(first)}
    child["metadata"]["name"] = "child"
    options = ManagerOptions(metrics_address="0", probe_address="0", grace=10, signals=())
    async with connected(control_plane) as transport:
        manager = Manager(transport, options=options, registry=Registry())
        seen = Seen(namespace)
        controller_for(manager, ConfigMap).owns(Secret).complete(seen)
        async with anyio.create_task_group() as group:
            await group.start(manager.run)
            control_plane.admin.create(secrets, child)
            path = ConfigMap.resource.object_path(first.key)
            control_plane.admin.delete(path, {"propagationPolicy": "Orphan"})
            await eventually(lambda: not _owners(control_plane, f"{secrets}/child"))
            await eventually(lambda: _is_gone(control_plane, path))
            second = create(control_plane, namespace)
            assert second.metadata.uid != first.metadata.uid
            create(control_plane, namespace, "first-mark")
            await eventually(lambda: "first-mark" in seen.runs)
            del seen.runs[:]
            # Put back by hand what orphaning took away: a reference to the owner that was.
            touched = owned_by(first) | {"data": {"touched": ""}}
            control_plane.admin.merge(f"{secrets}/child", touched)
            create(control_plane, namespace, "second-mark")
            await eventually(lambda: "second-mark" in seen.runs)
            assert "m" not in seen.runs
            adopted: Tree = {"apiVersion": "v1", "kind": "Secret", **owned_by(second)}
            adopted["metadata"]["name"] = "adopted"
            control_plane.admin.create(secrets, adopted)
            await eventually(lambda: seen.runs.count("m") == 1)
            manager.stop()


def _owners(plane: ControlPlane, path: str) -> list[Tree]:
    found: list[Tree] = plane.admin.get(path)["metadata"].get("ownerReferences", [])
    return found


def _is_gone(plane: ControlPlane, path: str) -> bool:
    try:
        plane.admin.get(path)
    except NotFoundError:
        return True
    return False
