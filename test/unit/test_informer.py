# SPDX-License-Identifier: Apache-2.0
"""Informers: handlers, state, and the set of them; and the same over real TLS."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.lowlevel import checkpoint

from flexinfer.cache.informer import Informer, InformerOptions
from flexinfer.cache.informers import Informers
from flexinfer.cache.timing import Timing
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.clock import ManualClock
from flexinfer.envtest.script import Answer, Bytes, Close, Hang, Lines, Until, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.envtest.simulated import SimulatedApi
from flexinfer.errors import (
    CacheNotSyncedError,
    ConfigurationError,
    ForbiddenError,
    NotFoundError,
    TransportError,
)
from flexinfer.event import CreateEvent
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource
from flexinfer.meta.selector import Selector
from flexinfer.metrics import Registry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.event import Event
    from flexinfer.meta.envelope import Tree

WIDGETS = Resource(GroupVersionKind("test.io", "v1", "Widget"), "widgets")
NODES = Resource(GroupVersionKind("", "v1", "Node"), "nodes", namespaced=False)
KEY = NamespacedName("default", "a")


def options(clock: ManualClock | None = None) -> InformerOptions:
    clock = clock or ManualClock()
    timing = Timing(clock=clock, sleep=clock.sleep, random=lambda: 0.0)
    return InformerOptions(timing=timing, registry=Registry())


@asynccontextmanager
async def running(api: SimulatedApi, informer: Informer) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(informer.run)
        await informer.wait_synced(5)
        await until(lambda: api.watches)
        yield
        group.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(5):
        while not condition():
            await checkpoint()


async def test_the_first_objects_are_marked_and_synced_means_that_handlers_heard_them() -> None:
    api = SimulatedApi(WIDGETS)
    api.put("a")
    informer = Informer(api, WIDGETS, options=options())
    heard: list[tuple[Event, bool]] = []
    informer.add_handler(lambda event: heard.append((event, informer.has_synced)))
    async with running(api, informer):
        api.put("b")
        await until(lambda: len(heard) == 2)
    (first, synced_at_first), (second, synced_at_second) = heard
    assert isinstance(first, CreateEvent)
    assert isinstance(second, CreateEvent)
    assert (first.is_initial, synced_at_first) == (True, False)
    assert (second.is_initial, synced_at_second) == (False, True)


async def test_a_late_handler_hears_of_what_is_there_and_then_of_changes() -> None:
    api = SimulatedApi(WIDGETS)
    api.put("a")
    informer = Informer(api, WIDGETS, options=options())
    async with running(api, informer):
        heard: list[Event] = []
        informer.add_handler(heard.append)
        assert [isinstance(e, CreateEvent) and e.is_initial for e in heard] == [True]
        api.put("b")
        await until(lambda: len(heard) == 2)
        assert heard[1] == CreateEvent(heard[1].object)  # type: ignore[union-attr]  # a create


async def test_a_late_handler_hears_what_the_server_said_not_what_was_written_here() -> None:
    api = SimulatedApi(WIDGETS)
    api.put("a")
    informer = Informer(api, WIDGETS, options=options())
    async with running(api, informer):
        api.is_holding = True
        informer.wrote(api.put("a", size=2))
        informer.wrote(api.put("b"))
        heard: list[Event] = []
        informer.add_handler(heard.append)
        assert [e.object.meta.resource_version for e in heard if isinstance(e, CreateEvent)] == [
            "101"
        ]


async def test_c26_a_raising_handler_is_isolated_and_counted() -> None:
    api = SimulatedApi(WIDGETS)
    chosen = options()
    informer = Informer(api, WIDGETS, options=chosen)
    heard: list[Event] = []

    def broken(_: Event) -> None:
        raise ZeroDivisionError

    informer.add_handler(broken)
    informer.add_handler(heard.append)
    informer.add_index("broken", lambda item: [item.meta.labels["missing"]])
    async with running(api, informer):
        api.put("a")
        api.put("b")
        await until(lambda: len(heard) == 2)
        assert informer.by_index("broken", "x") == []
    for callback in ("handler", "index"):
        labels = {"resource": "widgets.test.io", "selector": "", "callback": callback}
        name = "flexinfer_informer_callback_errors_total"
        assert chosen.registry.get_sample_value(name, labels) == 2


async def test_reads_choose_by_namespace_labels_and_index() -> None:
    api = SimulatedApi(WIDGETS)
    api.put("a", labels={"app": "x"})
    api.put("b", labels={"app": "y"})
    api.put("c", namespace="other", labels={"app": "x"})
    informer = Informer(api, WIDGETS, options=options())
    informer.add_index("app", lambda item: [item.meta.labels["app"]])
    async with running(api, informer):
        chosen = informer.list(namespace="default", labels=Selector.parse("app=x"))
        assert [item.meta.name for item in chosen] == ["a"]
        assert {item.meta.name for item in informer.by_index("app", "x")} == {"a", "c"}
        assert {str(key) for key in informer.keys_by_index("app", "x")} == {"default/a", "other/c"}
        assert sorted(map(str, informer.keys())) == ["default/a", "default/b", "other/c"]
        assert informer.get(KEY) is chosen[0]
        assert len(informer) == len(informer.list()) == 3
        assert "widgets.test.io" in repr(informer)


async def test_c35_own_writes_move_between_indexes_at_once() -> None:
    api = SimulatedApi(WIDGETS)
    api.put("a", labels={"app": "x"})
    informer = Informer(api, WIDGETS, options=options())
    informer.add_index("app", lambda item: [item.meta.labels["app"]])
    async with running(api, informer):
        api.is_holding = True
        informer.wrote(api.put("a", labels={"app": "y"}))
        assert informer.by_index("app", "x") == []
        assert [item.meta.name for item in informer.by_index("app", "y")] == ["a"]
        informer.deleted(KEY, "uid-1")
        assert informer.by_index("app", "y") == []
        assert informer.list() == []
        api.is_holding = False
        api.delete("a")
        api.bookmark()
        await until(lambda: len(informer._own) == 0)
        assert informer.list() == []


async def test_with_a_field_selector_only_known_objects_take_own_writes() -> None:
    api = SimulatedApi(WIDGETS)
    api.put("a")
    informer = Informer(api, WIDGETS, fields="spec.size!=2", options=options())
    async with running(api, informer):
        assert api.asked[0].params["fieldSelector"] == "spec.size!=2"
        api.is_holding = True
        informer.wrote(api.put("a", size=3))
        informer.wrote(api.put("b"))
        assert [item.meta.name for item in informer.list()] == ["a"]
        assert informer.get(KEY).meta.resource_version == "102"  # type: ignore[union-attr]  # it is there


async def test_health_says_what_state_it_is_in() -> None:
    api, clock = SimulatedApi(WIDGETS), ManualClock()
    informer = Informer(api, WIDGETS, options=options(clock))
    assert informer.health() == "not started"
    async with running(api, informer):
        assert informer.health() is None
        api.faults.extend([TransportError("refused")] * 12)
        api.cut()
        await until(informer.health)
        health = informer.health() or ""
        assert health.startswith("stale: no word from the API server for ")
        assert "refused" in health
        await until(lambda: informer.health() is None)
    assert (informer.health() or "").startswith("stopped")


async def test_waiting_for_an_informer_in_vain_names_it_and_the_reason() -> None:
    api = SimulatedApi(WIDGETS)
    informer = Informer(api, WIDGETS, namespace="prod", options=options())
    with pytest.raises(CacheNotSyncedError, match=r"widgets\.test\.io in namespace prod: not st"):
        await informer.wait_synced(0)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="cluster-scoped"):
        Informer(SimulatedApi(NODES), NODES, namespace="prod")
    with pytest.raises(ConfigurationError, match="memo_size"):
        InformerOptions(memo_size=0)


class Apis:
    """Several kinds behind one transport."""

    def __init__(self, *resources: Resource) -> None:
        self.of = {resource.collection_path(): SimulatedApi(resource) for resource in resources}

    async def request(self, method: str, path: str, **options: object) -> bytes:
        return await self.of[path].request(method, path, **options)  # type: ignore[arg-type]  # passes through

    def stream(self, path: str, **options: object) -> object:
        return self.of[path].stream(path, **options)  # type: ignore[arg-type]  # passes through


def informers_of(apis: Apis) -> Informers:
    return Informers(apis, options=options())  # type: ignore[arg-type]  # its stream is untyped


def test_there_is_one_informer_per_selection() -> None:
    informers = informers_of(Apis(WIDGETS, NODES))
    one = informers.informer(WIDGETS)
    assert informers.informer(WIDGETS, labels=Selector()) is one
    assert informers.informer(WIDGETS, namespace="prod") is not one
    assert informers.informer(WIDGETS, labels=Selector.parse("a=b")) is not one
    assert informers.informer(WIDGETS, labels=Selector.parse("a in (b)")) is informers.informer(
        WIDGETS, labels=Selector.parse("a=b")
    )
    informers.informer(NODES)
    assert len(list(informers)) == 4
    assert len(informers.of(WIDGETS)) == 3


def test_a_read_goes_to_the_informer_that_fits_best() -> None:
    informers = informers_of(Apis(WIDGETS))
    with pytest.raises(ConfigurationError, match=r"Widget \(widgets.test.io\) in all namespaces"):
        informers.reader(WIDGETS, "")
    prod = informers.informer(WIDGETS, namespace="prod")
    assert informers.reader(WIDGETS, "prod") is prod
    with pytest.raises(ConfigurationError, match="in namespace test in the cache"):
        informers.reader(WIDGETS, "test")
    a = informers.informer(WIDGETS, labels=Selector.parse("a=b"))
    assert informers.reader(WIDGETS, "test") is a
    c = informers.informer(WIDGETS, labels=Selector.parse("c=d"))
    assert informers.reader(WIDGETS, "test", Selector.parse("c=d")) is c
    with pytest.raises(ConfigurationError, match="2 informers hold a part"):
        informers.reader(WIDGETS, "test")
    whole = informers.informer(WIDGETS)
    assert informers.reader(WIDGETS, "test", Selector.parse("c=d")) is whole


async def test_an_informer_asked_for_while_running_is_started_too() -> None:
    apis = Apis(WIDGETS, NODES)
    informers = informers_of(apis)
    informers.informer(WIDGETS)
    async with anyio.create_task_group() as group:
        await group.start(informers.run)
        await informers.wait_synced(5)
        late = informers.informer(NODES)
        assert not late.has_synced
        await informers.wait_synced(5)
        assert late.has_synced
        with pytest.raises(ConfigurationError, match="once"):
            await informers.run()
        group.cancel_scope.cancel()
    assert [(i.health() or "")[:7] for i in informers] == ["stopped", "stopped"]


async def test_c32_waiting_in_vain_names_every_informer_and_its_reason() -> None:
    apis = Apis(WIDGETS, NODES)
    widgets, nodes = apis.of.values()
    widgets.faults.extend([ForbiddenError("no")] * 10_000)
    nodes.faults.extend([NotFoundError("no")] * 10_000)
    informers = informers_of(apis)
    informers.informer(WIDGETS)
    informers.informer(NODES)
    async with anyio.create_task_group() as group:
        await group.start(informers.run)
        await until(lambda: all(i.health() != "waiting for its first list" for i in informers))
        with pytest.raises(CacheNotSyncedError) as caught:
            await informers.wait_synced(0.001)
        group.cancel_scope.cancel()
    message = str(caught.value)
    assert "widgets.test.io: forbidden: cannot list widgets.test.io: grant list, watch" in message
    assert "nodes: kind missing" in message


async def test_c26_an_informer_that_is_cancelled_alone_ends_them_all() -> None:
    apis = Apis(WIDGETS, NODES)
    informers = informers_of(apis)
    informers.informer(WIDGETS)
    informers.informer(NODES)

    async def cancel_one() -> None:
        await informers.wait_synced(5)
        for task in asyncio.all_tasks():
            if task.get_name() == "informer nodes":
                task.cancel()

    async def run_and_cancel_one() -> None:
        async with anyio.create_task_group() as group:
            await group.start(informers.run)
            await cancel_one()
            await anyio.sleep(5)

    with pytest.raises(ExceptionGroup, match="unhandled") as caught:
        await run_and_cancel_one()
    assert caught.group_contains(Exception, match="informer of nodes was cancelled alone")


async def test_c26_a_defect_in_one_informer_ends_them_all() -> None:
    apis = Apis(WIDGETS, NODES)
    informers = informers_of(apis)
    informers.informer(WIDGETS)
    informers.informer(NODES)
    next(iter(apis.of.values())).faults.append(ZeroDivisionError())
    with pytest.raises(ExceptionGroup) as caught:
        await informers.run()
    assert caught.group_contains(ZeroDivisionError)


# --- over TLS ---

PATH = "/apis/test.io/v1/widgets"


def widget(version: int, name: str = "a") -> Tree:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
        }
    }


def listing(version: int, *items: Tree) -> Answer:
    return Answer(body={"metadata": {"resourceVersion": str(version)}, "items": list(items)})


@asynccontextmanager
async def served(
    authority: CertificateAuthority,
    lists: list[Answer],
    watches: list[Answer],
    *,
    idle: float = 90.0,
) -> AsyncIterator[tuple[ScriptedServer, Informer, list[Event]]]:
    heard: list[Event] = []
    async with ScriptedServer.start(authority) as server:
        server.script(
            "GET", PATH, *watches, Answer(body=(Until("never"),)), query={"watch": "true"}
        )
        server.script("GET", PATH, *lists)
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        timing = Timing(backoff_first=0.001, backoff_most=0.01, idle_timeout=idle)
        async with Transport(credentials) as transport, anyio.create_task_group() as group:
            informer = Informer(
                transport, WIDGETS, options=InformerOptions(timing=timing, registry=Registry())
            )
            informer.add_handler(heard.append)
            group.start_soon(informer.run)
            yield server, informer, heard
            group.cancel_scope.cancel()


def versions(server: ScriptedServer) -> list[str]:
    return [r.query.get("resourceVersion", "list") for r in server.requests]


async def test_c25_half_a_line_is_dropped_and_watched_again(
    authority: CertificateAuthority,
) -> None:
    event = {"type": "MODIFIED", "object": widget(6)}
    cut = Answer(body=(Lines(event), Bytes(b'{"type":"MODIFIED","obj')), then=Close())
    last = Answer(body=(Lines({"type": "ADDED", "object": widget(8, "b")}), Until("never")))
    async with served(authority, [listing(5, widget(5))], [cut, last]) as (server, informer, _):
        await until(lambda: len(informer) == 2)
        assert versions(server) == ["list", "5", "6"]


async def test_c25_an_error_page_reaches_no_handler(authority: CertificateAuthority) -> None:
    page = Answer(502, {"Content-Type": "text/html"}, "<html>bad gateway</html>")
    watch = Answer(body=(Lines({"type": "ADDED", "object": widget(8, "b")}), Until("never")))
    async with served(
        authority, [page, status_answer(500, "InternalError", "etcd"), listing(5)], [page, watch]
    ) as (server, informer, heard):
        await until(lambda: len(informer) == 1)
        assert versions(server) == ["list", "list", "list", "5", "5"]
        assert len(heard) == 1


async def test_c19_a_410_as_an_event_on_a_stream_that_stays_open_leads_to_a_list(
    authority: CertificateAuthority,
) -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    expired = Answer(body=(Lines({"type": "ERROR", "object": gone}), Until("never")))
    async with served(
        authority, [listing(5, widget(5)), listing(9, widget(9, "b"))], [expired]
    ) as (server, informer, heard):
        await until(lambda: len(heard) == 3)
        await server.received(4)
        assert versions(server) == ["list", "5", "list", "9"]
        assert [item.meta.name for item in informer.list()] == ["b"]


async def test_c15_a_silent_watch_is_left_once_bookmarks_have_stopped(
    authority: CertificateAuthority,
) -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}
    silent = Answer(body=(Lines(bookmark),), then=Hang())
    async with served(authority, [listing(5)], [silent], idle=0.05) as (server, _, heard):
        await server.received(3)
        assert versions(server) == ["list", "5", "7"]
        assert heard == []


async def test_c30_a_429_with_retry_after_is_waited_out_without_a_list(
    authority: CertificateAuthority,
) -> None:
    busy = Answer(429, {"Retry-After": "1"}, "slow down")
    async with served(authority, [listing(5)], [busy]) as (server, _, __):
        started = anyio.current_time()
        await server.received(3)
        assert anyio.current_time() - started >= 1
        assert versions(server) == ["list", "5", "5"]
