# SPDX-License-Identifier: Apache-2.0
"""Answers that say no, connections that end at once, and how often we come back."""

from __future__ import annotations

import time
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.to_thread import run_sync
from prometheus_client import CollectorRegistry

from flexinfer.apply import Applier, Outcome
from flexinfer.builder import controller_for
from flexinfer.cache.informer import InformerOptions
from flexinfer.cache.informers import Informers
from flexinfer.cache.timing import Timing
from flexinfer.client.auth import TokenFileCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import FaultProxy, Footprint, Forward
from flexinfer.envtest.script import Answer, Close, Reset, status_answer
from flexinfer.errors import AlreadyExistsError, ThrottledError, TransportError
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource
from flexinfer.reconcile import Request, Result
from hack.faultcases import TENTH, Case, ConfigMap, bounded, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from flexinfer.client.protocol import Client
    from flexinfer.client.transport import Transport
    from flexinfer.envtest.faults.forward import FaultAction

WATCH = {"watch": "true"}


async def storm(case: Case, *, seconds: float, timing: Timing) -> None:
    async with case.watching(timing=timing) as watched:
        case.proxy.script("GET", case.path(), Answer(body=()), query=WATCH)
        case.proxy.strike(Close(), query=WATCH)
        await anyio.sleep(seconds)
        watches = watched.traffic.watches(case.path())
        assert 2 <= len(watches) <= 15
        bounded(watched.traffic, total=15, per_second=15)
        case.proxy.heal()
        await case.write(["a"])
        await eventually(lambda: len(watched.informer) == 1, within=5 * timing.backoff_most)
        assert len(watched.traffic.lists()) == 0


async def test_c17_watches_that_are_closed_at_once_make_no_storm(case: Case) -> None:
    await storm(case, seconds=3, timing=TENTH)


@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_c17_at_full_length(case: Case) -> None:
    await storm(case, seconds=30, timing=Timing())


def date() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=3), usegmt=True)


# What makes each form of the answer, and the least time that it asks for. A date has no fractions
# of a second, and some time passes before it is read.
FORMS: dict[str, tuple[Callable[[], Answer], float]] = {
    "status": (
        lambda: status_answer(429, "TooManyRequests", "slow", headers={"Retry-After": "1"}),
        1.0,
    ),
    "text": (lambda: Answer(429, {"Retry-After": "1"}, "Too many requests, slow down"), 1.0),
    "date": (lambda: status_answer(429, "TooManyRequests", "", headers={"Retry-After": date()}), 1),
    "no-header": (lambda: status_answer(429, "TooManyRequests", "slow down"), 0.02),
}


@pytest.mark.parametrize("form", FORMS)
async def test_c30_a_watch_that_is_put_off_waits_and_is_not_listed(case: Case, form: str) -> None:
    make, least = FORMS[form]
    async with case.watching() as watched:
        case.proxy.script("GET", case.path(), make(), Forward(), query=WATCH)
        case.proxy.strike(Close(), query=WATCH)
        await case.write(["a"])
        await eventually(lambda: len(watched.informer) == 1, within=30)
        refused, served = watched.traffic.watches(case.path())[-2:]
        assert (refused.status, served.status) == (429, 200)
        assert served.at - refused.at >= least
        assert len(watched.traffic.lists()) == 0
        bounded(watched.traffic, total=3, per_second=3)


class Touch:
    """Apply an annotation to one ConfigMap."""

    def __init__(self, client: Client, key: Request) -> None:
        self.client = client
        self.key = key
        self.done = 0

    async def reconcile(self, request: Request) -> Result:
        if request == self.key:
            metadata = {"name": request.name, "namespace": request.namespace}
            intent = {"metadata": {**metadata, "annotations": {"seen": "yes"}}}
            await self.client.apply(ConfigMap.resource, intent, field_manager="touch")
            self.done += 1
        return Result()


