# SPDX-License-Identifier: Apache-2.0
"""The recorder and what it sends, to a server that fails in every way."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.retry import NEVER
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.script import Answer, Hang, Reset, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import ConfigurationError
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.envelope import ObjectMeta, decode_tree
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.recorder import RULES, EventBroadcaster, EventRecorder, EventType, ObjectReference

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flexinfer.envtest.script import Action
    from flexinfer.meta.envelope import Tree
    from flexinfer.recorder.series import Identity

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
CREATED = Answer(201, body={"metadata": {"name": "e"}})
PATCHED = Answer(body={"metadata": {"name": "e"}})
BUSY = status_answer(503, "ServiceUnavailable", "try later")
GONE = status_answer(404, "NotFound", "no such event")
START = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


class Thing(Object):
    resource: ClassVar[Resource] = Resource(GroupVersionKind("x.y", "v1", "Thing"), "things")


THING = Thing(metadata=ObjectMeta(name="a", namespace="default", uid="u1", resource_version="9"))
NODE = ObjectReference("v1", "Node", "", "n1", "u2")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path_factory.mktemp("ca"))


class Bench:
    """Be a broadcaster with a clock of its own, and the server that it talks to."""

    def __init__(self, server: ScriptedServer, transport: Transport, **options: Any) -> None:
        self.server = server
        self.registry = CollectorRegistry()
        self.at = 0.0
        self.pauses: list[float] = []
        self.broadcaster = EventBroadcaster(
            DirectClient(transport),
            instance="host-1",
            registry=self.registry,
            clock=lambda: self.at,
            now=lambda: START + timedelta(seconds=self.at),
            sleep=self.pause,
            **options,
        )
        self.recorder = self.broadcaster.recorder("test-controller")

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await anyio.lowlevel.checkpoint()

    def emit(self, reason: str = "Made", note: str = "a note", **fields: Any) -> None:
        emit(self.recorder, reason, note, **fields)

    def script(self, *actions: Action) -> None:
        self.server.script("POST", EVENTS, *actions)

    def script_patch(self, *actions: Action) -> str:
        """Answer patches of the one event that was created; return its name."""
        name: str = self.bodies()[-1]["metadata"]["name"]
        self.server.script("PATCH", f"{EVENTS}/{name}", *actions)
        return name

    def bodies(self, method: str = "POST") -> list[Tree]:
        return [decode_tree(r.body) for r in self.server.requests if r.method == method]

    def dropped(self, reason: str) -> float:
        value = self.registry.get_sample_value("flexinfer_events_dropped_total", {"reason": reason})
        assert value is not None
        return value

    def sent(self, verb: str) -> float | None:
        return self.registry.get_sample_value("flexinfer_events_sent_total", {"verb": verb})


def emit(recorder: EventRecorder, reason: str = "Made", note: str = "n", **fields: Any) -> None:
    defaults: dict[str, Any] = {"type": EventType.NORMAL, "action": "Make"}
    recorder.emit(fields.pop("about", THING), reason=reason, note=note, **defaults | fields)


@asynccontextmanager
async def bench(authority: CertificateAuthority, **options: Any) -> AsyncIterator[Bench]:
    async with ScriptedServer.start(authority) as server:
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials, retry=NEVER) as transport:
            b = Bench(server, transport, **options)
            b.script(CREATED)
            yield b
            assert server.unscripted == []


async def test_an_event_says_what_happened_to_what(authority: CertificateAuthority) -> None:
    async with bench(authority) as b:
        b.emit(related=NODE)
        await b.broadcaster.send()
        (body,) = b.bodies()
        name = body["metadata"]["name"]
        assert name.startswith("a.")
        assert body == {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": "default", "name": name},
            "eventTime": "2026-01-02T03:04:05.000678Z",
            "type": "Normal",
            "reason": "Made",
            "action": "Make",
            "note": "a note",
            "regarding": {
                "apiVersion": "x.y/v1",
                "kind": "Thing",
                "namespace": "default",
                "name": "a",
                "uid": "u1",
            },
            "related": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u2"},
            "reportingController": "test-controller",
            "reportingInstance": "test-controller-host-1",
        }
        assert b.sent("create") == 1


async def test_the_same_again_becomes_a_series_by_merge_patch(
    authority: CertificateAuthority,
) -> None:
    async with bench(authority) as b:
        b.emit()
        await b.broadcaster.send()
        b.script_patch(PATCHED)
        b.at = 5.0
        b.emit(note="another note")
        await b.broadcaster.send()
        assert b.bodies("PATCH") == []
        b.at = 10.0
        await b.broadcaster.send()
        assert b.bodies("PATCH") == [
            {"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:10.000678Z"}}
        ]
        assert b.server.requests[-1].headers["content-type"] == "application/merge-patch+json"
        assert b.sent("patch") == 1


async def test_c64_a_burst_of_the_same_is_one_request(authority: CertificateAuthority) -> None:
    async with bench(authority) as b:
        for _ in range(10_000):
            b.emit()
        await b.broadcaster.send()
        (body,) = b.bodies()
        assert body["series"]["count"] == 10_000


async def test_c65_a_cluster_scoped_object_has_its_events_in_default(
    authority: CertificateAuthority,
) -> None:
    async with bench(authority) as b:
        b.emit(about=NODE, action="", note="€" * 1000)
        await b.broadcaster.send()
        (body,) = b.bodies()
        assert body["metadata"]["namespace"] == "default"
        assert "namespace" not in body["regarding"]
        assert body["action"] == "Made"
        assert len(body["note"].encode()) <= 1024


@pytest.mark.parametrize(
    ("failure", "pauses"),
    [
        (BUSY, 3),
        # The client itself sends it again twice, at once.
        (Reset(), 1),
        (status_answer(429, "TooManyRequests", "slow"), 3),
    ],
)
async def test_what_the_server_cannot_take_now_is_sent_again(
    authority: CertificateAuthority, failure: Action, pauses: int
) -> None:
    async with bench(authority) as b:
        b.script(failure, failure, failure, CREATED)
        b.emit()
        await b.broadcaster.send()
        bodies = b.bodies()
        assert len(bodies) == 4
        assert all(body == bodies[0] for body in bodies), "one event keeps one name"
        for pause, longest in zip(b.pauses, (1, 2, 4)[:pauses], strict=True):
            assert longest / 2 <= pause <= longest
        assert b.sent("create") == 1


async def test_the_server_may_name_the_pause(authority: CertificateAuthority) -> None:
    async with bench(authority) as b:
        b.script(
            status_answer(429, "TooManyRequests", "slow", headers={"Retry-After": "7"}), CREATED
        )
        b.emit()
        await b.broadcaster.send()
        assert b.pauses == [7]


async def test_an_outage_costs_one_request_a_pause_however_much_there_is_to_send(
    authority: CertificateAuthority,
) -> None:
    async with bench(authority) as b:
        for number in range(50):
            b.emit(f"Reason{number}")
        b.script(*[BUSY] * 40, CREATED)
        await b.broadcaster.send()
        assert len(b.pauses) == 40
        assert sorted(b.pauses)[-30:][0] >= 15
        assert max(b.pauses) <= 30
        assert len(b.server.requests) == 90
        b.emit("Later")
        b.script(BUSY, CREATED)
        await b.broadcaster.send()
        assert b.pauses[-1] <= 1, "a success makes the next pause short again"


async def test_an_event_that_is_never_taken_is_given_up(authority: CertificateAuthority) -> None:
    async with bench(authority) as b:
        b.script(BUSY)
        b.emit()
        with capture_logs() as logs:
            await b.broadcaster.send()
        assert len(b.server.requests) == 12
        assert b.dropped("gave_up") == 1
        assert [line["event"] for line in logs] == ["an event is given up"]
        assert len(b.broadcaster.book) == 0


@pytest.mark.parametrize(
    "refusal",
    [
        status_answer(400, "BadRequest", "no"),
        status_answer(401, "Unauthorized", "no"),
        status_answer(403, "Forbidden", "no right"),
        status_answer(404, "NotFound", "no such namespace"),
        status_answer(422, "Invalid", "no"),
        Answer(201, body="no JSON"),
    ],
)
async def test_what_the_server_refuses_is_sent_once_and_said_once(
    authority: CertificateAuthority, refusal: Answer
) -> None:
    async with bench(authority) as b:
        b.script(refusal)
        with capture_logs() as logs:
            for _ in range(5):
                b.emit()
                await b.broadcaster.send()
                b.at += 10
        posts = [r for r in b.server.requests if r.method == "POST"]
        assert len(posts) == (2 if refusal.status == 401 else 1)
        assert b.pauses == []
        assert b.dropped("rejected") == 5
        (line,) = [line for line in logs if line["event"] == "an event is rejected"]
        assert (line["reason"], line["object"]) == ("Made", "Thing default/a")


async def test_a_lost_answer_is_found_out_by_the_name(authority: CertificateAuthority) -> None:
    taken = status_answer(409, "AlreadyExists", "there is one")
    async with bench(authority) as b:
        b.script(Reset(), taken)
        b.emit()
        await b.broadcaster.send()
        assert len(b.bodies()) == 2
        assert b.bodies("PATCH") == []
        assert (b.sent("create"), b.dropped("rejected")) == (1, 0)
        # The client looked whether it is ours, which a recorder has no right to.
        (read,) = b.server.unscripted
        assert (read.method, read.path) == ("GET", f"{EVENTS}/{b.bodies()[0]['metadata']['name']}")
        b.server.unscripted.clear()


async def test_a_lost_answer_may_have_had_a_smaller_count(authority: CertificateAuthority) -> None:
    taken = status_answer(409, "AlreadyExists", "there is one")
    async with bench(authority) as b:
        b.script(Reset())
        b.emit()

        async def meanwhile(_: float) -> None:
            b.emit()
            b.script(taken)
            b.script_patch(PATCHED)
            await anyio.lowlevel.checkpoint()

        b.broadcaster._sleep = meanwhile
        await b.broadcaster.send()
        (patch,) = b.bodies("PATCH")
        assert patch["series"]["count"] == 2


async def test_an_event_that_expired_is_made_anew(authority: CertificateAuthority) -> None:
    async with bench(authority) as b:
        b.emit()
        await b.broadcaster.send()
        name = b.script_patch(GONE)
        b.emit()
        b.at = 10.0
        await b.broadcaster.send()
        first, second = b.bodies()
        assert second["metadata"]["name"] != name
        assert second["series"]["count"] == 2
        assert "series" not in first


async def test_c63_the_flush_sends_what_is_left_and_takes_no_more(
    authority: CertificateAuthority,
) -> None:
    async with bench(authority) as b:
        b.emit()
        await b.broadcaster.send()
        b.script_patch(PATCHED)
        b.emit()
        b.emit("Last")
        await b.broadcaster.flush()
        assert len(b.bodies()) == 2
        assert len(b.bodies("PATCH")) == 1
        b.emit("TooLate")
        await b.broadcaster.flush()
        assert b.dropped("closed") == 1
        assert len(b.server.requests) == 3


async def test_c63_a_server_that_hangs_does_not_hold_up_the_end(
    authority: CertificateAuthority,
) -> None:
    async with bench(authority) as b:
        b.script(Hang())
        async with anyio.create_task_group() as group:
            group.start_soon(b.broadcaster.run)
            for number in range(10_000):
                b.emit(about=ObjectReference("v1", "Pod", "default", f"p{number}"))
            await b.server.received(1, method="POST")
            for number in range(10_000):
                b.emit(about=ObjectReference("v1", "Pod", "default", f"q{number}"))
            group.cancel_scope.cancel()
        with capture_logs() as logs, anyio.fail_after(10):
            await b.broadcaster.flush(0.2)
        waiting = 1001  # the one that is under way beside the bound of 1000
        assert b.dropped("queue_full") == 20_000 - waiting
        assert b.dropped("closed") in (waiting, waiting - 1)
        assert logs[-1]["event"] == "events were not sent before the end"
        assert len(b.broadcaster.book) == 0


async def test_c63_the_end_does_not_wait_for_a_long_pause(authority: CertificateAuthority) -> None:
    async with bench(authority) as b:
        b.broadcaster._failures = 10**6
        b.emit()
        await b.broadcaster.flush()
        assert b.sent("create") == 1


async def test_c63_a_thread_wakes_the_sender_and_may_come_too_late(
    authority: CertificateAuthority,
) -> None:
    async with bench(authority) as b:

        def work(reason: str) -> None:
            emit(b.recorder, reason)

        async with anyio.create_task_group() as group:
            group.start_soon(b.broadcaster.run)
            for number in range(3):
                await anyio.to_thread.run_sync(work, f"FromThread{number}")
                await b.server.received(number + 1, method="POST")
            b.emit("FromLoop")
            await b.server.received(4, method="POST")
            group.cancel_scope.cancel()
        await b.broadcaster.flush()
        await anyio.to_thread.run_sync(work, "TooLate")
        assert b.dropped("closed") == 1


def test_c63_an_event_after_the_loop_is_closed_raises_nothing() -> None:
    broadcaster = EventBroadcaster(
        DirectClient(Transport(StaticCredentials("https://127.0.0.1:1"))),
        registry=CollectorRegistry(),
    )

    async def runs() -> None:
        with anyio.move_on_after(0.01):
            await broadcaster.run()

    anyio.run(runs)
    recorder = broadcaster.recorder("late")
    emit(recorder)
    thread = threading.Thread(target=emit, args=(recorder, "FromThread"))
    thread.start()
    thread.join()
    assert len(broadcaster.book) == 2


async def test_c63_a_manager_ends_although_its_events_hang(
    authority: CertificateAuthority,
) -> None:
    options = ManagerOptions(metrics_address="0", probe_address="0", signals=())
    async with ScriptedServer.start(authority) as server:
        server.script("POST", EVENTS, Hang())
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            manager = Manager(transport, options=options, registry=CollectorRegistry())
            recorder = manager.recorder("test")
            with anyio.fail_after(30):
                async with anyio.create_task_group() as group:
                    await group.start(manager.run)
                    emit(recorder)
                    await server.received(1, method="POST")
                    manager.stop()
            emit(recorder)
            left = {"reason": "closed"}
            dropped = "flexinfer_events_dropped_total"
            assert manager.registry.get_sample_value(dropped, left) in (1, 2)


async def test_c37_run_forgets_by_itself(authority: CertificateAuthority) -> None:
    async with bench(authority, refresh=0.05) as b, anyio.create_task_group() as group:
        group.start_soon(b.broadcaster.run)
        for number in range(50):
            b.emit(f"Reason{number}")
        await b.server.received(50, method="POST")
        assert len(b.broadcaster.book) == 50
        b.at += 400
        await eventually(lambda: len(b.broadcaster.book) == 0)
        group.cancel_scope.cancel()


async def test_a_bug_is_not_swallowed(
    authority: CertificateAuthority,
) -> None:
    async with bench(authority) as b:

        async def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        b.script(BUSY)
        b.broadcaster._sleep = broken
        b.emit()
        with pytest.raises(ZeroDivisionError):
            await b.broadcaster.send()


def test_impossible_settings_are_refused() -> None:
    client = DirectClient(Transport(StaticCredentials("https://127.0.0.1:1")))
    for refresh in (0.0, -1.0, float("nan"), 301.0):
        with pytest.raises(ConfigurationError, match=r"refresh is .*: use seconds"):
            EventBroadcaster(client, refresh=refresh, registry=CollectorRegistry())
    with pytest.raises(ConfigurationError, match="the controller of a recorder is empty"):
        EventBroadcaster(client, registry=CollectorRegistry()).recorder(" ")


def test_what_is_short_says_type_and_action_by_itself() -> None:
    seen: list[tuple[str, str, str, str]] = []

    class Noting:
        def observe(self, identity: Identity, note: str) -> None:
            seen.append((identity.type, identity.reason, identity.action, note))

    recorder = EventRecorder(Noting(), "c")
    subject = ObjectReference("v1", "ConfigMap", "n", "c")
    recorder.normal(subject, "Copied", "one copy")
    recorder.warning(subject, "Refused", "no copy")
    assert seen == [
        ("Normal", "Copied", "Copied", "one copy"),
        ("Warning", "Refused", "Refused", "no copy"),
    ]


def test_the_rights_that_recording_needs() -> None:
    (needed,) = RULES
    assert needed.groups == ("events.k8s.io",)
    assert (needed.resources, needed.verbs) == (("events",), ("create", "patch"))
