# SPDX-License-Identifier: Apache-2.0
"""The world of sync, reconcile and watch: the kind, its rights, and as many objects as asked for.

Neither kube-controller-manager nor anything else watches what is measured: its garbage collector
would delete children beside the work. So children are deleted here, as their owners are.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from flexinfer.client.auth import ServiceAccountCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.transport import Transport
from flexinfer.errors import FlexInferError
from hack.bench.kinds import ITEMS, LABELS, ConfigMap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree
    from flexinfer.meta.resource import Resource

NAMESPACE = "bench"
SERVICE_ACCOUNT = "subject"
WRITERS = 16
PAYLOAD = "x" * 2600
"""Brings one object to 3.2 KB on the wire, as a Model with its status is."""

_SELECTOR = ",".join(f"{name}={value}" for name, value in LABELS.items())
_PAGE = "2000"
_CLEARED_WITHIN = 180.0


def install(plane: ControlPlane) -> None:
    """Install the kind, and a service account that may read and write it."""
    plane.admin.create(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": str(ITEMS)},
            "spec": {
                "group": ITEMS.gvk.group,
                "scope": "Namespaced",
                "names": {"plural": ITEMS.plural, "kind": ITEMS.kind},
                "versions": [_VERSION],
            },
        },
    )
    plane.admin.create("/api/v1/namespaces", _named("v1", "Namespace", NAMESPACE))
    plane.wait_established(str(ITEMS))
    plane.kubectl("create", "serviceaccount", SERVICE_ACCOUNT, "-n", NAMESPACE)
    plane.kubectl(
        *("create", "clusterrolebinding", "bench", "--clusterrole=cluster-admin"),
        f"--serviceaccount={NAMESPACE}:{SERVICE_ACCOUNT}",
    )


_VERSION: Tree = {
    "name": ITEMS.gvk.version,
    "served": True,
    "storage": True,
    "subresources": {"status": {}},
    "schema": {
        "openAPIV3Schema": {
            "type": "object",
            "properties": {
                "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        }
    },
}


def _named(api_version: str, kind: str, name: str) -> Tree:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}


def name_of(number: int) -> str:
    """Return the name of an Item."""
    return f"item-{number:06d}"


def item(number: int) -> Tree:
    """Return one object of 3.2 KB."""
    return {
        "apiVersion": ITEMS.api_version,
        "kind": ITEMS.kind,
        "metadata": {
            "name": name_of(number),
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/name": "item", "bench/shard": str(number % 16)},
        },
        "spec": {"replicas": 1, "number": number, "round": 0, "payload": PAYLOAD},
    }


async def populate(folder: Path, server: str, numbers: range) -> None:
    """Create the Items of these numbers, sixteen at a time."""
    await create_all(folder, server, ITEMS, numbers, item)


async def create_all(
    folder: Path, server: str, resource: Resource, numbers: range, make: Callable[[int], Tree]
) -> None:
    """Create what *make* makes of these numbers, sixteen at a time."""
    async with Transport(ServiceAccountCredentials(folder, server)) as transport:
        client = DirectClient(transport)
        left = iter(numbers)

        async def write() -> None:
            for number in left:
                await client.create(resource, make(number), field_manager="bench-fixture")

        async with anyio.create_task_group() as group:
            for _ in range(WRITERS):
                group.start_soon(write)


def clear(plane: ControlPlane) -> None:
    """Delete every Item and every child, page by page; raise FlexInferError when some stay."""
    deadline = time.monotonic() + _CLEARED_WITHIN
    for resource in (ITEMS, ConfigMap.resource):
        path = resource.collection_path(NAMESPACE)
        labels = {} if resource is ITEMS else {"labelSelector": _SELECTOR}
        while plane.admin.get(path, limit="1", **labels)["items"]:
            if time.monotonic() > deadline:
                raise FlexInferError(f"{resource} were not gone within {_CLEARED_WITHIN:g} s")
            plane.admin.request("DELETE", path, params={"limit": _PAGE, **labels})


def items(plane: ControlPlane) -> Iterator[Tree]:
    """Read every Item from the API server."""
    return _pages(plane, ITEMS, {})


def children(plane: ControlPlane) -> Iterator[Tree]:
    """Read every child from the API server."""
    return _pages(plane, ConfigMap.resource, {"labelSelector": _SELECTOR})


def _pages(plane: ControlPlane, resource: Resource, params: dict[str, str]) -> Iterator[Tree]:
    params = {"limit": "500", **params}
    while True:
        page = plane.admin.get(resource.collection_path(NAMESPACE), **params)
        yield from page["items"]
        token = page["metadata"].get("continue")
        if not token:
            return
        params["continue"] = token
