# SPDX-License-Identifier: Apache-2.0
"""Apply and status against a real API server; its audit log says what was sent."""

from __future__ import annotations

import copy
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

import anyio
import pytest

from flexinfer import conditions
from flexinfer.apply import Applier, Outcome, StatusWriter
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.protocol import Patch, Propagation
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.errors import (
    ConfigurationError,
    ConflictError,
    DeadlineError,
    InvalidError,
    NotOursError,
    TerminalError,
)
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.immutable import ImmutableField
from flexinfer.kinds.namespace import Namespace
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.service import Service
from flexinfer.kinds.structure import Merge
from flexinfer.meta.condition import Condition, ConditionStatus
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
NOW = datetime(2026, 1, 2, tzinfo=UTC)
CONFIG_MAP = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")
JOB = Resource(GroupVersionKind("batch", "v1", "Job"), "jobs")


class Widget(Object):
    resource: ClassVar[Resource] = Resource(
        GroupVersionKind("apply.example.com", "v1", "Widget"), "widgets"
    )


class Client(DirectClient):
    """Ask the server each time; `meanwhile` happens once, just before the next write.

    `looks` counts the reads past a cache.
    """

    meanwhile: Callable[[], object] | None = None
    looks = 0

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
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> None:
        await super().delete(resource, key, uid=uid, propagation=propagation)
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


def deployment(namespace: str, *, selector: str = "m", **container: object) -> Tree:
    """Write what the server normalises in every way it has."""
    labels = {"app": selector}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace, "labels": labels},
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


def service(namespace: str, port: int = 80, **spec: object) -> Tree:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "selector": {"app": "m"},
            "ports": [{"name": "http", "port": port, "targetPort": 8000}],
            **spec,
        },
    }


def config_map(namespace: str, value: str) -> Tree:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": namespace},
        "data": {"key": value},
    }


def widget(namespace: str, **spec: object) -> Tree:
    return {
        "apiVersion": "apply.example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "child", "namespace": namespace},
        "spec": spec,
    }


def job(namespace: str, command: str) -> Tree:
    container = {"name": "fetch", "image": "flexinfer.local/none", "command": [command]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "fetch", "namespace": namespace},
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


async def test_an_unchanged_child_is_applied_once_however_the_server_spells_it(
    bench: Connect, eventually: Eventually
) -> None:
    async with bench() as b:
        intent = deployment(b.namespace)
        before = copy.deepcopy(intent)
        first = await b.applier.apply(Deployment.resource, intent, owner=b.owner)
        assert first.outcome is Outcome.CREATED
        assert intent == before
        child = b.get(Deployment.resource, "web")
        assert child["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "apply.example.com/v1",
                "kind": "Widget",
                "name": "owner",
                "uid": b.owner.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]

        def is_observed() -> Tree:
            found = b.get(Deployment.resource, "web")
            assert found["status"]["conditions"]
            return found

        await eventually(is_observed)
        assert b.writes() == [("patch", "deployments", 201)]
        for _ in range(3):
            again = await b.applier.apply(
                Deployment.resource, deployment(b.namespace), owner=b.owner
            )
            assert (again.outcome, again.drift) == (Outcome.UNCHANGED, ())
        assert b.writes() == []
        assert b.get(Deployment.resource, "web")["metadata"]["generation"] == 1


async def test_another_intent_for_the_same_object_is_one_update(bench: Connect) -> None:
    async with bench() as b:
        await b.applier.apply(Deployment.resource, deployment(b.namespace), owner=b.owner)
        changed = deployment(b.namespace, args=["--more"])
        updated = await b.applier.apply(Deployment.resource, changed, owner=b.owner)
        assert updated.outcome is Outcome.UPDATED
        assert updated.object.meta.generation == 2
        reworded = copy.deepcopy(changed)
        reworded["spec"]["template"]["spec"]["hostname"] = None
        again = await b.applier.apply(Deployment.resource, reworded, owner=b.owner)
        assert again.outcome is Outcome.UNCHANGED
        assert len(b.writes()) == 2


