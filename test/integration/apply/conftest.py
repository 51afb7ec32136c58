# SPDX-License-Identifier: Apache-2.0
"""A bench to apply on: an owner in a namespace, what it may want, and what was sent for it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

import pytest

from flexinfer.apply import Applier
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.protocol import Patch, Propagation
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.meta.envelope import meta_from
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.envtest.eventually import Eventually
    from flexinfer.meta.envelope import StoredObject, Tree

    Connect = Callable[[], AbstractAsyncContextManager["Bench"]]

AGENT = "apply-under-test"
MANAGER = "test-controller"


class Widget(Object):
    resource: ClassVar[Resource] = Resource(
        GroupVersionKind("apply.example.com", "v1", "Widget"), "widgets"
    )


class Client(DirectClient):
    """Ask the server each time; `meanwhile` happens once, just before the next write.

    `before_look` happens once too, before a whole object is read. `looks` counts the reads past
    a cache.
    """

    meanwhile: Callable[[], object] | None = None
    before_look: Callable[[], object] | None = None
    looks = 0

    async def live_tree(self, resource: Resource, key: NamespacedName) -> Tree | None:
        happen, self.before_look = self.before_look, None
        if happen is not None:
            happen()
        return await super().live_tree(resource, key)

    async def live_read(self, resource: Resource, key: NamespacedName) -> StoredObject | None:
        self.looks += 1
        return await self.read(resource, key)

    async def apply(
        self,
        resource: Resource,
        intent: Tree,
        *,
        field_manager: str,
        force: bool = True,
        subresource: str = "",
    ) -> StoredObject:
        self._happen()
        return await super().apply(
            resource, intent, field_manager=field_manager, force=force, subresource=subresource
        )

    async def patch(
        self,
        resource: Resource,
        key: NamespacedName,
        patch: Tree | Sequence[Tree],
        *,
        content_type: Patch,
        field_manager: str,
        subresource: str = "",
    ) -> StoredObject:
        self._happen()
        return await super().patch(
            resource,
            key,
            patch,
            content_type=content_type,
            field_manager=field_manager,
            subresource=subresource,
        )

    async def delete(
        self,
        resource: Resource,
        key: NamespacedName,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> None:
        await super().delete(
            resource, key, uid=uid, resource_version=resource_version, propagation=propagation
        )
        self._happen()

    def _happen(self) -> None:
        happen, self.meanwhile = self.meanwhile, None
        if happen is not None:
            happen()


class Bench:
    """Be a namespace with an owner in it, and the audit log's view of what we send there."""

    def __init__(self, plane: ControlPlane, client: Client, namespace: str) -> None:
        self.plane, self.client, self.namespace = plane, client, namespace
        self.admin = plane.admin
        self.manager = MANAGER
        self.owner = self.make_owner("owner")
        self.applier = self.new_applier()
        self._mark = plane.audit_log.mark()

    def new_applier(self) -> Applier:
        return Applier(self.client, field_manager=MANAGER, recreate_timeout=10)

    def make_owner(self, name: str) -> Widget:
        path = Widget.resource.collection_path(self.namespace)
        body = {
            "apiVersion": "apply.example.com/v1",
            "kind": "Widget",
            "metadata": {"name": name},
            "spec": {"size": 1},
        }
        return Widget(metadata=meta_from(self.admin.create(path, body)["metadata"]))

    def key(self, name: str) -> NamespacedName:
        return NamespacedName(self.namespace, name)

    def path(self, resource: Resource, name: str) -> str:
        return resource.object_path(self.key(name))

    def get(self, resource: Resource, name: str) -> Tree:
        return self.admin.get(self.path(resource, name))

    def reference(self) -> Tree:
        return {
            "apiVersion": Widget.resource.api_version,
            "kind": "Widget",
            "name": "owner",
            "uid": self.owner.metadata.uid,
            "controller": True,
        }

    def create_as(self, manager: str, resource: Resource, body: Tree) -> None:
        """Create as a client that knows nothing of apply would."""
        params = {"fieldManager": manager}
        path = resource.collection_path(self.namespace)
        self.admin.request("POST", path, params=params, body=body)

    def own(self, resource: Resource, name: str) -> None:
        """Make it a child of the owner, as somebody by hand."""
        metadata = {"ownerReferences": [self.reference()]}
        self.admin.merge(self.path(resource, name), {"metadata": metadata})

    def note(self, resource: Resource, name: str) -> None:
        """Change what is nobody else's, with the tool that `own` was done with."""
        self.admin.merge(
            self.path(resource, name), {"metadata": {"annotations": {"note": "theirs"}}}
        )

    def writes(self) -> list[tuple[str, str, int]]:
        """Return verb, plural and answer of what we wrote since the last look."""
        trail = self.plane.audit(self._mark).at(self.namespace).writes()
        self._mark = self.plane.audit_log.mark()
        return [(e.verb, e.resource, e.code) for e in trail if e.user_agent == AGENT]

    def deployment(self, *, selector: str = "m", **container: object) -> Tree:
        """Write what the server normalises in every way it has."""
        labels = {"app": selector}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": self.namespace, "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": {**labels, "backend": "vllm"}},
                    "spec": {
                        "nodeSelector": {"none": "such"},
                        "runtimeClassName": None,
                        "containers": [
                            {
                                "name": "server",
                                "image": "flexinfer.local/none",
                                "env": [],
                                "ports": [{"containerPort": 8000}],
                                "readinessProbe": {"httpGet": {"path": "/", "port": 8000}},
                                "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
                                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
                                **container,
                            }
                        ],
                        "volumes": [
                            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "0.5Gi"}},
                            {"name": "model", "emptyDir": {}},
                        ],
                    },
                },
            },
        }

    def service(self, port: int = 80, **spec: object) -> Tree:
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": self.namespace},
            "spec": {
                "selector": {"app": "m"},
                "ports": [{"name": "http", "port": port, "targetPort": 8000}],
                **spec,
            },
        }

    def config_map(self, value: str, *, namespace: str = "") -> Tree:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "settings", "namespace": namespace or self.namespace},
            "data": {"key": value},
        }

    def widget(self, **spec: object) -> Tree:
        return {
            "apiVersion": "apply.example.com/v1",
            "kind": "Widget",
            "metadata": {"name": "child", "namespace": self.namespace},
            "spec": spec,
        }

    def job(self, command: str) -> Tree:
        container = {"name": "fetch", "image": "flexinfer.local/none", "command": [command]}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "fetch", "namespace": self.namespace},
            "spec": {
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "nodeSelector": {"none": "such"},
                        "containers": [container],
                    }
                }
            },
        }


