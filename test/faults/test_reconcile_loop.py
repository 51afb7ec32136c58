# SPDX-License-Identifier: Apache-2.0
"""Reconcilers that harm their own loop: one that blocks it, and one that wakes itself up."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, ClassVar

import anyio
import pytest
import structlog
from prometheus_client import CollectorRegistry
from pydantic import Field

from flexinfer import conditions
from flexinfer.apply import StatusWriter
from flexinfer.builder import controller_for
from flexinfer.crd.generate import crd_for
from flexinfer.crd.markers import ListMap, resource
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import Footprint
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.condition import Condition, ConditionStatus
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import Resource
from flexinfer.reconcile import Request, Result
from hack.faultcases import Case, ConfigMap, bounded, running

if TYPE_CHECKING:
    from flexinfer.client.protocol import Client
    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree

LOOP_LAG = 0.1  # seconds: a tenth
STALL = 2 * LOOP_LAG


class BeaconStatus(Model):
    """What a beacon says of itself."""

    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = Field(default=(), max_length=8)
    """How it is."""
    beats: int = 0
    """How often it was looked at: what no status should hold."""


@resource(group="loops.example.com", version="v1", plural="beacons")
class Beacon(Object):
    """An object whose status its controller writes."""

    resource: ClassVar[Resource]
    status: BeaconStatus = BeaconStatus()
    """What it says of itself."""


@pytest.fixture(scope="module")
def beacons(fault_plane: ControlPlane) -> str:
    crd = crd_for(Beacon)
    name: str = crd["metadata"]["name"]
    fault_plane.admin.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", crd)
    fault_plane.wait_established(name)
    return name


def quiet_options(**more: float) -> ManagerOptions:
    return ManagerOptions(metrics_address="0", probe_address="0", grace=10, signals=(), **more)  # type: ignore[arg-type] # numbers only


class Blocking:
    """Note which version of each object was seen, and now and then block the loop."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.versions: dict[str, str] = {}
        self.stalls = 0
        self._dice = random.Random(12)  # noqa: S311 - the same stalls in every run

    async def reconcile(self, request: Request) -> Result:
        if request.namespace == self.namespace:
            found = await self.client.get(ConfigMap, request)
            if self._dice.random() < 0.1:
                self.block()
            if found is not None:
                self.versions[request.name] = found.metadata.resource_version
        return Result()

    def block(self) -> None:
        self.stalls += 1
        time.sleep(STALL)


async def test_c12_no_change_is_lost_while_reconciles_block_the_loop(case: Case) -> None:
    names = [f"object-{number}" for number in range(20)]
    registry = CollectorRegistry()
    with structlog.testing.capture_logs() as logs:
        async with case.transport() as transport:
            manager = Manager(
                transport, options=quiet_options(loop_lag=LOOP_LAG), registry=registry
            )
            reconciler = Blocking(manager.client, case.namespace)
            controller_for(manager, ConfigMap).complete(reconciler)
            async with running(manager):
                before = Footprint.take(case.proxy)
                since = time.monotonic()
                for round_ in range(5):
                    await case.write(names, round=str(round_))
                items = case.plane.admin.get(case.path())["items"]
                last = {
                    item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items
                }
                await eventually(lambda: reconciler.versions == last, within=60)
                assert reconciler.stalls
                assert case.proxy.traffic.lists("/api/v1/configmaps", since=since) == ()
                bounded(case.proxy.traffic.select(since=since), total=5, per_second=3)
                lag = "flexinfer_event_loop_lag_seconds"
                await eventually(lambda: (registry.get_sample_value(lag) or 0) > STALL / 2)
                await case.leaves_nothing(before)
    stalls = [line for line in logs if line["event"] == "the event loop is blocked"]
    assert any("in block" in line["stack"] for line in stalls), stalls
    assert all(line["seconds"] > LOOP_LAG / 2 for line in stalls)


