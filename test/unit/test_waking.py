# SPDX-License-Identifier: Apache-2.0
"""The signal that wakes a Model, the annotation that asks for it, and who hears of it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from controllers.model.waking import Waking, last_active_changed, wake
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import ForbiddenError, NotFoundError
from flexinfer.event import CreateEvent, DeleteEvent, UpdateEvent
from flexinfer.meta.envelope import ObjectMeta, StoredObject, encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.envtest.script import Action
    from flexinfer.meta.envelope import Tree

OBJECT = "/apis/ai.flexinfer/v1alpha2/namespaces/ns/models/chat"
NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
MODEL: Tree = {
    "apiVersion": "ai.flexinfer/v1alpha2",
    "kind": "Model",
    "metadata": {"name": "chat", "namespace": "ns", "uid": "u", "resourceVersion": "8"},
}
FINE = Answer(body=MODEL)
REFUSED = status_answer(403, "Forbidden", "cannot patch resource models")
TEST_FAILED = status_answer(422, "Invalid", "testing value failed")


def meta(*values: str, uid: str = "u") -> ObjectMeta:
    annotations = dict.fromkeys(["flexinfer.ai/activate"], *values) if values else {}
    return ObjectMeta(name="chat", namespace="ns", uid=uid, annotations=annotations)


@asynccontextmanager
async def served(
    authority: CertificateAuthority, *, signal: Action = FINE, removal: Action = FINE
) -> AsyncIterator[tuple[DirectClient, ScriptedServer]]:
    async with ScriptedServer.start(authority) as server:
        server.script("PATCH", f"{OBJECT}/status", *[signal] * 9)
        server.script("PATCH", OBJECT, *[removal] * 9)
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            yield DirectClient(transport), server


def sent(server: ScriptedServer) -> list[str]:
    return ["signal" if r.path.endswith("/status") else "removal" for r in server.requests]


async def test_the_signal_is_the_one_field_in_whole_seconds_of_utc(
    authority: CertificateAuthority,
) -> None:
    async with served(authority) as (client, server):
        await wake(client, meta(), now=NOW.astimezone(timezone(timedelta(hours=5))))
        (request,) = server.requests
    assert "fieldManager=flexinfer-waker" in request.target
    assert "force=true" in request.target
    assert json.loads(request.body) == {
        "apiVersion": "ai.flexinfer/v1alpha2",
        "kind": "Model",
        "metadata": {"name": "chat", "namespace": "ns", "uid": "u"},
        "status": {"lastActiveTime": "2026-01-02T03:04:05Z"},
    }


async def test_without_the_annotation_nothing_is_sent(authority: CertificateAuthority) -> None:
    async with served(authority) as (client, server):
        waking = Waking(client)
        assert await waking.heed(meta()) is None
        await waking.settle(meta())
        assert server.requests == []


async def test_the_annotation_is_removed_only_with_the_value_that_was_heeded(
    authority: CertificateAuthority,
) -> None:
    async with served(authority) as (client, server):
        waking = Waking(client, now=lambda: NOW)
        assert await waking.heed(meta("a")) == NOW
        await waking.settle(meta("a"))
        assert sent(server) == ["signal", "removal"]
        assert json.loads(server.requests[1].body) == [
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "test", "path": "/metadata/annotations/flexinfer.ai~1activate", "value": "a"},
            {"op": "remove", "path": "/metadata/annotations/flexinfer.ai~1activate"},
        ]
        assert await waking.heed(meta("a")) == NOW  # the same word once more


async def test_a_value_that_cannot_be_removed_wakes_once(authority: CertificateAuthority) -> None:
    async with served(authority, removal=REFUSED) as (client, server):
        waking = Waking(client)
        for _ in range(3):
            await waking.heed(meta("a"))
            with pytest.raises(ForbiddenError):
                await waking.settle(meta("a"))
        assert sent(server).count("signal") == 1


async def test_a_second_value_meanwhile_stays_and_is_heeded_by_the_next_run(
    authority: CertificateAuthority,
) -> None:
    async with served(authority, removal=TEST_FAILED) as (client, server):
        waking = Waking(client)
        with capture_logs() as lines:
            await waking.heed(meta("a"))
            await waking.settle(meta("a"))
        assert [line["event"] for line in lines] == ["the annotation that woke the model stays"]
        assert await waking.heed(meta("a")) is None
        assert await waking.heed(meta("b")) is not None
        assert sent(server).count("signal") == 2


async def test_a_model_made_anew_is_woken_by_the_same_word(authority: CertificateAuthority) -> None:
    async with served(authority, removal=TEST_FAILED) as (client, _):
        waking = Waking(client)
        await waking.heed(meta("a"))
        assert await waking.heed(meta("a", uid="other")) is not None


async def test_an_annotation_that_somebody_took_away_is_forgotten(
    authority: CertificateAuthority,
) -> None:
    async with served(authority, removal=TEST_FAILED) as (client, server):
        waking = Waking(client)
        await waking.heed(meta("a"))
        assert await waking.heed(meta()) is None
        await waking.settle(meta())
        assert await waking.heed(meta("a")) is not None
        waking.forget(meta().key)
        assert await waking.heed(meta("a")) is not None
        assert sent(server) == ["signal"] * 3


async def test_a_signal_that_did_not_arrive_is_sent_again(authority: CertificateAuthority) -> None:
    async with served(authority, signal=REFUSED) as (client, server):
        waking = Waking(client)
        for _ in range(2):
            with pytest.raises(ForbiddenError):
                await waking.heed(meta("a"))
        await waking.settle(meta("a"))
        assert sent(server) == ["signal"] * 2


async def test_a_model_that_went_takes_its_annotation_along(
    authority: CertificateAuthority,
) -> None:
    gone = status_answer(404, "NotFound", "not found")
    async with served(authority, signal=gone, removal=gone) as (client, _):
        waking = Waking(client)
        with pytest.raises(NotFoundError):
            await waking.heed(meta("a"))
    async with served(authority, removal=gone) as (client, server):
        waking = Waking(client)
        await waking.heed(meta("a"))
        await waking.settle(meta("a"))
        await waking.settle(meta("a"))
        assert sent(server) == ["signal", "removal"]


def stored(body: object, uid: str = "u") -> StoredObject:
    return StoredObject(ObjectMeta(name="chat", uid=uid), encode(body))


IDLE = stored({"spec": {}, "status": {"phase": "Idle"}})
WOKEN = stored({"spec": {}, "status": {"phase": "Idle", "lastActiveTime": "1"}})


@pytest.mark.parametrize(
    ("old", "new", "passes"),
    [
        (IDLE, IDLE, False),
        (WOKEN, WOKEN, False),
        (IDLE, WOKEN, True),
        (WOKEN, IDLE, True),
        (WOKEN, stored({"status": {"phase": "Ready", "lastActiveTime": "1"}}), False),
        (WOKEN, stored({"status": {"lastActiveTime": "2"}}), True),
        (IDLE, stored({"spec": {"config": {"lastActiveTime": "1"}}, "status": None}), False),
        (IDLE, stored({"spec": {"config": {"lastActiveTime": "1"}}}), False),
        (IDLE, stored({}, uid="other"), True),
    ],
)
def test_of_the_status_only_the_signal_passes(
    old: StoredObject, new: StoredObject, *, passes: bool
) -> None:
    assert last_active_changed(UpdateEvent(old, new)) is passes


def test_creates_and_deletes_pass() -> None:
    assert last_active_changed(CreateEvent(IDLE))
    assert last_active_changed(DeleteEvent(IDLE))
