# SPDX-License-Identifier: Apache-2.0
"""A manager against a real API server: the way of an event, and what stands in it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import aiohttp
import anyio
import pytest
from prometheus_client import CollectorRegistry
from pydantic import Field

from flexinfer.builder import controller_for
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.controller import ControllerOptions
from flexinfer.envtest.eventually import eventually
from flexinfer.errors import CacheNotSyncedError, DecodeError, FlexInferError
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.reconcile import Request, Result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from flexinfer.client.protocol import Client
    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree


class ConfigMap(Object):
    resource: ClassVar = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")
    data: dict[str, str] = Field(default_factory=dict)


class Secret(Object):
    resource: ClassVar = Resource(GroupVersionKind("", "v1", "Secret"), "secrets")


class Strict(ConfigMap):
    """Be a ConfigMap that has to have a number in it."""

    data: dict[str, int]  # type: ignore[assignment] # stricter on purpose


class Widget(Object):
    resource: ClassVar = Resource(GroupVersionKind("example.org", "v1", "Widget"), "widgets")


class Copier:
    """Give each ConfigMap of one namespace a Secret of the same name, owned by it."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.seen: list[Request] = []
        self.versions: dict[str, str] = {}

    async def reconcile(self, request: Request) -> Result:
        if request.namespace != self.namespace or request.name == "kube-root-ca.crt":
            return Result()
        self.seen.append(request)
        parent = await self.client.get(ConfigMap, request)
        if parent is None:
            return Result()
        self.versions[request.name] = parent.metadata.resource_version
        if await self.client.read(Secret.resource, request) is None:
            await self.client.apply(Secret.resource, child(parent), field_manager="copier")
        return Result()


def child(parent: Object) -> Tree:
    owner = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": parent.metadata.name,
        "uid": parent.metadata.uid,
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "namespace": parent.metadata.namespace,
            "name": parent.metadata.name,
            "ownerReferences": [owner],
        },
    }


@asynccontextmanager
async def manager(
    plane: ControlPlane,
    *,
    token: str = "",
    cache_sync_timeout: float = 60.0,
    signals: tuple[signal.Signals, ...] = (),
) -> AsyncIterator[Manager]:
    credentials = StaticCredentials(
        plane.url,
        token=token or plane.admin_token,
        context=client_context(plane.ca_file.read_text()),
    )
    options = ManagerOptions(
        metrics_address="127.0.0.1:0",
        probe_address="127.0.0.1:0",
        grace=10,
        cache_sync_timeout=cache_sync_timeout,
        controller=ControllerOptions(workers=4),
        signals=signals,
    )
    async with Transport(credentials) as transport:
        yield Manager(transport, options=options, registry=CollectorRegistry())


@asynccontextmanager
async def running(made: Manager, *, within: float = 60.0) -> AsyncIterator[None]:
    with anyio.fail_after(within):
        async with anyio.create_task_group() as group:
            await group.start(made.run)
            yield
            made.stop()


async def get(port: int | None, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def ready(made: Manager) -> None:
    status, text = await get(made.probe_port, "/readyz?verbose")
    assert status == 200, text


async def becomes_true(claim: Callable[[], Awaitable[None]], *, within: float = 15.0) -> None:
    polled: Callable[[], object] = claim
    await eventually(polled, within=within)


def configmaps(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps{'/' if name else ''}{name}"


def configmap(name: str, **data: str) -> Tree:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_a_child_is_written_and_written_again_when_it_is_deleted(
    control_plane: ControlPlane, namespace: str
) -> None:
    admin = control_plane.admin
    admin.create(configmaps(namespace), configmap("early"))
    async with manager(control_plane) as made:
        reconciler = Copier(made.client, namespace)
        controller_for(made, ConfigMap).owns(Secret).complete(reconciler)
        async with running(made):
            await becomes_true(lambda: ready(made))
            admin.create(configmaps(namespace), configmap("late"))
            secrets = f"/api/v1/namespaces/{namespace}/secrets"
            for name in ("early", "late"):
                secret = f"{secrets}/{name}"
                first = await eventually(partial(admin.get, secret))
                admin.delete(secret)
                uid = first["metadata"]["uid"]
                await eventually(partial(is_replaced, control_plane, secret, uid))
            _, metrics = await get(made.metrics_port, "/metrics")
    series = 'controller_runtime_reconcile_total{controller="configmap",result="error"} 0.0'
    assert series in metrics
    assert 'workqueue_depth{controller="configmap"' in metrics


async def test_an_orphan_does_not_wake_the_owner_of_the_same_name(
    control_plane: ControlPlane, namespace: str
) -> None:
    admin = control_plane.admin
    admin.create(configmaps(namespace), configmap("owner"))
    admin.create(configmaps(namespace), configmap("other"))
    async with manager(control_plane) as made:
        reconciler = Copier(made.client, namespace)
        controller_for(made, ConfigMap).owns(Secret).complete(reconciler)
        secrets = f"/api/v1/namespaces/{namespace}/secrets"
        async with running(made):
            await eventually(lambda: [admin.get(f"{secrets}/{n}") for n in ("owner", "other")])
            orphan = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"}
            before = admin.get(configmaps(namespace, "owner"))["metadata"]["uid"]
            # What a backup tool leaves: a child that still names the owner that is gone.
            admin.delete(configmaps(namespace, "owner"), orphan)
            await eventually(lambda: not owners(admin.get(f"{secrets}/owner")))
            # The owner goes last, once the garbage collector has let its children go.
            create = partial(admin.create, configmaps(namespace), configmap("owner"))
            created = await eventually(create)
            key = Request(namespace, "owner")
            await eventually(
                lambda: reconciler.versions["owner"] == created["metadata"]["resourceVersion"]
            )
            reference = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": "owner",
                "uid": before,
                "controller": True,
            }
            stale = child_named(namespace, "old-child", reference)
            admin.apply(f"{secrets}/old-child", stale)
            await settled(control_plane, reconciler, namespace)
            reconciler.seen.clear()
            stale["metadata"]["labels"] = {"touched": "yes"}
            admin.apply(f"{secrets}/old-child", stale)
            await settled(control_plane, reconciler, namespace)
            assert key not in reconciler.seen


def is_replaced(plane: ControlPlane, path: str, uid: str) -> bool:
    return bool(plane.admin.get(path)["metadata"]["uid"] != uid)


def owners(secret: Tree) -> list[Tree]:
    return list(secret["metadata"].get("ownerReferences", []))


def child_named(namespace: str, name: str, reference: Tree) -> Tree:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": namespace, "name": name, "ownerReferences": [reference]},
    }


