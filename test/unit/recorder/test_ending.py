# SPDX-License-Identifier: Apache-2.0
"""The end of a recorder: what is left is sent, and nothing holds it up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import anyio
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer, Hang
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.recorder import EventBroadcaster, ObjectReference

if TYPE_CHECKING:
    from flexinfer.envtest.certs import CertificateAuthority
    from test.unit.recorder.conftest import Connect, Emit

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
PATCHED = Answer(body={"metadata": {"name": "e"}})


async def test_c63_the_flush_sends_what_is_left_and_takes_no_more(bench: Connect) -> None:
    async with bench() as b:
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


async def test_c63_a_server_that_hangs_does_not_hold_up_the_end(bench: Connect) -> None:
    async with bench() as b:
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


async def test_c63_the_end_does_not_wait_for_a_long_pause(bench: Connect) -> None:
    async with bench() as b:
        b.broadcaster._failures = 10**6
        b.emit()
        await b.broadcaster.flush()
        assert b.sent("create") == 1


async def test_c63_a_thread_wakes_the_sender_and_may_come_too_late(
    bench: Connect, emit: Emit
) -> None:
    async with bench() as b:

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


def test_c63_an_event_after_the_loop_is_closed_raises_nothing(emit: Emit) -> None:
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
    emit: Emit,
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