async def test_a_foreign_change_costs_one_apply_where_it_is_ours_else_none(
    bench: Connect,
) -> None:
    async with bench() as b:
        intent = deployment(b.namespace)

        async def applied() -> Outcome:
            return (await b.applier.apply(Deployment.resource, intent, owner=b.owner)).outcome

        await applied()
        b.writes()
        path = b.path(Deployment.resource, "web")
        b.admin.merge(path, {"metadata": {"annotations": {"theirs": "1"}}})
        b.admin.merge(path, {"spec": {"revisionHistoryLimit": 3}})
        assert [await applied(), await applied()] == [Outcome.UNCHANGED] * 2
        assert b.writes() == []

        b.admin.merge(path, {"spec": {"replicas": 5}})
        assert [await applied(), await applied()] == [Outcome.UPDATED, Outcome.UNCHANGED]
        b.admin.merge(path, {"spec": {"template": {"spec": {"nodeSelector": {"added": "x"}}}}})
        assert [await applied(), await applied()] == [Outcome.UPDATED, Outcome.UNCHANGED]
        assert b.writes() == [("patch", "deployments", 200)] * 2
        live = b.get(Deployment.resource, "web")
        assert live["spec"]["replicas"] == 1
        assert live["spec"]["template"]["spec"]["nodeSelector"] == {"none": "such"}
        assert live["spec"]["revisionHistoryLimit"] == 3


async def test_after_a_restart_one_apply_a_child_changes_nothing(bench: Connect) -> None:
    async with bench() as b:
        intent = service(b.namespace)
        await b.applier.apply(Service.resource, intent, owner=b.owner)
        before = b.get(Service.resource, "web")
        restarted = b.new_applier()
        b.writes()
        for _ in range(2):
            again = await restarted.apply(Service.resource, intent, owner=b.owner)
            assert again.outcome is Outcome.UNCHANGED
        assert b.writes() == [("patch", "services", 200)]
        assert b.get(Service.resource, "web") == before


async def test_a_forgotten_owner_is_a_restart_for_its_children(bench: Connect) -> None:
    async with bench() as b:
        intent = service(b.namespace)
        await b.applier.apply(Service.resource, intent, owner=b.owner)
        b.applier.forget(Widget.resource, b.owner.key)
        b.writes()
        await b.applier.apply(Service.resource, intent, owner=b.owner)
        assert b.writes() == [("patch", "services", 200)]


@pytest.mark.parametrize("controller", [None, "other"])
async def test_an_object_that_is_not_ours_is_left_untouched_and_named(
    bench: Connect, controller: str | None
) -> None:
    async with bench() as b:
        theirs = config_map(b.namespace, "theirs")
        words = "it exists already and has no controller"
        if controller is not None:
            words = "it is controlled by Widget other"
            other = b.make_owner("other")
            theirs["metadata"]["ownerReferences"] = [
                b.reference() | {"name": "other", "uid": other.metadata.uid}
            ]
        b.admin.create(CONFIG_MAP.collection_path(b.namespace), theirs)
        ours = config_map(b.namespace, "ours")
        with pytest.raises(NotOursError, match=f"ConfigMap {b.namespace}/settings .*{words}"):
            await b.applier.apply(CONFIG_MAP, ours, owner=b.owner)
        assert b.writes() == []
        assert b.get(CONFIG_MAP, "settings")["data"] == theirs["data"]


def leave_behind(b: Bench, *, finalizers: Sequence[str] = ()) -> Tree:
    """Make a child of an earlier Widget of the owner's name, which nobody collects.

    A version that is not served keeps the garbage collector from it, as a bad moment would.
    """
    left = config_map(b.namespace, "before")
    left["metadata"] |= {
        "finalizers": list(finalizers),
        "ownerReferences": [
            b.reference() | {"apiVersion": "apply.example.com/v0", "uid": "of-the-earlier-one"}
        ],
    }
    return b.admin.create(CONFIG_MAP.collection_path(b.namespace), left)