async def settled(plane: ControlPlane, reconciler: Copier, namespace: str) -> None:
    """Wait until a change of another child, made now, was reconciled: all before it was too."""
    secret = f"/api/v1/namespaces/{namespace}/secrets/other"
    seen = reconciler.seen.count(Request(namespace, "other"))
    plane.admin.merge(secret, {"metadata": {"labels": {"stamp": str(time.monotonic_ns())}}})
    await eventually(lambda: reconciler.seen.count(Request(namespace, "other")) > seen)


@pytest.fixture
def limited(control_plane: ControlPlane, namespace: str) -> Iterator[str]:
    """Give the name of a service account, and of its cluster role, that may do nothing yet."""
    admin = control_plane.admin
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": namespace}}
    admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    admin.create(f"{rbac}/clusterroles", role(namespace))
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": namespace},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": namespace,
        },
        "subjects": [{"kind": "ServiceAccount", "name": namespace, "namespace": namespace}],
    }
    admin.create(f"{rbac}/clusterrolebindings", binding)
    yield namespace
    admin.delete(f"{rbac}/clusterrolebindings/{namespace}")
    admin.delete(f"{rbac}/clusterroles/{namespace}")


def role(name: str, *resources: str) -> Tree:
    rules = [{"apiGroups": [""], "resources": list(resources), "verbs": ["list", "watch"]}]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules if resources else [],
    }


def grant(plane: ControlPlane, name: str, *resources: str) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}"
    plane.admin.request("PUT", path, body=role(name, *resources))


async def test_a_forbidden_kind_is_named_and_recovers_when_it_is_granted(
    control_plane: ControlPlane, limited: str
) -> None:
    grant(control_plane, limited, "configmaps")
    token = control_plane.token_for(limited, limited)
    async with manager(control_plane, token=token) as made:
        reconciler = Copier(made.client, "nowhere")
        controller_for(made, ConfigMap).owns(Secret).complete(reconciler)
        async with running(made):

            async def names_the_kind() -> None:
                status, text = await get(made.probe_port, "/readyz")
                assert status == 500
                assert "[+]informer-configmaps ok" in text
                assert "[-]informer-secrets failed: forbidden: cannot list secrets" in text

            await becomes_true(names_the_kind)
            status, text = await get(made.probe_port, "/readyz/informer-secrets")
            assert status == 500
            assert "grant list, watch on secrets" in text
            assert await get(made.probe_port, "/healthz") == (200, "ok")
            grant(control_plane, limited, "configmaps", "secrets")
            await becomes_true(lambda: ready(made), within=40)


async def test_a_start_that_cannot_list_fails_with_kind_verb_and_reason(
    control_plane: ControlPlane, limited: str
) -> None:
    token = control_plane.token_for(limited, limited)
    async with manager(control_plane, token=token, cache_sync_timeout=1.0) as made:
        controller_for(made, ConfigMap).complete(Copier(made.client, "nowhere"))
        with anyio.fail_after(30), pytest.raises(CacheNotSyncedError) as raised:
            await made.run()
    assert "not synced within 1 s: configmaps: forbidden: cannot list configmaps" in str(
        raised.value
    )