class Beating:
    """Write the status in every run, with the time of the run in its hands."""

    def __init__(self, client: Client, namespace: str, *, heartbeat: bool) -> None:
        self.client = client
        self.namespace = namespace
        self.heartbeat = heartbeat
        self.runs: list[str] = []
        self._writer = StatusWriter(client, field_manager="beating")

    async def reconcile(self, request: Request) -> Result:
        beacon = await self.client.get(Beacon, request)
        if beacon is None or request.namespace != self.namespace:
            return Result()
        self.runs.append(request.name)
        ready = conditions.set_condition(
            beacon.status.conditions,
            "Ready",
            ConditionStatus.TRUE,
            reason="Lit",
            message="it shines",
            observed_generation=beacon.metadata.generation,
            now=datetime.now(UTC),
        )
        status: Tree = {"conditions": [condition.wire() for condition in ready]}
        if self.heartbeat:
            status["beats"] = beacon.status.beats + 1
        await self._writer.write(Beacon.resource, beacon.metadata, status)
        return Result()


def create(case: Case, name: str) -> str:
    collection = Beacon.resource.collection_path(case.namespace)
    body = {"apiVersion": "loops.example.com/v1", "kind": "Beacon", "metadata": {"name": name}}
    case.plane.admin.create(collection, body)
    return f"{collection}/{name}"


def is_quiet(case: Case, path: str) -> bool:
    """Tell whether nothing was written for half a second."""
    return not case.proxy.traffic.writes(f"{path}/status", since=time.monotonic() - 0.5)


async def test_c13_a_status_that_says_the_same_is_written_once(case: Case, beacons: str) -> None:
    assert beacons
    async with case.transport() as transport:
        manager = Manager(transport, options=quiet_options(), registry=CollectorRegistry())
        reconciler = Beating(manager.client, case.namespace, heartbeat=False)
        controller_for(manager, Beacon).complete(reconciler)
        async with running(manager):
            path = create(case, "first")

            def writes(of: str) -> int:
                return len(case.proxy.traffic.writes(f"{of}/status"))

            await eventually(lambda: writes(path) == 1)
            written = await eventually(lambda: case.plane.admin.get(path))
            # What follows from the first object's events has happened once the second's has,
            # and whatever happens by itself has a second and a half to do so.
            second = create(case, "second")
            await eventually(lambda: writes(second) == 1)
            await anyio.sleep(1.5)
            for name in ("first", "second"):
                assert 1 <= reconciler.runs.count(name) <= 2, reconciler.runs
            assert writes(path) == 1
            # Somebody else's event is a run, with another time in its hands, and no write.
            runs = len(reconciler.runs)
            case.plane.admin.merge(path, {"metadata": {"labels": {"touched": "yes"}}})
            await eventually(lambda: len(reconciler.runs) > runs)
            await anyio.sleep(0.2)
            assert writes(path) == 1
            live = case.plane.admin.get(path)
            assert live["status"] == written["status"]
    labels = {"controller": "beacon"}
    assert manager.registry.get_sample_value("flexinfer_hot_loops_total", labels) == 0


async def test_c13_a_heartbeat_in_the_status_is_found_as_a_hot_loop(
    case: Case, beacons: str
) -> None:
    assert beacons
    with structlog.testing.capture_logs() as logs:
        async with case.transport() as transport:
            manager = Manager(transport, options=quiet_options(), registry=CollectorRegistry())
            reconciler = Beating(manager.client, case.namespace, heartbeat=True)
            controller_for(manager, Beacon).complete(reconciler)

            def hot_loops() -> float:
                labels = {"controller": "beacon"}
                name = "flexinfer_hot_loops_total"
                return manager.registry.get_sample_value(name, labels) or 0.0

            async with running(manager):
                before = Footprint.take(case.proxy)
                path = create(case, "hot")
                await eventually(lambda: hot_loops() == 1, within=60)
                more = len(reconciler.runs) + 20
                await eventually(lambda: len(reconciler.runs) >= more)
                assert hot_loops() == 1
                reconciler.heartbeat = False
                await eventually(lambda: is_quiet(case, path))
                await case.leaves_nothing(before)
    (line,) = [line for line in logs if line["event"].startswith("hot loop")]
    assert line["log_level"] == "warning"
    assert (line["object"], line["runs"]) == (f"{case.namespace}/hot", 31)