async def test_what_an_earlier_owner_of_the_name_left_behind_makes_way(bench: Connect) -> None:
    async with bench() as b:
        left = leave_behind(b)
        applied = await b.applier.apply(CONFIG_MAP, config_map(b.namespace, "ours"), owner=b.owner)
        assert applied.outcome is Outcome.CREATED
        assert applied.object.meta.uid != left["metadata"]["uid"]
        assert b.writes() == [("delete", "configmaps", 200), ("patch", "configmaps", 201)]


async def test_what_is_left_behind_with_a_finalizer_is_waited_for_and_named(
    bench: Connect,
) -> None:
    async with bench() as b:
        leave_behind(b, finalizers=["example.com/stay"])
        ours = config_map(b.namespace, "ours")
        words = f"ConfigMap {b.namespace}/settings is being deleted: an earlier Widget owner left"
        for writes in ([("delete", "configmaps", 200)], []):
            with pytest.raises(NotOursError, match=words):
                await b.applier.apply(CONFIG_MAP, ours, owner=b.owner)
            assert b.writes() == writes
        b.admin.merge(b.path(CONFIG_MAP, "settings"), {"metadata": {"finalizers": None}})
        applied = await b.applier.apply(CONFIG_MAP, ours, owner=b.owner)
        assert applied.outcome is Outcome.CREATED


async def test_the_child_of_a_successor_is_not_taken_for_left_behind(bench: Connect) -> None:
    async with bench() as b:
        earlier = b.owner
        b.admin.delete(b.path(Widget.resource, "owner"))
        b.owner = b.make_owner("owner")
        ours = config_map(b.namespace, "ours")
        await b.applier.apply(CONFIG_MAP, ours, owner=b.owner)
        b.writes()
        with pytest.raises(ConflictError, match="made anew"):
            await b.new_applier().apply(CONFIG_MAP, ours, owner=earlier)
        assert b.writes() == []


async def test_a_removed_owner_reference_is_put_back(bench: Connect) -> None:
    async with bench() as b:
        intent = config_map(b.namespace, "a")
        await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        path = b.path(CONFIG_MAP, "settings")
        b.admin.merge(path, {"metadata": {"ownerReferences": []}})
        again = await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        assert again.outcome is Outcome.UPDATED
        assert again.object.meta.controller is not None


async def test_what_an_earlier_owner_of_the_name_left_behind_is_not_taken_over(
    bench: Connect,
) -> None:
    async with bench() as b:
        intent = config_map(b.namespace, "a")
        await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        b.admin.merge(b.path(CONFIG_MAP, "settings"), {"metadata": {"ownerReferences": []}})
        b.admin.delete(b.path(Widget.resource, "owner"))
        b.writes()
        with pytest.raises(NotOursError, match="it exists already and has no controller"):
            await b.applier.apply(CONFIG_MAP, intent, owner=b.make_owner("owner"))
        assert b.writes() == []


@pytest.mark.parametrize(
    ("manager", "is_owner"), [(MANAGER, False), (MANAGER, True), ("earlier", True)]
)
async def test_what_was_written_by_updates_before_is_taken_over_and_cleared_away(
    bench: Connect,
    manager: str,
    is_owner: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    async with bench() as b:
        intent = service(b.namespace)
        before = service(b.namespace, 9000, sessionAffinity="ClientIP")
        before["spec"]["ports"].append({"name": "old", "port": 9001})
        before["metadata"]["ownerReferences"] = [b.reference()] if is_owner else []
        b.create_as(manager, Service.resource, before)
        b.own(Service.resource, "web")
        b.note(Service.resource, "web")
        applied = await b.applier.apply(Service.resource, intent, owner=b.owner)
        assert applied.outcome is Outcome.UPDATED
        live = b.get(Service.resource, "web")
        assert [port["port"] for port in live["spec"]["ports"]] == [80]
        assert live["spec"]["sessionAffinity"] == "None"
        assert live["metadata"]["annotations"]["note"] == "theirs"
        done = ("patch", "services", 200)
        assert b.writes() == [done, done]
        for applier in (b.applier, b.new_applier()):
            again = await applier.apply(Service.resource, intent, owner=b.owner)
            assert again.outcome is Outcome.UNCHANGED
        assert b.writes() == [done]


async def test_what_a_former_manager_applied_goes_when_nobody_asks_for_it(bench: Connect) -> None:
    async with bench() as b:
        former = Applier(b.client, field_manager="former")
        intent = config_map(b.namespace, "a")
        more = intent | {"data": {"key": "a", "old": "b"}}
        await former.apply(CONFIG_MAP, more, owner=b.owner)
        await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "a", "old": "b"}
        heir = Applier(b.client, field_manager=MANAGER, former_managers=["former"])
        await heir.apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "a"}


