# SPDX-License-Identifier: Apache-2.0
"""Events reach a server that fails in every way, as few requests and each once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import pytest
from structlog.testing import capture_logs

from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.script import Answer, Reset, status_answer
from flexinfer.recorder import ObjectReference

if TYPE_CHECKING:
    from flexinfer.envtest.script import Action
    from test.unit.recorder.conftest import Connect

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
CREATED = Answer(201, body={"metadata": {"name": "e"}})
PATCHED = Answer(body={"metadata": {"name": "e"}})
BUSY = status_answer(503, "ServiceUnavailable", "try later")
GONE = status_answer(404, "NotFound", "no such event")
START = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
NODE = ObjectReference("v1", "Node", "", "n1", "u2")


async def test_an_event_says_what_happened_to_what(bench: Connect) -> None:
    async with bench() as b:
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


async def test_the_same_again_becomes_a_series_by_merge_patch(bench: Connect) -> None:
    async with bench() as b:
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


async def test_c64_a_burst_of_the_same_is_one_request(bench: Connect) -> None:
    async with bench() as b:
        for _ in range(10_000):
            b.emit()
        await b.broadcaster.send()
        (body,) = b.bodies()
        assert body["series"]["count"] == 10_000


async def test_c65_a_cluster_scoped_object_has_its_events_in_default(bench: Connect) -> None:
    async with bench() as b:
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
    bench: Connect, failure: Action, pauses: int
) -> None:
    async with bench() as b:
        b.script(failure, failure, failure, CREATED)
        b.emit()
        await b.broadcaster.send()
        bodies = b.bodies()
        assert len(bodies) == 4
        assert all(body == bodies[0] for body in bodies), "one event keeps one name"
        for pause, longest in zip(b.pauses, (1, 2, 4)[:pauses], strict=True):
            assert longest / 2 <= pause <= longest
        assert b.sent("create") == 1


async def test_the_server_may_name_the_pause(bench: Connect) -> None:
    async with bench() as b:
        b.script(
            status_answer(429, "TooManyRequests", "slow", headers={"Retry-After": "7"}), CREATED
        )
        b.emit()
        await b.broadcaster.send()
        assert b.pauses == [7]


async def test_an_outage_costs_one_request_a_pause_however_much_there_is_to_send(
    bench: Connect,
) -> None:
    async with bench() as b:
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


async def test_an_event_that_is_never_taken_is_given_up(bench: Connect) -> None:
    async with bench() as b:
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
    bench: Connect, refusal: Answer
) -> None:
    async with bench() as b:
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


async def test_a_lost_answer_is_found_out_by_the_name(bench: Connect) -> None:
    taken = status_answer(409, "AlreadyExists", "there is one")
    async with bench() as b:
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


async def test_a_lost_answer_may_have_had_a_smaller_count(bench: Connect) -> None:
    taken = status_answer(409, "AlreadyExists", "there is one")
    async with bench() as b:
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


async def test_an_event_that_expired_is_made_anew(bench: Connect) -> None:
    async with bench() as b:
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


async def test_c37_run_forgets_by_itself(bench: Connect) -> None:
    async with bench(refresh=0.05) as b, anyio.create_task_group() as group:
        group.start_soon(b.broadcaster.run)
        for number in range(50):
            b.emit(f"Reason{number}")
        await b.server.received(50, method="POST")
        assert len(b.broadcaster.book) == 50
        b.at += 400
        await eventually(lambda: len(b.broadcaster.book) == 0)
        group.cancel_scope.cancel()


async def test_a_bug_is_not_swallowed(bench: Connect) -> None:
    async with bench() as b:

        async def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        b.script(BUSY)
        b.broadcaster._sleep = broken
        b.emit()
        with pytest.raises(ZeroDivisionError):
            await b.broadcaster.send()
