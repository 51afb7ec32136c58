# SPDX-License-Identifier: Apache-2.0
"""A bench to apply on: an owner in a namespace, other writers, and what was sent past them.

The API server is a real one, and its audit log says what was sent.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pytest
from pydantic import Field

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.crd.generate import crd_for
from flexinfer.crd.markers import ListSet, PreserveUnknown, Rule, resource
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.service import Service
from flexinfer.meta.envelope import meta_from
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import NamespacedName, Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.envtest.eventually import Eventually
    from flexinfer.meta.envelope import StoredObject, Tree

    Connect = Callable[[], AbstractAsyncContextManager["Bench"]]

AGENT = "faults-apply"
MANAGER = "test-controller"


class GadgetSpec(Model):
    """What is asked of a gadget."""

    model: Annotated[str, Rule("self == oldSelf", "model is immutable")] = Field("", max_length=20)
    """A model that cannot change."""
    size: int = 0
    """A size that can."""
    free: Annotated[dict[str, Any], PreserveUnknown()] = Field(default_factory=dict)
    """Whatever its author likes."""


class GadgetStatus(Model):
    """What a gadget came to."""

    phase: str = ""
    """Where it stands."""
    nodes: Annotated[tuple[str, ...], ListSet()] = Field(default=(), max_length=100)
    """Where it runs, in no order."""


@resource(group="faults.example.com", version="v1", plural="gadgets")
class Gadget(Object):
    """An owner, and a child with everything that custom resources have."""

    resource: ClassVar[Resource]
    spec: GadgetSpec = GadgetSpec()
    """What is asked for."""
    status: GadgetStatus | None = None
    """What it came to."""


class Client(DirectClient):
    """Ask the server each time; `meanwhile` happens once, just before the next apply."""

    meanwhile: Callable[[], object] | None = None

    async def apply(
        self,
        resource: Resource,
        intent: Tree,
        *,
        field_manager: str,
        force: bool = True,
        subresource: str = "",
    ) -> StoredObject:
        happen, self.meanwhile = self.meanwhile, None
        if happen is not None:
            happen()
        return await super().apply(
            resource, intent, field_manager=field_manager, force=force, subresource=subresource
        )


class Slow(Client):
    """Be late: something happens between the look at an object and the next write."""

    def __init__(self, client: Client, happen: Callable[[], object]) -> None:
        super().__init__(client._transport)
        self.happen = happen

    async def live_tree(self, resource: Resource, key: NamespacedName) -> Tree | None:
        tree = await super().live_tree(resource, key)
        self.happen()
        return tree


class Bench:
    """Be a namespace with an owner in it, and the audit log's view of what we send there."""

    def __init__(self, plane: ControlPlane, client: Client, namespace: str) -> None:
        self.plane, self.client, self.namespace = plane, client, namespace
        self.admin = plane.admin
        self.manager = MANAGER
        made = self.admin.create(
            Gadget.resource.collection_path(namespace), self.intent(Gadget.resource, "owner")
        )
        self.owner = Gadget(metadata=meta_from(made["metadata"]))
        self._mark = plane.audit_log.mark()

    def intent(self, resource: Resource, name: str, **fields: object) -> Tree:
        return {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": self.namespace},
            **fields,
        }

    def service(self, *ports: Tree) -> Tree:
        spec = {"selector": {"app": "m"}, "ports": list(ports)}
        return self.intent(Service.resource, "web", spec=spec)

    def path(self, resource: Resource, name: str) -> str:
        return resource.object_path(NamespacedName(self.namespace, name))

    def get(self, resource: Resource, name: str) -> Tree:
        return self.admin.get(self.path(resource, name))

    def owned(self, intent: Tree) -> Tree:
        """Return *intent* with the owner reference that an Applier gives it."""
        reference = {
            "apiVersion": Gadget.resource.api_version,
            "kind": "Gadget",
            "name": "owner",
            "uid": self.owner.metadata.uid,
            "controller": True,
        }
        return intent | {"metadata": intent["metadata"] | {"ownerReferences": [reference]}}

    def wrote_as(self, manager: str, method: str, intent: Tree, path: str) -> Tree:
        """Write as another program, or an older one, does: PUT, merge patch or apply."""
        types = {"PATCH": "application/merge-patch+json", "APPLY": "application/apply-patch+yaml"}
        return self.admin.request(
            "PATCH" if method == "APPLY" else method,
            path,
            params={"fieldManager": manager} | ({"force": "true"} if method == "APPLY" else {}),
            body=intent,
            content_type=types.get(method, "application/json"),
        )

    def managers(self, resource: Resource, name: str) -> list[tuple[str, str]]:
        entries = self.get(resource, name)["metadata"]["managedFields"]
        return [(e["manager"], e["operation"]) for e in entries if not e.get("subresource")]

    def sent(self) -> list[tuple[str, str, int]]:
        """Return verb, plural and answer of what we sent since the last look."""
        trail = self.plane.audit(self._mark).at(self.namespace)
        self._mark = self.plane.audit_log.mark()
        return [(e.verb, e.resource, e.code) for e in trail if e.user_agent == AGENT]

    def writes(self) -> list[tuple[str, str, int]]:
        return [sent for sent in self.sent() if sent[0] != "get"]

    def deployment(self, *, selector: str = "m", **container: object) -> Tree:
        """Write what the server normalises in every way it has."""
        labels = {"app": selector}
        server: Tree = {
            "name": "server",
            "image": "flexinfer.local/none",
            "env": [],
            "ports": [{"name": "http", "containerPort": 8000}],
            "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
            "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
            **container,
        }
        pod = {
            "nodeSelector": {"none": "such"},
            "containers": [server],
            "volumes": [{"name": "model", "emptyDir": {}}],
        }
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        return self.intent(Deployment.resource, "web", spec=spec)

    def slow(self, happen: Callable[[], object]) -> Slow:
        return Slow(self.client, happen)


@pytest.fixture(scope="session")
def gadgets(control_plane: ControlPlane) -> str:
    crd = crd_for(Gadget)
    name = crd["metadata"]["name"]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    control_plane.admin.apply(path, crd)
    control_plane.wait_established(name)
    return path


@pytest.fixture
def bench(
    control_plane: ControlPlane, namespace: str, gadgets: str, eventually: Eventually
) -> Connect:
    assert gadgets

    @asynccontextmanager
    async def connected() -> AsyncIterator[Bench]:
        credentials = StaticCredentials(
            control_plane.url,
            token=control_plane.admin_token,
            context=client_context(control_plane.ca_file.read_text()),
        )
        collection = Gadget.resource.collection_path(namespace)
        await eventually(lambda: control_plane.admin.get(collection))
        async with Transport(credentials, user_agent=AGENT) as transport:
            yield Bench(control_plane, Client(transport), namespace)

    return connected