async def test_what_changes_while_it_is_taken_over_is_looked_at_again(bench: Connect) -> None:
    async with bench() as b:
        intent = config_map(b.namespace, "a")
        b.create_as(MANAGER, CONFIG_MAP, intent | {"data": {"key": "a", "old": "b"}})
        b.own(CONFIG_MAP, "settings")
        b.client.meanwhile = lambda: b.note(CONFIG_MAP, "settings")
        with pytest.raises(ConflictError, match="has been modified"):
            await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "a"}


async def test_an_object_without_owner_is_ours_until_a_controller_has_it(bench: Connect) -> None:
    async with bench() as b:
        intent = config_map(b.namespace, "a")
        first = await b.applier.apply(CONFIG_MAP, intent, owner=None)
        assert first.object.meta.owner_references == ()
        b.admin.merge(
            b.path(CONFIG_MAP, "settings"),
            {
                "metadata": {
                    "ownerReferences": [
                        {
                            "apiVersion": "apply.example.com/v1",
                            "kind": "Widget",
                            "name": "owner",
                            "uid": b.owner.metadata.uid,
                            "controller": True,
                        }
                    ]
                }
            },
        )
        with pytest.raises(NotOursError, match="controlled by Widget owner"):
            await b.applier.apply(CONFIG_MAP, intent, owner=None)


async def test_an_owner_elsewhere_is_refused_without_a_request(bench: Connect) -> None:
    async with bench() as b:
        with pytest.raises(ConfigurationError, match="cannot own default/settings"):
            await b.applier.apply(CONFIG_MAP, config_map("default", "a"), owner=b.owner)
        assert b.writes() == []


async def test_what_is_deleted_while_the_apply_is_on_its_way_does_not_come_back(
    bench: Connect,
) -> None:
    async with bench() as b:
        await b.applier.apply(CONFIG_MAP, config_map(b.namespace, "a"), owner=b.owner)
        path = b.path(CONFIG_MAP, "settings")
        b.client.meanwhile = lambda: b.admin.delete(path)
        changed = config_map(b.namespace, "b")
        with pytest.raises(ConflictError):
            await b.applier.apply(CONFIG_MAP, changed, owner=b.owner)
        assert await b.client.read(CONFIG_MAP, b.key("settings")) is None
        again = await b.applier.apply(CONFIG_MAP, changed, owner=b.owner)
        assert again.outcome is Outcome.CREATED
        b.admin.delete(path)
        after = await b.applier.apply(CONFIG_MAP, changed, owner=b.owner)
        assert after.outcome is Outcome.CREATED
        assert after.object.meta.uid != again.object.meta.uid


async def test_what_is_made_anew_while_the_apply_is_on_its_way_is_not_written_to(
    bench: Connect,
) -> None:
    async with bench() as b:
        await b.applier.apply(CONFIG_MAP, config_map(b.namespace, "a"), owner=b.owner)

        def made_anew() -> None:
            b.admin.delete(b.path(CONFIG_MAP, "settings"))
            b.admin.create(
                CONFIG_MAP.collection_path(b.namespace), config_map(b.namespace, "theirs")
            )

        b.client.meanwhile = made_anew
        changed = config_map(b.namespace, "b")
        with pytest.raises(ConflictError, match="settings was made anew"):
            await b.applier.apply(CONFIG_MAP, changed, owner=b.owner)
        with pytest.raises(NotOursError):
            await b.applier.apply(CONFIG_MAP, changed, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "theirs"}


