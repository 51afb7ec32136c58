# SPDX-License-Identifier: Apache-2.0
"""Kinds that cannot be listed, from the start or from some time on."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, ClassVar

import anyio
import pytest
from anyio.to_thread import run_sync

from flexinfer.builder import controller_for
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.tls import client_context
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import Footprint
from flexinfer.envtest.script import Close
from flexinfer.errors import CacheNotSyncedError
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.reconcile import Request, Result
from hack.faultcases import Case, ConfigMap, Secret, bounded, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import Tree

WATCH = {"watch": "true"}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Widget(Object):
    resource: ClassVar = Resource(GroupVersionKind("faults.example", "v1", "Widget"), "widgets")


CRD: Tree = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.faults.example"},
    "spec": {
        "group": "faults.example",
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


class Noting:
    """Note whom it was called for."""

    def __init__(self) -> None:
        self.seen: list[Request] = []

    async def reconcile(self, request: Request) -> Result:
        self.seen.append(request)
        return Result()


class Rights:
    """What one service account may list and watch."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.account = f"limited-{secrets.token_hex(3)}"
        case.plane.wait_service_account(case.namespace, self.account)
        self.token = case.plane.token_for(case.namespace, self.account)
        self.grant("configmaps", "secrets")
        admin, subject = case.plane.admin, {"kind": "ServiceAccount", "name": self.account}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": self.account},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": self.account,
            },
            "subjects": [{**subject, "namespace": case.namespace}],
        }
        admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)

    def grant(self, *plurals: str) -> None:
        """Allow to list and watch these, and nothing else."""
        rules = [{"apiGroups": [""], "resources": list(plurals), "verbs": ["list", "watch"]}]
        kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
        path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{self.account}"
        metadata = {"name": self.account}
        self.case.plane.admin.apply(path, {**kind, "metadata": metadata, "rules": rules})

    @asynccontextmanager
    async def managing(self, *, cache_sync_timeout: float = 60.0) -> AsyncIterator[Manager]:
        credentials = StaticCredentials(
            self.case.proxy.url,
            token=self.token,
            context=client_context(self.case.proxy.ca_pem),
        )
        async with self.case.managing(
            credentials=credentials, cache_sync_timeout=cache_sync_timeout
        ) as manager:
            yield manager


@contextmanager
def installed(case: Case) -> Iterator[None]:
    """Have the Widgets' definition for as long as the block."""
    case.plane.admin.create(CRDS, CRD)
    try:
        yield
    finally:
        case.plane.admin.delete(f"{CRDS}/{CRD['metadata']['name']}")


async def test_c32_a_right_that_is_missing_is_named_and_fails_the_start(case: Case) -> None:
    rights = await run_sync(Rights, case)
    rights.grant("configmaps")
    before = Footprint.take(case.proxy)
    async with rights.managing(cache_sync_timeout=3.0) as manager:
        controller_for(manager, ConfigMap).owns(Secret).complete(Noting())
        with anyio.fail_after(30), pytest.raises(CacheNotSyncedError) as raised:
            await manager.run()
    text = str(raised.value)
    assert "not synced within 3 s: secrets: forbidden: cannot list secrets" in text
    assert "grant list, watch on secrets" in text
    assert "configmaps:" not in text
    bounded(case.proxy.traffic, total=25, per_second=20)
    await case.leaves_nothing(before)


async def test_c32_a_kind_that_is_missing_is_named_and_needs_no_restart(case: Case) -> None:
    before = Footprint.take(case.proxy)
    async with case.managing() as manager:
        controller_for(manager, Widget).complete(Noting())
        async with anyio.create_task_group() as group:
            await group.start(manager.run)

            def names_the_kind() -> None:
                report = manager.readyz.report()
                assert not report.healthy
                assert (
                    "[-]informer-widgets.faults.example failed: kind missing: widgets.faults"
                    ".example is not served as faults.example/v1: install its CustomResource"
                ) in report.text

            await eventually(names_the_kind)
            began = len(case.proxy.traffic)
            await anyio.sleep(6)
            bounded(case.proxy.traffic, total=25, per_second=20)
            with installed(case):
                await eventually(lambda: manager.readyz.report().healthy, within=40)
                assert len(case.proxy.traffic) > began
                manager.stop()
    await case.leaves_nothing(before)


async def test_c32_a_right_that_is_taken_at_run_time_is_named(case: Case) -> None:
    rights = await run_sync(Rights, case)
    async with rights.managing() as manager:
        reconciler = Noting()
        controller_for(manager, ConfigMap).named("others").complete(reconciler)
        controller_for(manager, Secret).complete(Noting())
        async with running(manager):
            before, began = Footprint.take(case.proxy), len(case.proxy.traffic.lists())
            await run_sync(rights.grant, "configmaps")
            case.proxy.strike(Close(), path="/api/v1/secrets", query=WATCH)
            await eventually(
                lambda: (
                    "[-]informer-secrets failed: forbidden: cannot watch secrets"
                    in manager.readyz.report().text
                ),
                within=30,
            )
            assert "[+]informer-configmaps ok" in manager.readyz.report().text
            # The others go on: they read nothing of what is stale.
            await case.write(["a"])
            key = Request(case.namespace, "a")
            await eventually(lambda: key in reconciler.seen)
            bounded(case.proxy.traffic.select(path="/api/v1/secrets"), total=25, per_second=20)
            await run_sync(rights.grant, "configmaps", "secrets")
            await eventually(lambda: manager.readyz.report().healthy, within=30)
            assert len(case.proxy.traffic.lists()) == began
            await case.leaves_nothing(before)
