# SPDX-License-Identifier: Apache-2.0
"""Objects that come and go: whatever is remembered of one goes with it."""

from __future__ import annotations

import gc
import logging
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest
import structlog
from prometheus_client import CollectorRegistry

from flexinfer import hotloop
from flexinfer.apply import Applier
from flexinfer.builder import controller_for
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.controller import ControllerOptions
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import Footprint
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.predicate import any_of, generation_changed, labels_changed
from flexinfer.reconcile import Request, Result
from hack.faultcases import Case, ConfigMap, Secret, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.apply import LiveClient

WAVE = 500
CHILDREN = 10  # every tenth object gets a child


class Failing:
    """Fail once for every object, apply a child for some, and forget what is gone."""

    def __init__(self, client: LiveClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.failed: set[str] = set()
        self.done: set[str] = set()
        self.gone = 0
        self._applier = Applier(client, field_manager="growth")

    async def reconcile(self, request: Request) -> Result:
        if request.namespace != self.namespace:
            return Result()
        owner = await self.client.get(ConfigMap, request)
        if owner is None:
            self._applier.forget(ConfigMap.resource, request)
            self.failed.discard(request.name)
            self.gone += request.name in self.done
            self.done.discard(request.name)
            return Result()
        if request.name not in self.failed:
            self.failed.add(request.name)
            raise RuntimeError("the first run of every object fails")
        if int(request.name.rpartition("-")[2]) % CHILDREN == 0:
            metadata = {"name": request.name, "namespace": request.namespace}
            child = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
            await self._applier.apply(Secret.resource, child, owner=owner)
        self.done.add(request.name)
        return Result()


class Held(NamedTuple):
    """What this process holds: objects, and bytes of their containers."""

    objects: int
    bytes: int

    @classmethod
    def now(cls) -> Held:
        for _ in range(3):
            gc.collect()
        held = gc.get_objects()
        return cls(len(held), sum(sys.getsizeof(item, 0) for item in held))


async def wave(case: Case, reconciler: Failing, number: int) -> None:
    """Let a wave of objects come, be reconciled, and go."""
    names = [f"wave-{number * WAVE + one}" for one in range(WAVE)]
    gone = reconciler.gone
    await case.write(names)
    await eventually(lambda: reconciler.done == set(names), within=60)
    for plural in ("secrets", "configmaps"):
        case.plane.admin.delete(case.path(plural=plural))
    await eventually(lambda: reconciler.gone == gone + WAVE, within=60)


async def come_and_go(case: Case, *, waves: int) -> None:
    options = ManagerOptions(
        metrics_address="0",
        probe_address="0",
        grace=10,
        controller=ControllerOptions(workers=4),
        signals=(),
    )
    # Past the proxy, which keeps a record of everything that passes.
    context = client_context(case.plane.ca_file.read_text())
    credentials = StaticCredentials(case.plane.url, token=case.plane.admin_token, context=context)
    async with Transport(credentials) as transport:
        registry = CollectorRegistry()
        manager = Manager(transport, options=options, registry=registry)
        reconciler = Failing(manager.client, case.namespace)
        either = any_of(generation_changed, labels_changed)
        controller_for(manager, ConfigMap, predicate=either).owns(Secret).complete(reconciler)
        async with running(manager, within=3000):
            for number in range(2):
                await wave(case, reconciler, number)
            before, footprint, series = Held.now(), Footprint.take(case.proxy), samples(registry)
            for number in range(2, 2 + waves):
                await wave(case, reconciler, number)
            after = Held.now()
            # Far less than one object, or 100 bytes, for each that came and went.
            came = waves * WAVE
            assert after.objects <= before.objects + came / 3, (before, after)
            assert after.bytes <= before.bytes + 50 * came, (before, after)
            # What happens for the first time, such as the end of a watch, adds a series.
            assert samples(registry) <= series + 20
            await case.leaves_nothing(footprint)


def samples(registry: CollectorRegistry) -> int:
    return sum(len(family.samples) for family in registry.collect())


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write no lines: those of ten thousand failures take longer than all the rest.

    The hot-loop detector remembers what was written for, which is no growth: here for a second.
    """
    monkeypatch.setattr(hotloop, "WINDOW", 1.0)
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("quiet")
async def test_c37_what_comes_and_goes_leaves_nothing_behind(case: Case) -> None:
    await come_and_go(case, waves=18)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("quiet")
async def test_c37_at_full_count(case: Case) -> None:
    await come_and_go(case, waves=198)