async def test_a_live_selector_is_kept_and_the_pods_go_on_matching(bench: Connect) -> None:
    async with bench() as b:
        await b.applier.apply(
            Deployment.resource, deployment(b.namespace, selector="old"), owner=b.owner
        )
        for applier in (b.applier, b.new_applier()):
            changed = await applier.apply(
                Deployment.resource, deployment(b.namespace, selector="new"), owner=b.owner
            )
            assert changed.drift == ()
        live = Deployment.decode(changed.object)
        assert live.spec.selector.match_labels == {"app": "old"}
        assert live.spec.template.metadata.labels == {"app": "old", "backend": "vllm"}
        assert live.metadata.labels == {"app": "new"}
        assert {code for _, _, code in b.writes()} <= {200, 201}


async def test_a_service_keeps_the_address_that_it_was_given(bench: Connect) -> None:
    async with bench() as b:
        first = await b.applier.apply(
            Service.resource, service(b.namespace, clusterIP=""), owner=b.owner
        )
        given = Service.decode(first.object).spec
        assert given.cluster_ip
        moved = service(b.namespace, port=81, clusterIP="", clusterIPs=[])
        second = await b.applier.apply(Service.resource, moved, owner=b.owner)
        assert (second.outcome, second.drift) == (Outcome.UPDATED, ())
        asked = service(b.namespace, port=81, clusterIP="10.255.255.254")
        third = await b.applier.apply(Service.resource, asked, owner=b.owner)
        assert (third.outcome, third.drift) == (Outcome.UNCHANGED, ("spec.clusterIP",))
        spec = Service.decode(third.object).spec
        assert (spec.cluster_ip, spec.cluster_ips) == (given.cluster_ip, given.cluster_ips)
        assert [port.port for port in spec.ports] == [81]
        (entry,) = [
            entry
            for entry in b.get(Service.resource, "web")["metadata"]["managedFields"]
            if entry["manager"] == MANAGER
        ]
        assert entry["operation"] == "Apply"
        assert not {"f:clusterIP", "f:clusterIPs", "f:type"} & entry["fieldsV1"]["f:spec"].keys()


async def test_a_claim_that_should_shrink_or_change_its_class_reports_drift(
    bench: Connect,
) -> None:
    async with bench() as b:

        def claim(size: str, storage_class: str, label: str) -> Tree:
            return {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": "cache",
                    "namespace": b.namespace,
                    "labels": {"label": label},
                },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": storage_class,
                    "resources": {"requests": {"storage": size}},
                },
            }

        resource = PersistentVolumeClaim.resource
        await b.applier.apply(resource, claim("2Gi", "slow", "a"), owner=b.owner)
        changed = await b.applier.apply(resource, claim("1Gi", "fast", "b"), owner=b.owner)
        assert changed.outcome is Outcome.UPDATED
        assert changed.drift == ("spec.storageClassName", "spec.resources.requests.storage")
        again = await b.applier.apply(resource, claim("1Gi", "fast", "b"), owner=b.owner)
        assert (again.outcome, again.drift) == (Outcome.UNCHANGED, changed.drift)
        live = PersistentVolumeClaim.decode(again.object)
        assert live.spec.resources.requests == {"storage": "2Gi"}
        assert live.metadata.labels == {"label": "b"}
        assert [code for _, _, code in b.writes()] == [201, 200]


async def test_a_refused_change_is_sent_once_and_preserved_from_the_next_intent_on(
    bench: Connect,
) -> None:
    async with bench() as b:
        resource = Widget.resource
        await b.applier.apply(resource, widget(b.namespace, model="a", size=1), owner=b.owner)
        b.writes()
        refused = widget(b.namespace, model="b", size=1)
        for _ in range(3):
            with pytest.raises(TerminalError, match=r"child: spec\.model cannot be changed; take"):
                await b.applier.apply(resource, refused, owner=b.owner)
            b.admin.merge(b.path(resource, "child"), {"metadata": {"labels": {"theirs": "x"}}})
        assert b.writes() == [("patch", "widgets", 422)]
        for size in (2, 3):
            rest = await b.applier.apply(
                resource, widget(b.namespace, model="b", size=size), owner=b.owner
            )
            assert (rest.outcome, rest.drift) == (Outcome.UPDATED, ("spec.model",))
        assert b.get(resource, "child")["spec"] == {"model": "a", "size": 3}
        back = await b.applier.apply(
            resource, widget(b.namespace, model="a", size=3), owner=b.owner
        )
        assert (back.outcome, back.drift) == (Outcome.UNCHANGED, ())
        assert [code for _, _, code in b.writes()] == [200, 200]


