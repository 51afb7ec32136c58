# SPDX-License-Identifier: Apache-2.0
"""A first apply whose answer is lost: what it made is found in its own way when it is repeated."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

import pytest

from flexinfer.apply import Applier, Outcome
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer, Reset, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import NotLeadingError, NotOursError
from flexinfer.kinds.immutable import ImmutableField, Policy
from flexinfer.meta.envelope import ObjectMeta
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.envtest.script import Action
    from flexinfer.meta.envelope import Tree


class Thing(Object):
    resource: ClassVar[Resource] = Resource(
        GroupVersionKind("example.com", "v1", "Thing"), "things"
    )


PATH = "/apis/example.com/v1/namespaces/default/things/web"
OWNER = Thing(metadata=ObjectMeta(name="m", namespace="default", uid="owner"))
INTENT: Tree = {
    "apiVersion": "example.com/v1",
    "kind": "Thing",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"model": "a"},
}
RULES = {Thing.resource: [ImmutableField(path="spec.model", policy=Policy.RECREATE)]}


def live(version: str, *, uid: str = "child", owner: str = "owner", **metadata: str) -> Answer:
    reference = {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "name": "m" if owner == "owner" else "other",
        "uid": owner,
        "controller": True,
    }
    more = {"uid": uid, "resourceVersion": version, "ownerReferences": [reference], **metadata}
    return Answer(body=INTENT | {"metadata": INTENT["metadata"] | more})


NONE = status_answer(404, "NotFound", "there is none")
TAKEN = status_answer(409, "Conflict", "it has another version")
IMMUTABLE = status_answer(
    422,
    "Invalid",
    "no",
    causes=[{"reason": "FieldValueInvalid", "field": "spec.model", "message": "is immutable"}],
)


@asynccontextmanager
async def serving(
    authority: CertificateAuthority,
    *writes: Action,
    reads: tuple[Action, ...],
    guard: Callable[[], None] | None = None,
) -> AsyncIterator[tuple[ScriptedServer, Applier]]:
    async with ScriptedServer.start(authority) as server:
        server.script("PATCH", PATH, *writes)
        server.script("GET", PATH, *reads)
        server.script("DELETE", PATH, Answer(body={"kind": "Status"}))
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            client = DirectClient(transport, guard=guard)
            yield server, Applier(client, field_manager="tests", immutable=RULES)


@pytest.mark.parametrize(
    ("writes", "outcome"),
    [
        ([Reset(), TAKEN, live("7")], Outcome.CREATED),
        ([Reset(), Reset(), TAKEN, live("7")], Outcome.CREATED),
        ([Reset(), TAKEN, live("8")], Outcome.UPDATED),
        # What was there before we asked is not ours to have made.
        ([TAKEN, live("7")], Outcome.UNCHANGED),
    ],
)
async def test_what_a_lost_try_made_counts_as_created(
    authority: CertificateAuthority, writes: list[Action], outcome: Outcome
) -> None:
    async with serving(authority, *writes, reads=(NONE, live("7"))) as (server, applier):
        applied = await applier.apply(Thing.resource, INTENT, owner=OWNER)
        assert (applied.outcome, applied.object.meta.uid) == (outcome, "child")
        server.script("PATCH", PATH, Reset())  # what is remembered is not sent again
        again = await applier.apply(Thing.resource, INTENT, owner=OWNER)
        assert again.outcome is Outcome.UNCHANGED


async def test_what_a_lost_try_made_anew_counts_as_recreated(
    authority: CertificateAuthority,
) -> None:
    writes = (IMMUTABLE, Reset(), TAKEN, live("9", uid="new"))
    reads = (live("7"), live("7"), NONE, live("9", uid="new"))
    async with serving(authority, *writes, reads=reads) as (server, applier):
        applied = await applier.apply(Thing.resource, INTENT, owner=OWNER)
        assert (applied.outcome, applied.object.meta.uid) == (Outcome.RECREATED, "new")
        methods = [request.method for request in server.requests]
        assert methods == ["GET", "GET", "PATCH", "DELETE", "GET", "PATCH", "PATCH", "GET", "PATCH"]


@pytest.mark.parametrize("found", [NONE, live("7", deletionTimestamp="2030-01-31T12:00:00Z")])
async def test_what_is_going_when_it_is_looked_at_was_not_made_by_us(
    authority: CertificateAuthority, found: Answer
) -> None:
    writes = (Reset(), TAKEN, live("8"))
    async with serving(authority, *writes, reads=(NONE, found, found, NONE)) as (server, applier):
        applied = await applier.apply(Thing.resource, INTENT, owner=OWNER)
        assert applied.outcome is Outcome.CREATED
        methods = [request.method for request in server.requests]
        assert methods[:4] == ["GET", "PATCH", "PATCH", "GET"]
        assert methods[-1] == "PATCH"


async def test_what_is_somebody_elses_is_left_after_a_lost_try_too(
    authority: CertificateAuthority,
) -> None:
    reads = (NONE, live("7", owner="another"))
    async with serving(authority, Reset(), TAKEN, reads=reads) as (server, applier):
        with pytest.raises(NotOursError):
            await applier.apply(Thing.resource, INTENT, owner=OWNER)
        assert [r.method for r in server.requests] == ["GET", "PATCH", "PATCH", "GET"]


async def test_a_write_that_was_held_back_was_not_sent(authority: CertificateAuthority) -> None:
    allowed = iter([True])

    def guard() -> None:
        if not next(allowed, False):
            raise NotLeadingError("not any more")

    async with serving(authority, Reset(), reads=(NONE,), guard=guard) as (server, applier):
        with pytest.raises(NotLeadingError):
            await applier.apply(Thing.resource, INTENT, owner=OWNER)
        assert [r.method for r in server.requests] == ["GET", "PATCH"]