@pytest.fixture(scope="session")
def widgets(control_plane: ControlPlane) -> Resource:
    """Serve Widgets: an immutable model, a free-form spec, a status with conditions and a set."""
    spec: Tree = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "size": {"type": "integer"},
            "model": {
                "type": "string",
                "x-kubernetes-validations": [
                    {"rule": "self == oldSelf", "message": "model is immutable"}
                ],
            },
        },
    }
    condition = {name: {"type": "string"} for name in ("type", "status", "reason", "message")}
    condition |= {"lastTransitionTime": {"type": "string"}}
    status: Tree = {
        "type": "object",
        "properties": {
            "phase": {"type": "string"},
            "seen": {"type": "string"},
            "observedGeneration": {"type": "integer"},
            "nodes": {
                "type": "array",
                "items": {"type": "string"},
                "x-kubernetes-list-type": "set",
            },
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type"],
                    "properties": condition | {"observedGeneration": {"type": "integer"}},
                },
            },
        },
    }
    version: Tree = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}
        },
    }
    name = "widgets.apply.example.com"
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    control_plane.admin.apply(
        path,
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": name},
            "spec": {
                "group": "apply.example.com",
                "names": {"kind": "Widget", "plural": "widgets"},
                "scope": "Namespaced",
                "versions": [version],
            },
        },
    )
    return Widget.resource


@pytest.fixture
def bench(
    control_plane: ControlPlane, namespace: str, widgets: Resource, eventually: Eventually
) -> Connect:
    @asynccontextmanager
    async def connected() -> AsyncIterator[Bench]:
        credentials = StaticCredentials(
            control_plane.url,
            token=control_plane.admin_token,
            context=client_context(control_plane.ca_file.read_text()),
        )
        await eventually(lambda: control_plane.admin.get(widgets.collection_path(namespace)))
        async with Transport(credentials, user_agent=AGENT) as transport:
            yield Bench(control_plane, Client(transport), namespace)

    return connected