async def test_a_missing_kind_is_named_and_recovers_when_it_is_installed(
    control_plane: ControlPlane,
) -> None:
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    async with manager(control_plane) as made:
        controller_for(made, Widget).complete(Copier(made.client, "nowhere"))
        async with running(made):

            async def names_the_kind() -> None:
                _, text = await get(made.probe_port, "/readyz")
                assert "[-]informer-widgets.example.org failed: kind missing" in text

            await becomes_true(names_the_kind)
            control_plane.admin.create(definitions, WIDGETS)
            try:
                await becomes_true(lambda: ready(made), within=40)
                made.stop()
            finally:
                control_plane.admin.delete(f"{definitions}/widgets.example.org")


WIDGETS: Tree = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.org"},
    "spec": {
        "group": "example.org",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}


async def test_an_informer_whose_task_dies_stops_the_manager(
    control_plane: ControlPlane,
) -> None:
    async with manager(control_plane) as made:
        controller_for(made, ConfigMap).complete(Copier(made.client, "nowhere"))
        with pytest.RaisesGroup(
            pytest.RaisesExc(FlexInferError, match="informer of configmaps was cancelled alone")
        ):
            async with running(made):
                await becomes_true(lambda: ready(made))
                (task,) = [t for t in asyncio.all_tasks() if t.get_name() == "informer configmaps"]
                task.cancel()
                await eventually(lambda: made.readyz.reason("shutdown") is not None)


async def test_sigterm_lets_the_running_reconcile_write_and_drops_the_rest(
    control_plane: ControlPlane, namespace: str
) -> None:
    admin = control_plane.admin
    for name in ("a", "b", "c", "d", "e", "f"):
        admin.create(configmaps(namespace), configmap(name))

    class Slow(Copier):
        def __init__(self, client: Client, namespace: str) -> None:
            super().__init__(client, namespace)
            self.entered: list[Request] = []
            self.release = anyio.Event()

        async def reconcile(self, request: Request) -> Result:
            if request.namespace != self.namespace or request.name == "kube-root-ca.crt":
                return Result()
            self.entered.append(request)
            await self.release.wait()
            return await super().reconcile(request)

    async with manager(control_plane, signals=(signal.SIGTERM,)) as made:
        reconciler = Slow(made.client, namespace)
        controller_for(made, ConfigMap).owns(Secret).complete(reconciler)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                await group.start(made.run)
                await eventually(lambda: len(reconciler.entered) == 4)
                os.kill(os.getpid(), signal.SIGTERM)
                await eventually(lambda: made.readyz.reason("shutdown") is not None)
                status, text = await get(made.probe_port, "/readyz")
                assert status == 500
                assert "[-]shutdown failed" in text
                assert "[+]informer-configmaps ok" in text
                reconciler.release.set()
    written = admin.get(f"/api/v1/namespaces/{namespace}/secrets")["items"]
    names = {Request(namespace, secret["metadata"]["name"]) for secret in written}
    assert names == set(reconciler.entered)
    assert len(names) == 4


async def test_an_object_that_does_not_fit_its_model_reaches_its_reconciler(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.admin.create(configmaps(namespace), configmap("bad", size="large"))

    class Reporting:
        def __init__(self, client: Client) -> None:
            self.client = client
            self.misfits: dict[Request, str] = {}

        async def reconcile(self, request: Request) -> Result:
            if request.namespace == namespace:
                try:
                    await self.client.get(Strict, request)
                except DecodeError as error:
                    self.misfits[request] = error.field
            return Result()

    async with manager(control_plane) as made:
        reconciler = Reporting(made.client)
        controller_for(made, Strict).complete(reconciler)
        async with running(made):
            await eventually(
                lambda: reconciler.misfits.get(Request(namespace, "bad")) == "data.size"
            )


async def test_no_change_is_lost_while_a_reconciler_blocks_the_loop(
    control_plane: ControlPlane, namespace: str
) -> None:
    admin = control_plane.admin
    names = [f"object-{number}" for number in range(10)]

    class Blocking(Copier):
        has_blocked = False

        async def reconcile(self, request: Request) -> Result:
            result = await super().reconcile(request)
            if self.seen and not self.has_blocked:
                self.has_blocked = True
                time.sleep(1.5)  # noqa: ASYNC251 - to block the loop is the point
            return result

    async with manager(control_plane) as made:
        reconciler = Blocking(made.client, namespace)
        controller_for(made, ConfigMap).owns(Secret).complete(reconciler)

        def change() -> dict[str, str]:
            versions = {}
            for round_ in range(5):
                for name in names:
                    body = configmap(name, round=str(round_))
                    answer = admin.apply(configmaps(namespace, name), body)
                    versions[name] = answer["metadata"]["resourceVersion"]
            return versions

        async with running(made):
            await becomes_true(lambda: ready(made))
            last = await anyio.to_thread.run_sync(change)
            await eventually(lambda: reconciler.versions == last)
            assert reconciler.has_blocked
            lag = made.registry.get_sample_value("flexinfer_event_loop_lag_seconds")
            assert lag is not None
            assert lag > 0.9