async def test_rules_of_the_caller_spare_the_refusal(bench: Connect) -> None:
    async with bench() as b:
        applier = Applier(
            b.client,
            field_manager=MANAGER,
            immutable={Widget.resource: [ImmutableField(path="spec.model")]},
            structures={Widget.resource: {"spec.nodes": Merge.SET}},
        )
        for model in ("a", "b"):
            applied = await applier.apply(
                Widget.resource, widget(b.namespace, model=model, size=1), owner=b.owner
            )
        assert (applied.outcome, applied.drift) == (Outcome.UNCHANGED, ("spec.model",))
        assert b.writes() == [("patch", "widgets", 201)]


async def test_what_is_wrong_for_another_reason_is_raised_as_the_server_said_it(
    bench: Connect,
) -> None:
    async with bench() as b:
        wrong = deployment(b.namespace, image="")
        with pytest.raises(InvalidError):
            await b.applier.apply(Deployment.resource, wrong, owner=b.owner)
        await b.applier.apply(Deployment.resource, deployment(b.namespace), owner=b.owner)
        with pytest.raises(InvalidError) as caught:
            await b.applier.apply(Deployment.resource, wrong, owner=b.owner)
        assert "containers[0].image" in caught.value.causes[0].field


async def test_a_job_with_another_template_is_made_anew(bench: Connect) -> None:
    async with bench() as b:
        first = await b.applier.apply(JOB, job(b.namespace, "one"), owner=b.owner)
        second = await b.applier.apply(JOB, job(b.namespace, "two"), owner=b.owner)
        assert second.outcome is Outcome.RECREATED
        assert second.object.meta.uid != first.object.meta.uid
        template = b.get(JOB, "fetch")["spec"]["template"]
        assert template["spec"]["containers"][0]["command"] == ["two"]
        again = await b.applier.apply(JOB, job(b.namespace, "two"), owner=b.owner)
        assert again.outcome is Outcome.UNCHANGED
        assert b.writes() == [
            ("patch", "jobs", 201),
            ("patch", "jobs", 422),
            ("delete", "jobs", 200),
            ("patch", "jobs", 201),
        ]


async def test_a_job_that_does_not_go_is_waited_for_and_then_made_anew(
    bench: Connect, eventually: Eventually
) -> None:
    async with bench() as b:
        impatient = Applier(b.client, field_manager=MANAGER, recreate_timeout=0.3)
        await impatient.apply(JOB, job(b.namespace, "one"), owner=b.owner)
        path = b.path(JOB, "fetch")
        b.admin.merge(path, {"metadata": {"finalizers": ["example.com/hold"]}})
        changed = job(b.namespace, "two")
        for _ in range(2):
            with pytest.raises(DeadlineError, match=r"still being deleted after 0\.3 s; see"):
                await impatient.apply(JOB, changed, owner=b.owner)
        assert [write for write in b.writes() if write[0] == "delete"] == [("delete", "jobs", 200)]

        seen = b.client.looks

        async def release() -> None:
            # It is found terminating, and looked for again: so it is waited for.
            await eventually(lambda: b.client.looks >= seen + 2)
            b.admin.merge(path, {"metadata": {"finalizers": []}})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(release)
            made = await b.applier.apply(JOB, changed, owner=b.owner)
        assert made.outcome is Outcome.CREATED


async def test_a_job_that_somebody_else_made_anew_is_looked_at_afresh(bench: Connect) -> None:
    async with bench() as b:
        await b.applier.apply(JOB, job(b.namespace, "one"), owner=b.owner)

        def made_by_somebody() -> None:
            b.admin.create(JOB.collection_path(b.namespace), job(b.namespace, "theirs"))

        def once_more() -> None:
            b.client.meanwhile = made_by_somebody

        b.client.meanwhile = once_more
        with pytest.raises(ConflictError, match="made anew by somebody else"):
            await b.applier.apply(JOB, job(b.namespace, "two"), owner=b.owner)
        with pytest.raises(NotOursError):
            await b.applier.apply(JOB, job(b.namespace, "two"), owner=b.owner)


