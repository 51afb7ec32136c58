# SPDX-License-Identifier: Apache-2.0
"""Probes tell the truth: not ready, and why, while nothing works; alive as long as it can heal."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import anyio
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.builder import controller_for
from flexinfer.cache.timing import Timing
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import Footprint
from flexinfer.envtest.script import Answer, Hang
from flexinfer.leaderelection import LeaderElectionOptions, Leadership
from flexinfer.looplag import LIMIT
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.reconcile import Request, Result
from hack.faultcases import Case, ConfigMap, bounded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# A fiftieth: a watch counts as stale after 2.4 s.
QUICK = Timing().scaled(0.02)
FORBIDDEN = Answer(
    403,
    body={
        "kind": "Status",
        "status": "Failure",
        "reason": "Forbidden",
        "message": "configmaps is forbidden",
        "code": 403,
    },
)


class Idle:
    async def reconcile(self, request: Request) -> Result:
        assert request
        return Result()


@asynccontextmanager
async def probed(
    case: Case, *, timing: Timing = QUICK, loop_lag: float = LIMIT, elected: bool = False
) -> AsyncIterator[Manager]:
    """Run a manager that watches ConfigMaps; it need not be ready when the block begins."""
    lease = LeaderElectionOptions(
        name="probed",
        namespace=case.namespace,
        lease_duration=3.0,
        renew_deadline=2.0,
        retry_period=0.4,
    )
    registry = CollectorRegistry()
    leadership = Leadership(lease, case.transport, registry=registry) if elected else None
    options = ManagerOptions(
        metrics_address="0",
        probe_address="127.0.0.1:0",
        grace=10,
        timing=timing,
        loop_lag=loop_lag,
        signals=(),
    )
    async with case.transport() as transport:
        manager = Manager(transport, options=options, leadership=leadership, registry=registry)
        controller_for(manager, ConfigMap).complete(Idle())
        async with anyio.create_task_group() as group:
            await group.start(manager.run)
            yield manager
            case.proxy.heal()
            manager.stop()


async def answer(manager: Manager, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{manager.probe_port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def is_ready(manager: Manager) -> None:
    assert (await answer(manager, "/readyz"))[0] == 200


async def fails_by(manager: Manager, check: str, text: str) -> None:
    """Claim that this check, and no other, keeps the process from being ready."""
    status, report = await answer(manager, "/readyz")
    assert status == 500
    failed = [line for line in report.splitlines() if line.startswith("[-]")]
    assert len(failed) == 1, report
    assert failed[0].startswith(f"[-]{check} failed: "), report
    assert text in failed[0], report
    assert (await answer(manager, f"/readyz/{check}"))[0] == 500
    assert (await answer(manager, "/healthz"))[0] == 200


async def test_c74_an_informer_that_cannot_list_is_named(case: Case) -> None:
    case.proxy.script("GET", "/api/v1/configmaps", FORBIDDEN)
    with anyio.fail_after(60):
        async with probed(case) as manager:
            await eventually(lambda: fails_by(manager, "informer-configmaps", "forbidden: cannot"))
            bounded(case.proxy.traffic.lists("/api/v1/configmaps"), total=100, per_second=20)
            case.proxy.heal()
            await eventually(lambda: is_ready(manager))


async def watch_goes_stale(case: Case, timing: Timing) -> None:
    # The informer last heard of the server some time after this.
    started = time.monotonic()
    async with probed(case, timing=timing) as manager:
        await eventually(lambda: is_ready(manager))
        before = Footprint.take(case.proxy)
        since = time.monotonic()
        case.proxy.script("*", "*", Hang())
        case.proxy.strike(Hang())
        await eventually(
            lambda: fails_by(manager, "informer-configmaps", "stale: no word from the API server"),
            within=5 * timing.stale_after,
        )
        assert time.monotonic() - started >= timing.stale_after
        bounded(case.proxy.traffic.select(since=since), total=20, per_second=10)
        case.proxy.heal()
        await eventually(lambda: is_ready(manager), within=max(30, 5 * timing.open_timeout))
        await case.leaves_nothing(before)


async def test_c74_a_watch_that_went_stale_is_named(case: Case) -> None:
    with anyio.fail_after(60):
        await watch_goes_stale(case, QUICK)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_c74_at_full_length(case: Case) -> None:
    await watch_goes_stale(case, Timing())


async def test_c74_a_blocked_event_loop_is_named(case: Case) -> None:
    with anyio.fail_after(60):
        async with probed(case, loop_lag=LIMIT / 5) as manager:
            await eventually(lambda: is_ready(manager))
            time.sleep(LIMIT / 2)  # noqa: ASYNC251 - to block the loop is the point
            await fails_by(manager, "event-loop", "the event loop was blocked for")
            await eventually(lambda: is_ready(manager))


async def test_c74_a_lost_lease_is_named_and_the_process_heals(case: Case) -> None:
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{case.namespace}/leases*"
    with anyio.fail_after(90):
        async with probed(case, elected=True) as manager:
            leadership = manager.leadership
            assert leadership is not None
            await eventually(lambda: leadership.token is not None)
            await eventually(lambda: is_ready(manager))
            since = time.monotonic()
            case.proxy.script("*", lease, Hang())
            case.proxy.strike(Hang(), path=lease)
            await eventually(lambda: fails_by(manager, "leader-election", "lease"), within=30)
            assert leadership.token is None
            bounded(case.proxy.traffic.select(path=lease, since=since), total=50, per_second=15)
            case.proxy.heal()
            await eventually(lambda: is_ready(manager), within=30)
            await eventually(lambda: leadership.token is not None, within=30)
