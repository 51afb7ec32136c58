# SPDX-License-Identifier: Apache-2.0
"""Sources: from an informer's events to keys in a queue."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

import pytest
import structlog
from prometheus_client import CollectorRegistry

from flexinfer import runs
from flexinfer.cache.informer import Informer, InformerOptions
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.transport import Transport
from flexinfer.event import CreateEvent, UpdateEvent
from flexinfer.handler import enqueue_mapped, enqueue_owner, enqueue_self
from flexinfer.meta.envelope import ObjectMeta, OwnerReference, StoredObject
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.predicate import generation_changed
from flexinfer.reconcile import Request
from flexinfer.source import Reasons, Source
from flexinfer.workqueue import LOW_PRIORITY, WorkQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flexinfer.event import Event
    from flexinfer.handler import Handler
    from flexinfer.predicate import Predicate

CONFIG_MAPS = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")
MODELS = Resource(GroupVersionKind("example.org", "v1", "Model"), "models")


def stored(name: str, version: int, *, uid: str = "u", generation: int = 1) -> StoredObject:
    meta = ObjectMeta(
        namespace="ns",
        name=name,
        uid=uid,
        resource_version=str(version),
        generation=generation,
    )
    return StoredObject(meta, b"{}")


class Bench:
    """Be an informer that is told by hand what a reflector would tell it, and a queue."""

    def __init__(
        self,
        handler: Handler = enqueue_self,
        *,
        resource: Resource = CONFIG_MAPS,
        predicate: Predicate | None = None,
        echoes: bool = True,
    ) -> None:
        self.registry = CollectorRegistry()
        transport = Transport(StaticCredentials("https://127.0.0.1:1"))
        options = InformerOptions(registry=self.registry)
        self.informer = Informer(transport, resource, options=options)
        self.queue = WorkQueue[Request]("test", registry=self.registry)
        self.reasons = Reasons()
        self.source = Source(self.informer, handler, predicate=predicate, echoes=echoes)

    def start(self) -> None:
        self.source.start(
            self.queue, controller="test", reasons=self.reasons, registry=self.registry
        )

    def sync(self, *items: StoredObject) -> None:
        self.informer.begin_list(went_back=False)
        for item in items:
            self.informer.listed(item)
        list(self.informer.end_list("1", is_whole=True))

    def write(self, controller: str, name: str, item: StoredObject) -> None:
        """Let a run of *controller* for the object *name* get *item* as the answer to a write."""

        def run() -> None:
            runs.begin(controller, Request("ns", name))
            self.informer.wrote(item)

        contextvars.copy_context().run(run)

    async def drain(self) -> list[tuple[Request, int]]:
        found = []
        while len(self.queue):
            item = await self.queue.get()
            found.append((item.key, item.priority))
            self.queue.done(item.key)
        return found

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"controller": "test", **labels})


async def test_the_first_list_comes_at_low_priority_and_news_first() -> None:
    bench = Bench()
    bench.start()
    bench.sync(stored("a", 1), stored("b", 1))
    bench.informer.changed("ADDED", stored("c", 2))
    assert await bench.drain() == [
        (Request("ns", "c"), 0),
        (Request("ns", "a"), LOW_PRIORITY),
        (Request("ns", "b"), LOW_PRIORITY),
    ]


async def test_a_late_start_hears_of_what_is_there() -> None:
    bench = Bench()
    bench.sync(stored("a", 1))
    bench.start()
    assert await bench.drain() == [(Request("ns", "a"), LOW_PRIORITY)]


async def test_filtered_events_are_counted_and_enqueue_nothing() -> None:
    bench = Bench(predicate=generation_changed)
    bench.start()
    bench.sync(stored("a", 1))
    await bench.drain()
    bench.informer.changed("MODIFIED", stored("a", 2))
    assert await bench.drain() == []
    assert bench.metric("flexinfer_events_filtered_total") == 1
    bench.informer.changed("MODIFIED", stored("a", 3, generation=2))
    assert await bench.drain() == [(Request("ns", "a"), 0)]


async def test_no_predicate_can_hide_a_delete_or_a_recreation() -> None:
    bench = Bench(predicate=lambda event: isinstance(event, CreateEvent))
    bench.start()
    bench.sync(stored("a", 1, uid="old"))
    await bench.drain()
    bench.informer.changed("MODIFIED", stored("a", 2, uid="new"))
    assert await bench.drain() == [(Request("ns", "a"), 0)]
    bench.informer.changed("DELETED", stored("a", 3, uid="new"))
    assert await bench.drain() == [(Request("ns", "a"), 0)]


async def test_one_event_enqueues_a_name_once() -> None:
    twice = enqueue_mapped(lambda _: [Request("ns", "x"), Request("ns", "x"), Request("ns", "y")])
    bench = Bench(twice)
    bench.start()
    bench.sync(stored("a", 1))
    assert [key.name for key, _ in await bench.drain()] == ["x", "y"]


async def test_an_orphan_does_not_wake_the_owner_that_was_recreated() -> None:
    owner_uid = "new"
    bench = Bench(enqueue_owner(MODELS, is_current_uid=lambda _, uid: uid == owner_uid))
    bench.start()
    reference = OwnerReference(
        api_version="example.org/v1", kind="Model", name="m", uid="old", controller=True
    )
    meta = ObjectMeta(namespace="ns", name="child", uid="c", owner_references=(reference,))
    bench.informer.changed("ADDED", StoredObject(meta, b"{}"))
    assert await bench.drain() == []


async def test_a_predicate_that_raises_lets_the_event_pass() -> None:
    def broken(_event: Event) -> bool:
        raise ValueError("boom")

    bench = Bench(predicate=broken)
    bench.start()
    with structlog.testing.capture_logs() as logs:
        bench.sync(stored("a", 1), stored("b", 1))
    assert len(await bench.drain()) == 2
    assert bench.metric("flexinfer_event_failures_total", what="predicate") == 2
    (line,) = [line for line in logs if line["log_level"] == "error"]
    assert (line["controller"], line["what"]) == ("test", "predicate")


async def test_a_handler_that_raises_loses_its_event_alone() -> None:
    def picky(item: StoredObject) -> Iterable[Request]:
        if item.meta.name == "bad":
            raise KeyError("label")
        return [item.meta.key]

    bench = Bench(enqueue_mapped(picky))
    bench.start()
    with structlog.testing.capture_logs():
        bench.sync(stored("bad", 1), stored("good", 1))
    assert [key.name for key, _ in await bench.drain()] == ["good"]
    assert bench.metric("flexinfer_event_failures_total", what="handler") == 1


def test_the_first_reason_of_a_waiting_name_is_kept() -> None:
    reasons = Reasons()
    key = Request("ns", "m")
    pod = stored("pod", 1)
    reasons.note(key, "pods", UpdateEvent(pod, pod))
    reasons.note(key, "models.example.org", CreateEvent(stored("m", 1)))
    assert str(reasons.take(key)) == "update of pods ns/pod"
    assert reasons.take(key) == "requeue"


def test_reasons_are_bounded() -> None:
    reasons = Reasons()
    event = CreateEvent(stored("a", 1))
    for number in range(10_050):
        reasons.note(Request("ns", str(number)), "pods", event)
    assert len(reasons) == 10_000
    assert reasons.take(Request("ns", "10049")) == "requeue"


@pytest.mark.parametrize("event", ["ADDED", "MODIFIED"])
async def test_a_name_is_not_queued_for_what_its_own_run_wrote(event: str) -> None:
    bench = Bench(echoes=False)
    bench.start()
    bench.sync(*([stored("a", 1)] if event == "MODIFIED" else []))
    await bench.drain()
    bench.write("test", "a", stored("a", 3))
    bench.informer.changed(event, stored("a", 3))
    assert await bench.drain() == []
    bench.informer.changed("MODIFIED", stored("a", 4))
    assert await bench.drain() == [(Request("ns", "a"), 0)]


async def test_what_others_wrote_before_and_after_an_own_write_is_heard() -> None:
    bench = Bench(echoes=False)
    bench.start()
    bench.sync(stored("a", 1))
    await bench.drain()
    bench.write("test", "a", stored("a", 3))
    bench.informer.changed("MODIFIED", stored("a", 2))
    assert await bench.drain() == [(Request("ns", "a"), 0)]
    bench.informer.changed("MODIFIED", stored("a", 3))
    assert await bench.drain() == []
    bench.informer.changed("DELETED", stored("a", 4))
    assert await bench.drain() == [(Request("ns", "a"), 0)]


@pytest.mark.parametrize(
    ("controller", "name", "echoes"),
    [("other", "a", False), ("test", "b", False), ("test", "a", True)],
)
async def test_what_another_run_wrote_is_heard_and_by_default_so_is_an_own_write(
    controller: str, name: str, *, echoes: bool
) -> None:
    bench = Bench(echoes=echoes)
    bench.start()
    bench.sync()
    bench.write(controller, name, stored("a", 3))
    bench.informer.changed("ADDED", stored("a", 3))
    assert await bench.drain() == [(Request("ns", "a"), 0)]


async def test_another_object_of_the_name_and_version_is_no_echo() -> None:
    bench = Bench(echoes=False)
    bench.start()
    bench.sync()
    bench.write("test", "a", stored("a", 3))
    bench.informer.changed("ADDED", stored("a", 3, uid="another"))
    assert await bench.drain() == [(Request("ns", "a"), 0)]


class Overtaken:
    """Be a write to the object `a` whose events may come before its answer."""

    def __init__(self, bench: Bench, controller: str = "test", name: str = "a") -> None:
        self.bench = bench
        self.context = contextvars.copy_context()
        self.context.run(runs.begin, controller, Request("ns", name))
        self.key = Request("ns", "a")
        self.write = self.context.run(bench.informer.under_way.begin, self.key)

    def end(self, answer: StoredObject | None) -> None:
        """End it with an answer, or without one."""
        assert self.write is not None
        self.bench.informer.under_way.end(self.key, self.write, answer)
        if answer is not None:
            self.context.run(self.bench.informer.wrote, answer)


@pytest.mark.parametrize("event", ["ADDED", "MODIFIED"])
async def test_an_event_that_overtakes_its_answer_is_an_echo_all_the_same(event: str) -> None:
    bench = Bench(echoes=False)
    bench.start()
    bench.sync(*([stored("a", 1)] if event == "MODIFIED" else []))
    await bench.drain()
    write = Overtaken(bench)
    bench.informer.changed(event, stored("a", 3))
    assert await bench.drain() == []
    write.end(stored("a", 3))
    assert await bench.drain() == []
    bench.informer.changed("MODIFIED", stored("a", 4))
    assert await bench.drain() == [(Request("ns", "a"), 0)]


@pytest.mark.parametrize("answer", [None, 5])
async def test_what_others_wrote_while_a_write_was_under_way_is_heard_at_its_end(
    answer: int | None,
) -> None:
    bench = Bench(echoes=False)
    bench.start()
    bench.sync(stored("a", 1))
    await bench.drain()
    write = Overtaken(bench)
    bench.informer.changed("MODIFIED", stored("a", 3))
    write.end(None if answer is None else stored("a", answer))
    assert await bench.drain() == [(Request("ns", "a"), 0)]


@pytest.mark.parametrize(("controller", "name"), [("other", "a"), ("test", "b")])
async def test_who_does_not_write_waits_for_no_answer(controller: str, name: str) -> None:
    bench = Bench(echoes=False)
    bench.start()
    bench.sync()
    write = Overtaken(bench, controller, name)
    bench.informer.changed("ADDED", stored("a", 3))
    assert await bench.drain() == [(Request("ns", "a"), 0)]
    write.end(stored("a", 3))
    assert await bench.drain() == []


async def test_of_two_writes_each_ends_for_itself_and_a_delete_is_heard_at_once() -> None:
    bench = Bench(echoes=False)
    bench.start()
    bench.sync()
    first, second = Overtaken(bench, "other"), Overtaken(bench)
    bench.informer.changed("ADDED", stored("a", 3))
    first.end(stored("a", 2))
    assert await bench.drain() == []
    bench.informer.changed("DELETED", stored("a", 4))
    assert await bench.drain() == [(Request("ns", "a"), 0)]
    second.end(stored("a", 3))
    assert await bench.drain() == []
    assert not bench.informer.under_way.writes


async def test_who_wants_no_echoes_asks_for_the_writes_of_runs() -> None:
    for echoes in (True, False):
        bench = Bench(echoes=echoes)
        bench.start()
        assert bench.informer.under_way.is_asked is not echoes
        assert bench.informer.under_way.begin(Request("ns", "a")) is None  # of no run
        assert not bench.informer.under_way.writes


async def test_a_list_brings_no_echoes_for_it_skips_what_others_wrote() -> None:
    bench = Bench(echoes=False)
    bench.start()
    bench.sync(stored("a", 1))
    await bench.drain()
    bench.write("test", "a", stored("a", 3))
    bench.sync(stored("a", 3))
    assert await bench.drain() == [(Request("ns", "a"), 0)]


async def test_the_event_of_an_own_write_is_the_answer_that_is_there() -> None:
    bench = Bench()
    bench.sync(stored("a", 1))
    answer = stored("a", 3)
    bench.write("test", "a", answer)
    assert bench.informer.known(answer.meta) is answer
    assert bench.informer.known(stored("a", 2).meta) is None
    assert bench.informer.known(stored("a", 3, uid="another").meta) is None
    assert bench.informer.known(stored("b", 3).meta) is None
    bench.informer.changed("MODIFIED", answer)
    assert bench.informer.get(answer.meta.key) is answer
    assert bench.informer.known(answer.meta) is None