@pytest.mark.parametrize("form", FORMS)
async def test_c30_a_write_that_is_put_off_waits_and_is_no_error(case: Case, form: str) -> None:
    make, least = FORMS[form]
    async with case.managing(request_timeout=15) as manager:
        reconciler = Touch(manager.client, Request(case.namespace, "a"))
        controller_for(manager, ConfigMap).complete(reconciler)
        async with running(manager):
            before = Footprint.take(case.proxy)
            case.proxy.script("PATCH", case.path("a"), make(), Forward())
            await case.write(["a"])
            await eventually(lambda: reconciler.done > 0, within=30)
            refused, served = case.proxy.traffic.writes()[:2]
            assert (refused.status, served.status) == (429, 200)
            assert served.at - refused.at >= least
            await case.leaves_nothing(before)
    errors = manager.registry.get_sample_value(
        "controller_runtime_reconcile_errors_total", {"controller": "configmap"}
    )
    assert errors == 0


async def test_c30_a_server_that_puts_off_for_ever_is_not_hammered(case: Case) -> None:
    busy = status_answer(429, "TooManyRequests", "slow down")
    case.proxy.script("GET", case.path("a"), busy)
    async with case.transport() as transport:
        with pytest.raises(ThrottledError):
            await transport.request("GET", case.path("a"), timeout=20)
    bounded(case.proxy.traffic, total=5, per_second=5)


CORE = tuple(
    Resource(GroupVersionKind("", "v1", kind), plural)
    for kind, plural in (
        ("ConfigMap", "configmaps"),
        ("Secret", "secrets"),
        ("Service", "services"),
        ("ServiceAccount", "serviceaccounts"),
        ("PersistentVolumeClaim", "persistentvolumeclaims"),
    )
)


async def herd(case: Case, *, namespaces: int, seconds: float, timing: Timing) -> None:
    """Kill an API server for so long; without a watch cache it still knows every position."""
    names = [f"{case.namespace}-{n}" for n in range(namespaces)]
    with ExitStack() as stack:
        server = stack.enter_context(case.plane.add_apiserver("--watch-cache=false"))
        proxy = stack.enter_context(FaultProxy.start(server))
        async with (
            replace(case, proxy=proxy).transport() as transport,
            informing(transport, names, timing) as informers,
        ):
            count = len(list(informers))
            await eventually(lambda: sum(e.is_open for e in proxy.traffic.watches()) == count)
            before, began = Footprint.take(proxy), time.monotonic()
            case.plane.processes.kill(server.name)
            await anyio.sleep(seconds)
            bounded(proxy.traffic.select(since=began), total=15 * count, per_second=10 * count)
            case.plane.processes.start(server.name)
            await run_sync(server.wait_ready)
            ready = time.monotonic()
            await eventually(
                lambda: sum(e.is_open for e in proxy.traffic.watches(since=began)) == count,
                within=5 * 2 * timing.backoff_most,
            )
            assert len(proxy.traffic.lists(since=began)) == 0
            served = [e.at for e in proxy.traffic.watches(since=began) if e.status == 200]
            assert max(served) - min(served) > 1.25 * timing.backoff_first, "they came together"
            assert proxy.traffic.select(since=ready).peak_per_second() <= 10
            await case_leaves_nothing(proxy, before)


async def case_leaves_nothing(proxy: FaultProxy, before: Footprint) -> None:
    await eventually(lambda: before.assert_no_growth(Footprint.take(proxy)), within=30)


@asynccontextmanager
async def informing(
    transport: Transport, namespaces: list[str], timing: Timing
) -> AsyncIterator[Informers]:
    options = InformerOptions(timing=timing, registry=CollectorRegistry())
    informers = Informers(transport, options=options)
    for namespace in namespaces:
        for resource in CORE:
            informers.informer(resource, namespace=namespace)
    async with anyio.create_task_group() as group:
        await group.start(informers.run)
        await informers.wait_synced(60)
        yield informers
        group.cancel_scope.cancel()


async def test_c31_informers_come_back_one_by_one_and_without_lists(case: Case) -> None:
    await herd(case, namespaces=1, seconds=2, timing=TENTH)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_c31_at_full_length(case: Case) -> None:
    await herd(case, namespaces=10, seconds=20, timing=Timing())


async def test_c70_a_while_of_403_and_500_is_waited_out(case: Case) -> None:
    async with case.managing() as manager:
        reconciler = Touch(manager.client, Request(case.namespace, "a"))
        controller_for(manager, ConfigMap).complete(reconciler)
        async with running(manager):
            before, began = Footprint.take(case.proxy), time.monotonic()
            no = status_answer(403, "Forbidden", "not yet")
            for code, reason in ((401, "Unauthorized"), (500, "InternalError")):
                case.proxy.script("PATCH", "*", no, status_answer(code, reason, "not yet"), no)
            case.proxy.script("GET", "*", no)
            case.proxy.strike(Reset())
            await case.write(["a"])
            await eventually(lambda: not manager.readyz.report().healthy)
            await anyio.sleep(2)
            bounded(case.proxy.traffic.select(since=began), total=40, per_second=20)
            case.proxy.heal()
            await eventually(lambda: reconciler.done > 0, within=60)
            await eventually(lambda: manager.readyz.report().healthy, within=30)
            await case.leaves_nothing(before)