async def test_large_integers_and_whole_floats_survive_and_settle(bench: Connect) -> None:
    async with bench() as b:
        spec = {"large": 2**53 + 1, "whole": 1.0, "text": "80", "nothing": {}}
        intent = widget(b.namespace, **spec)
        await b.applier.apply(Widget.resource, intent, owner=b.owner)
        assert b.get(Widget.resource, "child")["spec"]["large"] == 2**53 + 1
        again = await b.applier.apply(Widget.resource, intent, owner=b.owner)
        assert again.outcome is Outcome.UNCHANGED


def status_of(reason: str, *nodes: str, **more: object) -> Tree:
    ready = conditions.set_condition(
        [],
        "Ready",
        ConditionStatus.FALSE,
        reason=reason,
        observed_generation=1,
        now=NOW,
    )
    cached = conditions.set_condition(
        [],
        "Cached",
        ConditionStatus.TRUE,
        reason="Cached",
        observed_generation=1,
        now=NOW,
    )
    entries = [condition.wire() for condition in (*ready, *cached)]
    return {"conditions": entries, "nodes": list(nodes), "phase": "Pending", **more}


def writer(b: Bench, *foreign: str) -> StatusWriter:
    return StatusWriter(
        b.client,
        field_manager=MANAGER,
        foreign=foreign,
        structures={Widget.resource: {"status.nodes": Merge.SET}},
    )


async def test_a_status_is_written_when_it_says_something_new(bench: Connect) -> None:
    async with bench() as b:
        status = writer(b)

        async def written(tree: Tree) -> Outcome:
            return await status.write(Widget.resource, b.owner.metadata, tree)

        assert await written(status_of("A", "n1", "n2")) is Outcome.UPDATED
        reordered = status_of("A", "n2", "n1", seen=None)
        reordered["conditions"].reverse()
        assert await written(reordered) is Outcome.UNCHANGED
        assert b.writes() == [("patch", "widgets", 200)]
        assert await written(status_of("B", "n1", seen="now")) is Outcome.UPDATED
        assert await written(status_of("B", "n1")) is Outcome.UPDATED
        live = b.get(Widget.resource, "owner")
        assert "seen" not in live["status"]
        assert live["status"]["nodes"] == ["n1"]
        assert live["metadata"]["generation"] == 1


async def test_a_foreign_change_of_our_status_is_written_over_and_of_others_is_not(
    bench: Connect,
) -> None:
    async with bench() as b:
        status = writer(b)
        tree = status_of("A")

        async def written() -> Outcome:
            return await status.write(Widget.resource, b.owner.metadata, tree)

        await written()
        path = f"{b.path(Widget.resource, 'owner')}/status"
        b.admin.merge(path, {"status": {"seen": "theirs"}})
        b.writes()
        assert [await written(), await written()] == [Outcome.UNCHANGED] * 2
        assert b.writes() == []
        b.admin.merge(path, {"status": {"phase": "Hacked"}})
        assert [await written(), await written()] == [Outcome.UPDATED, Outcome.UNCHANGED]
        live = b.get(Widget.resource, "owner")["status"]
        assert (live["phase"], live["seen"]) == ("Pending", "theirs")


async def test_a_restart_writes_no_status_that_is_there_already(bench: Connect) -> None:
    async with bench() as b:
        tree = status_of("A", "n2", "n1")
        await writer(b).write(Widget.resource, b.owner.metadata, tree)
        path = f"{b.path(Widget.resource, 'owner')}/status"
        b.admin.merge(path, {"status": {"seen": "theirs"}})
        b.writes()
        told = writer(b, "seen")
        for _ in range(2):
            outcome = await told.write(Widget.resource, b.owner.metadata, tree)
            assert outcome is Outcome.UNCHANGED
        assert b.writes() == []
        untold = writer(b)
        for _ in range(2):
            outcome = await untold.write(Widget.resource, b.owner.metadata, tree)
            assert outcome is Outcome.UNCHANGED
        assert b.writes() == [("patch", "widgets", 200)]


