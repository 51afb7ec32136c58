# SPDX-License-Identifier: Apache-2.0
"""More events than a reconciler can take, watches that lag, and many watches at once."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.builder import controller_for
from flexinfer.cache.informer import InformerOptions
from flexinfer.cache.informers import Informers
from flexinfer.cache.timing import Timing
from flexinfer.client.direct import DirectClient
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import Footprint, Forward, Hold
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.meta.selector import Selector
from flexinfer.metrics import RestClientMetrics
from flexinfer.reconcile import Request, Result
from hack.faultcases import SCALE, TENTH, WRITERS, Case, ConfigMap, Secret, bounded, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.client.protocol import Client
    from flexinfer.meta.envelope import Tree

WATCH = {"watch": "true"}
MIB = 1 << 20


def resident() -> int:
    """Return what this process holds in memory, in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Slow:
    """Take some time for each object, and note what it was when it began."""

    def __init__(self, client: Client, namespace: str, seconds: float) -> None:
        self.client = client
        self.namespace = namespace
        self.seconds = seconds
        self.last: dict[str, str] = {}
        self.runs = 0

    async def reconcile(self, request: Request) -> Result:
        if request.namespace == self.namespace:
            found = await self.client.get(ConfigMap, request)
            await anyio.sleep(self.seconds)
            if found is not None:
                self.last[request.name] = found.metadata.resource_version
            self.runs += 1
        return Result()


