# SPDX-License-Identifier: Apache-2.0
"""Connections that stay open and say nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest

from flexinfer.builder import controller_for
from flexinfer.cache.timing import Timing
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import Bookmarks, Footprint, Forward
from flexinfer.envtest.script import Hang
from flexinfer.reconcile import Request, Result
from hack.faultcases import TENTH, Case, ConfigMap, bounded, running

if TYPE_CHECKING:
    from flexinfer.client.protocol import Client

WATCH = {"watch": "true"}


# Ten times as long as in use, so that only the idle timeout can end a watch in time.
PATIENT = replace(TENTH, watch_timeout=10 * Timing().watch_timeout)


@pytest.mark.parametrize("bookmarks", [(), (Bookmarks(1.0),)], ids=["before", "after"])
async def test_c15_a_silent_watch_is_given_up_and_resumed_before_and_after_a_bookmark(
    case: Case, bookmarks: tuple[Bookmarks, ...]
) -> None:
    names = [f"a{n}" for n in range(10)]
    await case.write(names, round="0")
    case.proxy.script("GET", case.path(), Forward(lines=bookmarks), query=WATCH)
    async with case.watching(timing=PATIENT) as watched:
        if bookmarks:
            await eventually(lambda: watched.metric("events_total", type="BOOKMARK") > 0)
        heard = len(watched.heard)
        assert case.proxy.strike(Hang(), path=case.path(), query=WATCH) == 1
        await case.write(names, round="1")
        assert len(watched.heard) == heard
        await eventually(
            lambda: all(watched.data(name) == {"round": "1"} for name in names),
            within=5 * PATIENT.idle_timeout,
        )
        assert len(watched.heard) == heard + len(names)
        assert len(watched.traffic.lists(case.path())) == 0
        bounded(watched.traffic, total=5, per_second=3)


async def test_c15_an_informer_that_hears_nothing_says_that_it_is_stale(case: Case) -> None:
    async with case.watching() as watched:
        case.proxy.script("*", "*", Hang())
        case.proxy.strike(Hang())
        await eventually(
            lambda: "stale: no word from the API server" in str(watched.informer.health()),
            within=5 * TENTH.stale_after,
        )
        bounded(watched.traffic, total=10, per_second=3)
        case.proxy.heal()
        await eventually(lambda: watched.informer.health() is None, within=5 * TENTH.open_timeout)


@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_c15_at_full_length(case: Case) -> None:
    async with case.watching(timing=Timing()) as watched:
        case.proxy.strike(Hang(), path=case.path(), query=WATCH)
        await case.write([f"a{n}" for n in range(10)])
        with anyio.fail_after(95):
            await eventually(lambda: len(watched.informer) == 10, within=95)
        assert len(watched.traffic.lists(case.path())) == 0
        bounded(watched.traffic, total=3, per_second=3)


class Labeller:
    """Write a label to every ConfigMap, once."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.done: list[str] = []
        self.begun: list[str] = []

    async def reconcile(self, request: Request) -> Result:
        if request.namespace == self.namespace:
            self.begun.append(request.name)
            metadata = {"name": request.name, "namespace": request.namespace}
            intent = {"metadata": {**metadata, "labels": {"seen": "yes"}}}
            await self.client.apply(ConfigMap.resource, intent, field_manager="labeller")
            self.done.append(request.name)
        return Result()


async def test_c16_a_request_that_is_never_answered_does_not_hold_its_worker(case: Case) -> None:
    case.proxy.script("PATCH", case.path("stuck"), Hang())
    async with case.managing(request_timeout=3.0) as manager:
        reconciler = Labeller(manager.client, case.namespace)
        controller_for(manager, ConfigMap).complete(reconciler)
        async with running(manager):
            before = Footprint.take(case.proxy)
            await case.write(["stuck"])
            await eventually(lambda: "stuck" in reconciler.begun)
            await case.write(["a", "b", "c"])
            await eventually(lambda: {"a", "b", "c"} <= set(reconciler.done), within=15)
            await eventually(lambda: reconciler.begun.count("stuck") >= 2, within=30)
            assert "stuck" not in reconciler.done
            bounded(case.proxy.traffic.writes(case.path("stuck")), total=10, per_second=3)
            case.proxy.heal()
            await eventually(lambda: "stuck" in reconciler.done, within=15)
            await case.leaves_nothing(before)
    requests = manager.registry.get_sample_value(
        "controller_runtime_reconcile_errors_total", {"controller": "configmap"}
    )
    assert requests
    assert requests >= 1