async def test_no_status_reaches_an_object_that_the_run_did_not_look_at(bench: Connect) -> None:
    async with bench() as b:
        status = writer(b)
        old = b.owner.metadata
        path = b.path(Widget.resource, "owner")
        b.client.meanwhile = lambda: b.admin.delete(path)
        for _ in range(2):
            with pytest.raises(ConflictError, match=r"Widget .*/owner is gone"):
                await status.write(Widget.resource, old, status_of("A"))
        assert await b.client.read(Widget.resource, b.owner.key) is None
        new = b.make_owner("owner")
        with pytest.raises(ConflictError, match="is gone or was made anew"):
            await status.write(Widget.resource, old, status_of("A"))
        assert "status" not in b.get(Widget.resource, "owner")
        assert await status.write(Widget.resource, new.metadata, status_of("A")) is Outcome.UPDATED


async def test_runs_that_see_the_same_write_one_status_and_move_no_time(bench: Connect) -> None:
    async with bench() as b:
        status, found = writer(b), list[Condition]()
        for minute in range(5):
            found = conditions.set_condition(
                found,
                "Ready",
                ConditionStatus.FALSE,
                reason="Loading",
                observed_generation=1,
                now=NOW + timedelta(minutes=minute),
            )
            tree = {"conditions": [condition.wire() for condition in found]}
            await status.write(Widget.resource, b.owner.metadata, tree)
        assert b.writes() == [("patch", "widgets", 200)]
        (live,) = b.get(Widget.resource, "owner")["status"]["conditions"]
        assert live["lastTransitionTime"] == "2026-01-02T00:00:00Z"


async def test_a_condition_of_ours_stands_beside_those_of_another_controller(
    bench: Connect,
) -> None:
    async with bench() as b:
        stored = await b.client.read(Namespace.resource, NamespacedName("", b.namespace))
        assert stored is not None
        (ours,) = status_of("A")["conditions"][:1]
        del ours["observedGeneration"], ours["message"]
        status = writer(b, "phase")
        for expected in (Outcome.UPDATED, Outcome.UNCHANGED):
            tree = {"conditions": [ours]}
            assert await status.write(Namespace.resource, stored.meta, tree) is expected
        live = b.admin.get(f"/api/v1/namespaces/{b.namespace}")["status"]
        assert live == {"phase": "Active", "conditions": [ours]}


async def test_a_kind_without_a_status_is_named(bench: Connect) -> None:
    async with bench() as b:
        applied = await b.applier.apply(CONFIG_MAP, config_map(b.namespace, "a"), owner=b.owner)
        with pytest.raises(ConflictError, match="its kind has no status subresource"):
            await writer(b).write(CONFIG_MAP, applied.object.meta, {"phase": "Pending"})


async def test_a_status_does_not_follow_an_object_that_is_made_anew_on_its_way(
    bench: Connect,
) -> None:
    async with bench() as b:

        def made_anew() -> None:
            b.admin.delete(b.path(Widget.resource, "owner"))
            b.make_owner("owner")

        b.client.meanwhile = made_anew
        with pytest.raises(ConflictError, match="has been modified"):
            await writer(b).write(Widget.resource, b.owner.metadata, status_of("A"))
        assert "status" not in b.get(Widget.resource, "owner")


async def test_a_write_of_somebody_else_leaves_the_status_to_the_next_run(bench: Connect) -> None:
    async with bench() as b:
        path = b.path(Widget.resource, "owner")
        b.client.meanwhile = lambda: b.admin.merge(path, {"spec": {"size": 2}})
        status = writer(b)
        with pytest.raises(ConflictError, match="has been modified"):
            await status.write(Widget.resource, b.owner.metadata, status_of("A"))
        outcome = await status.write(Widget.resource, b.owner.metadata, status_of("A"))
        assert outcome is Outcome.UPDATED
        assert b.writes() == [("patch", "widgets", 409), ("patch", "widgets", 200)]
        assert b.get(Widget.resource, "owner")["status"]["phase"] == "Pending"
