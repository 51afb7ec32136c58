# SPDX-License-Identifier: Apache-2.0
"""A broadcaster of events on a clock of its own, and the server that it talks to."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.retry import NEVER
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.meta.envelope import ObjectMeta, decode_tree
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.recorder import EventBroadcaster, EventRecorder, EventType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.envtest.script import Action
    from flexinfer.meta.envelope import Tree

    Connect = Callable[..., AbstractAsyncContextManager["Bench"]]
    Emit = Callable[..., None]

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
CREATED = Answer(201, body={"metadata": {"name": "e"}})
START = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


class Thing(Object):
    resource: ClassVar[Resource] = Resource(GroupVersionKind("x.y", "v1", "Thing"), "things")


THING = Thing(metadata=ObjectMeta(name="a", namespace="default", uid="u1", resource_version="9"))


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
        emit_by(self.recorder, reason, note, **fields)

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


def emit_by(recorder: EventRecorder, reason: str = "Made", note: str = "n", **fields: Any) -> None:
    defaults: dict[str, Any] = {"type": EventType.NORMAL, "action": "Make"}
    recorder.emit(fields.pop("about", THING), reason=reason, note=note, **defaults | fields)


@pytest.fixture
def emit() -> Emit:
    """Give a function that has a recorder emit an event, of THING unless told otherwise."""
    return emit_by


@pytest.fixture
def bench(authority: CertificateAuthority) -> Connect:
    """Give a function that starts a server, and a broadcaster to it with these options."""

    @asynccontextmanager
    async def connected(**options: Any) -> AsyncIterator[Bench]:
        async with ScriptedServer.start(authority) as server:
            credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
            async with Transport(credentials, retry=NEVER) as transport:
                b = Bench(server, transport, **options)
                b.script(CREATED)
                yield b
                assert server.unscripted == []

    return connected
