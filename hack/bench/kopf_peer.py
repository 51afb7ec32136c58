# SPDX-License-Identifier: Apache-2.0
"""The benchmark's subject on kopf. It keeps the protocol that `subject.py` describes.

usage: python -P kopf_peer.py reconcile|watch SERVICE_ACCOUNT_FOLDER SERVER COUNT

It runs in an environment of its own, `requirements/bench.txt`, and imports nothing of ours. Its
handlers are coroutines, children are written by kubernetes-asyncio, and the status goes into
kopf's own patch. kopf's settings are its defaults: as many objects at once as there are, no events
for log lines, its own annotation on every object. Log lines below WARNING are off.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kopf
from kubernetes_asyncio import client
from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader

GROUP, VERSION, PLURAL = "bench.flexinfer.ai", "v1", "items"
MANAGER = "bench"
LAST_ROUND = 1_000_000
CONNECTIONS = 16


class Tally:
    """Be reached when so many different names were counted."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._names: set[str] = set()
        self.reached = asyncio.Event()

    def count(self, name: str) -> None:
        """Count a name, once."""
        self._names.add(name)
        if len(self._names) >= self._wanted:
            self.reached.set()


async def ready() -> None:
    """Say that we are ready, and return when the harness says go."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def done() -> None:
    """Say that the work is done, and return when stdin closes."""
    print("done", flush=True)
    await asyncio.to_thread(sys.stdin.read)


def register_login(folder: Path, server: str) -> None:
    """Give kopf the credentials of a service account."""

    async def login(**_: Any) -> Any:
        token = await asyncio.to_thread((folder / "token").read_text)
        return kopf.ConnectionInfo(server=server, ca_path=str(folder / "ca.crt"), token=token)

    kopf.on.login()(login)


def register_reconcile(api: Any, everything: Tally) -> None:
    """Apply a ConfigMap for every Item and say so in its status."""

    async def apply(*, name: str, namespace: str, meta: Any, spec: Any, **more: Any) -> None:
        child = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {"app.kubernetes.io/managed-by": MANAGER},
            },
            "data": {"number": str(spec["number"]), "size": str(len(spec["payload"]))},
        }
        kopf.append_owner_reference(child)
        await api.patch_namespaced_config_map(
            name,
            namespace,
            child,
            field_manager=MANAGER,
            force=True,
            _content_type="application/apply-patch+yaml",
        )
        more["patch"].status.update(new_status(meta["generation"], more["status"]))

    async def written(*, name: str, meta: Any, status: Any, **_: Any) -> None:
        if status.get("observedGeneration") == meta["generation"]:
            everything.count(name)

    for register in (kopf.on.create, kopf.on.resume, kopf.on.update):
        options = {"field": "spec"} if register is kopf.on.update else {}
        register(GROUP, VERSION, PLURAL, **options)(apply)
    # kopf writes the status after the handler has returned: its event says when it is there.
    kopf.on.event(GROUP, VERSION, PLURAL)(written)


def new_status(generation: int, status: Any) -> dict[str, Any]:
    """Return the status of an Item whose child is applied."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    old = next((c for c in status.get("conditions", ()) if c["status"] == "True"), None)
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Applied",
        "message": "the child is applied",
        "observedGeneration": generation,
        "lastTransitionTime": old["lastTransitionTime"] if old else now,
    }
    return {"observedGeneration": generation, "conditions": [condition]}


def register_watch(seen: Tally, ended: Tally) -> None:
    """Look at every event of every Item and write nothing."""

    async def look(*, name: str, spec: Any, **_: Any) -> None:
        seen.count(name)
        if spec.get("round") == LAST_ROUND:
            ended.count(name)

    kopf.on.event(GROUP, VERSION, PLURAL)(look)


async def run(work: str, folder: Path, server: str, count: int) -> None:
    """Connect and do *work*."""
    configuration = client.Configuration()
    address = urlsplit(server)
    environment = {
        "KUBERNETES_SERVICE_HOST": address.hostname or "",
        "KUBERNETES_SERVICE_PORT": str(address.port),
    }
    InClusterConfigLoader(
        token_filename=str(folder / "token"),
        cert_filename=str(folder / "ca.crt"),
        environ=environment,
    ).load_and_set(configuration)
    configuration.connection_pool_maxsize = CONNECTIONS
    register_login(folder, server)
    first, last = Tally(count), Tally(count)
    async with client.ApiClient(configuration) as api:
        await client.VersionApi(api).get_code()
        if work == "reconcile":
            register_reconcile(client.CoreV1Api(api), last)
            await ready()
        else:
            register_watch(first, last)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(kopf.operator(clusterwide=True, standalone=True, stop_flag=stop))
            if work == "watch":
                await first.reached.wait()
                await ready()
            await last.reached.wait()
            await done()
            stop.set()


if __name__ == "__main__":
    _, work_, folder_, server_, count_ = sys.argv
    asyncio.run(run(work_, Path(folder_), server_, int(count_)))
