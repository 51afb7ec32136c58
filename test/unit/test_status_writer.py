# SPDX-License-Identifier: Apache-2.0
"""A status that no apply can write: what the API server says, and what becomes of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

import pytest

from flexinfer.apply import Outcome, StatusWriter
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import ConflictError, InvalidError, ServerError
from flexinfer.meta.envelope import ObjectMeta
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.envtest.script import Action
    from flexinfer.meta.envelope import Tree

OBJECT = "/apis/example.com/v1/namespaces/default/things/a"
META = ObjectMeta(name="a", namespace="default", uid="u", resource_version="7")
UNTYPED = status_answer(
    500, "InternalError", "failed to create typed live object: .spec: expected map"
)


class Thing(Object):
    resource: ClassVar[Resource] = Resource(
        GroupVersionKind("example.com", "v1", "Thing"), "things"
    )


def thing(version: str, status: Tree) -> Tree:
    metadata = {"name": "a", "namespace": "default", "uid": "u", "resourceVersion": version}
    return {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata, "status": status}


async def write(authority: CertificateAuthority, *answers: Action) -> tuple[Outcome, list[object]]:
    """Write a status to a server that gives these answers; return what was sent after the read."""
    async with ScriptedServer.start(authority) as server:
        live = thing("7", {"phase": "Old", "seen": "theirs"})
        server.script("GET", OBJECT, Answer(body=live))
        server.script("PATCH", f"{OBJECT}/status", *answers)
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            writer = StatusWriter(DirectClient(transport), field_manager="m", foreign=["seen"])
            outcome = await writer.write(Thing.resource, META, {"phase": "New"})
        return outcome, [json.loads(r.body) for r in server.requests if r.method == "PATCH"]


async def test_the_status_of_an_object_that_fits_no_schema_is_replaced_by_a_patch(
    authority: CertificateAuthority,
) -> None:
    outcome, sent = await write(authority, UNTYPED, Answer(body=thing("8", {"phase": "New"})))
    assert outcome is Outcome.UPDATED
    assert sent[1] == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/status", "value": {"phase": "New", "seen": "theirs"}},
    ]


async def test_another_failure_of_the_server_stays_one(authority: CertificateAuthority) -> None:
    with pytest.raises(ServerError, match="etcd is away"):
        await write(authority, status_answer(500, "InternalError", "etcd is away"))


async def test_a_patch_whose_test_failed_is_a_lost_race(authority: CertificateAuthority) -> None:
    failed = status_answer(422, "Invalid", "the server rejected our request due to an error")
    with pytest.raises(ConflictError, match="Thing default/a was changed meanwhile"):
        await write(authority, UNTYPED, failed)


async def test_a_status_that_is_itself_invalid_is_said_to_be(
    authority: CertificateAuthority,
) -> None:
    cause = {"reason": "FieldValueInvalid", "field": "status.phase", "message": "unknown"}
    with pytest.raises(InvalidError, match="is invalid"):
        await write(authority, UNTYPED, status_answer(422, "Invalid", "is invalid", causes=[cause]))