async def test_c70_many_refusals_at_once_renew_the_token_once(case: Case, tmp_path: Path) -> None:
    await case.write(["a"])
    token = tmp_path / "token"
    token.write_text("of-yesterday")
    credentials = TokenFileCredentials(
        case.proxy.url, token, context=client_context(case.proxy.ca_pem)
    )
    token.write_text(f"{case.plane.admin_token}\n")
    async with case.transport(credentials=credentials) as transport:
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append(await transport.request("GET", case.path("a")))

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(ask)
        assert len(answers) == 50
        assert (await credentials.authorization()).generation == 1
    refused = [e for e in case.proxy.traffic if e.status == 401]
    assert refused
    bounded(case.proxy.traffic, total=100, per_second=100)


async def test_c72_a_lost_keep_alive_connection_costs_nothing(case: Case) -> None:
    names = [f"a{n}" for n in range(200)]
    one_in_twenty: list[FaultAction] = [*[Forward()] * 19, Reset()]
    case.proxy.script("*", "*", *one_in_twenty * 100)
    async with case.transport() as transport:
        client = DirectClient(transport)
        before: list[Footprint] = []

        async def work(mine: list[str]) -> None:
            for name in mine:
                metadata = {"name": name, "namespace": case.namespace}
                with suppress(AlreadyExistsError):
                    await client.create(
                        ConfigMap.resource, {"metadata": metadata}, field_manager="case"
                    )
                intent = {"metadata": metadata, "data": {"round": "1"}}
                await client.apply(ConfigMap.resource, intent, field_manager="case")
                assert await client.read(ConfigMap.resource, NamespacedName(case.namespace, name))

        await client.read(ConfigMap.resource, NamespacedName(case.namespace, "none"))
        before.append(Footprint.take(case.proxy))
        async with anyio.create_task_group() as group:
            for worker in range(4):
                group.start_soon(work, names[worker::4])
        assert len(await client.list(ConfigMap, namespace=case.namespace)) == len(names)
        lost = [e for e in case.proxy.traffic if e.action == Reset()]
        assert len(lost) >= 25
        methods = {e.request.method for e in lost}
        assert methods == {"GET", "PATCH", "POST"}
        assert len(case.proxy.traffic) <= 1 + 3 * len(names) + 2 + len(lost)
        await eventually(
            lambda: before[0].assert_no_growth(Footprint.take(case.proxy), allow=8), within=30
        )


async def test_c72_a_first_apply_whose_answer_is_lost_has_made_its_object(case: Case) -> None:
    late = Forward(delay=60)  # the server does it at once
    case.proxy.script("PATCH", case.path("a"), late, Forward())
    intent = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": case.namespace},
        "data": {"key": "value"},
    }

    async def lose() -> None:
        await eventually(lambda: case.plane.admin.get(case.path("a")))
        assert case.proxy.strike(Reset()) == 1

    async with case.transport() as transport:
        applier = Applier(DirectClient(transport), field_manager="case")
        async with anyio.create_task_group() as group:
            group.start_soon(lose)
            applied = await applier.apply(ConfigMap.resource, intent, owner=None)
        assert applied.outcome is Outcome.CREATED
    answers = [(e.request.method, e.status) for e in case.proxy.traffic]
    assert answers == [("GET", 404), ("PATCH", None), ("PATCH", 409), ("GET", 200), ("PATCH", 200)]


async def test_c72_what_could_be_made_twice_is_not_sent_again(case: Case) -> None:
    case.proxy.script("POST", case.path(), Reset())
    async with case.transport() as transport:
        intent = {"metadata": {"generateName": "a-", "namespace": case.namespace}}
        with pytest.raises(TransportError):
            await DirectClient(transport).create(ConfigMap.resource, intent, field_manager="case")
    assert len(case.proxy.traffic) == 1