async def flood(case: Case, *, updates: int, seconds: float, timing: Timing) -> None:
    names = [f"a{n}" for n in range(20)]
    memory: list[int] = []

    def changes() -> Iterator[str]:
        for number in range(updates):
            if number in {updates // 4, updates - 1}:
                memory.append(resident())
            yield names[number % len(names)]

    async with case.managing(timing=timing) as manager:
        reconciler = Slow(manager.client, case.namespace, seconds)
        controller_for(manager, ConfigMap).complete(reconciler)
        await case.write(names)
        async with running(manager, within=updates / 10):
            before, started = Footprint.take(case.proxy), time.monotonic()
            asked = len(case.proxy.traffic)
            await case.touch(changes())
            listed = case.plane.admin.get(case.path())["items"]
            versions = {m["metadata"]["name"]: m["metadata"]["resourceVersion"] for m in listed}
            await eventually(
                lambda: reconciler.last == versions, within=5 * 2 * len(names) * seconds
            )
            took = time.monotonic() - started
            # One worker, one run at a time: nothing is worked off that is out of date already.
            assert reconciler.runs <= took / seconds + 2 * len(names)
            assert reconciler.runs < updates / 5
            assert memory[1] - memory[0] < 30 * MIB
            bounded(case.proxy.traffic.select(since=started), total=5, per_second=5)
            assert len(case.proxy.traffic) - asked <= 5
            await case.leaves_nothing(before)


async def test_c34_a_slow_reconciler_sees_the_last_state_and_memory_stays_flat(case: Case) -> None:
    await flood(case, updates=int(50_000 * SCALE), seconds=1 * SCALE, timing=TENTH)


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_c34_at_full_count(case: Case) -> None:
    await flood(case, updates=50_000, seconds=1, timing=Timing())


class OneChild:
    """Give the parent a child unless it has one; without a name of its own it could be made twice.

    Once told so, delete the child, and look whether it is gone.
    """

    def __init__(self, client: Client, parent: Request) -> None:
        self.client = client
        self.parent = parent
        self.runs = 0
        self.errors: list[str] = []
        self.shall_delete = False

    async def children(self) -> list[Request]:
        labels = Selector.parse(f"parent={self.parent.name}")
        found = await self.client.list(Secret, namespace=self.parent.namespace, labels=labels)
        return [Request(s.metadata.namespace, s.metadata.name) for s in found]

    async def reconcile(self, request: Request) -> Result:
        if request != self.parent:
            return Result()
        self.runs += 1
        children = await self.children()
        if self.shall_delete and children:
            self.shall_delete = False
            await self.client.delete(Secret.resource, children[0])
            if await self.children():
                self.errors.append("a deleted child was read")
        elif not children:
            metadata = {
                "generateName": "child-",
                "namespace": request.namespace,
                "labels": {"parent": request.name},
            }
            intent: Tree = {"metadata": metadata}
            await self.client.create(Secret.resource, intent, field_manager="one-child")
            if len(await self.children()) != 1:
                self.errors.append("a new child was not read")
        return Result(requeue_after=0)


async def test_c35_own_writes_are_read_although_the_watch_lags(case: Case) -> None:
    case.proxy.script("GET", "*", Forward(lines=(Hold(5 * SCALE),)), query=WATCH)
    async with case.managing() as manager:
        reconciler = OneChild(manager.client, Request(case.namespace, "parent"))
        controller_for(manager, ConfigMap).owns(Secret).complete(reconciler)
        async with running(manager):
            before, began = Footprint.take(case.proxy), time.monotonic()
            await case.write(["parent"])
            await eventually(lambda: reconciler.runs >= 50, within=30)
            await anyio.sleep(2 * 5 * SCALE)
            assert len(secrets(case)) == 1
            reconciler.shall_delete = True
            runs = reconciler.runs
            await eventually(
                lambda: not reconciler.shall_delete and reconciler.runs >= runs + 50, within=30
            )
            await anyio.sleep(2 * 5 * SCALE)
            assert len(secrets(case)) == 1
            assert reconciler.errors == []
            writes = case.proxy.traffic.writes(since=began)
            assert [e.request.method for e in writes] == ["POST", "DELETE", "POST"]
            assert [e.status for e in writes] == [201, 200, 201]
            bounded(case.proxy.traffic.select(since=began), total=10, per_second=10)
            await case.leaves_nothing(before)


def secrets(case: Case) -> list[Tree]:
    found: list[Tree] = case.plane.admin.get(case.path(plural="secrets"))["items"]
    return found


LEASES = Resource(GroupVersionKind("coordination.k8s.io", "v1", "Lease"), "leases")


async def test_c71_many_watches_leave_the_requests_their_connections(case: Case) -> None:
    registry = CollectorRegistry()
    metrics = RestClientMetrics(case.proxy.url, registry=registry)
    took: list[float] = []
    async with case.transport(max_connections=WRITERS, observe_wait=metrics.waited) as transport:
        options = InformerOptions(timing=TENTH, registry=registry)
        informers = Informers(transport, options=options)
        for number in range(120):
            informers.informer(ConfigMap.resource, namespace=f"{case.namespace}-{number}")
        client = DirectClient(transport)

        async def patch(number: int) -> None:
            started = time.monotonic()
            metadata = {"name": f"a{number}", "namespace": case.namespace}
            await client.apply(ConfigMap.resource, {"metadata": metadata}, field_manager="case")
            took.append(time.monotonic() - started)

        async with anyio.create_task_group() as group:
            await group.start(informers.run)
            await informers.wait_synced(60)
            await eventually(lambda: sum(e.is_open for e in case.proxy.traffic.watches()) == 120)
            await patch(0)
            before, began = Footprint.take(case.proxy), time.monotonic()
            async with anyio.create_task_group() as writers:
                for number in range(100):
                    writers.start_soon(patch, number)
            lease = {"metadata": {"name": "leader", "namespace": case.namespace}, "spec": {}}
            with anyio.fail_after(5):
                await client.apply(LEASES, lease, field_manager="case")
            assert max(took) < 25, "a request of some milliseconds"
            used = case.proxy.traffic.writes(since=began)
            assert used.connections() <= WRITERS
            bounded(used, total=101, per_second=101)
            await eventually(
                lambda: before.assert_no_growth(Footprint.take(case.proxy), allow=WRITERS + 2)
            )
            group.cancel_scope.cancel()
    labels = {"verb": "PATCH", "host": case.proxy.url}
    name = "rest_client_rate_limiter_duration_seconds"
    assert registry.get_sample_value(f"{name}_count", labels) == 102
    waited = registry.get_sample_value(f"{name}_sum", labels)
    assert waited is not None
    assert waited > 0
