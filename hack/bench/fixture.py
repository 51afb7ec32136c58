# SPDX-License-Identifier: Apache-2.0
"""The custom resource of the benchmark, and enough objects of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from flexinfer.client.auth import ServiceAccountCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.transport import Transport
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree

NAMESPACE = "bench"
SERVICE_ACCOUNT = "subject"
ITEMS = Resource(GroupVersionKind("bench.flexinfer.ai", "v1", "Item"), "items")
_WRITERS = 16
# Brings one object to 3.2 KB on the wire, as a Model with its status is.
_PAYLOAD = "x" * 2600


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


def item(number: int) -> Tree:
    """Return one object of 3.2 KB."""
    return {
        "apiVersion": ITEMS.api_version,
        "kind": ITEMS.kind,
        "metadata": {
            "name": f"item-{number:06d}",
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/name": "item", "bench/shard": str(number % 16)},
        },
        "spec": {"replicas": 1, "number": number, "payload": _PAYLOAD},
    }


async def populate(folder: Path, server: str, *, count: int) -> None:
    """Create *count* objects, sixteen at a time."""
    async with Transport(ServiceAccountCredentials(folder, server)) as transport:
        client = DirectClient(transport)
        numbers = iter(range(count))

        async def write() -> None:
            for number in numbers:
                await client.create(ITEMS, item(number), field_manager="bench")

        async with anyio.create_task_group() as group:
            for _ in range(_WRITERS):
                group.start_soon(write)
