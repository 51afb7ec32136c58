# SPDX-License-Identifier: Apache-2.0
"""What a deleted owner left behind is deleted as the garbage collector would, never more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

import pytest

from flexinfer.apply.leftovers import clear_leftover, is_leftover
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.script import Answer, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import ConflictError
from flexinfer.meta.envelope import ObjectMeta, OwnerReference
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from pathlib import Path


class Thing(Object):
    resource: ClassVar[Resource] = Resource(
        GroupVersionKind("example.com", "v1", "Thing"), "things"
    )


PATH = "/apis/example.com/v1/namespaces/default/things/"
OWNER = Thing(metadata=ObjectMeta(name="m", namespace="default", uid="now"))
GONE = OwnerReference(
    api_version="example.com/v0", kind="Thing", name="m", uid="before", controller=True
)
KEEPER = OwnerReference(api_version="v1", kind="ConfigMap", name="keeper", uid="keeper")


def left(*owners: OwnerReference) -> ObjectMeta:
    return ObjectMeta(
        name="web", namespace="default", uid="child", resource_version="7", owner_references=owners
    )


def test_what_another_owner_keeps_is_no_leftover() -> None:
    assert is_leftover(left(GONE), OWNER)
    assert not is_leftover(left(GONE, KEEPER), OWNER)
    assert not is_leftover(left(KEEPER, GONE), OWNER)
    assert not is_leftover(left(KEEPER), OWNER)
    assert not is_leftover(left(GONE), None)


async def test_a_leftover_is_deleted_only_as_it_was_seen(tmp_path: Path) -> None:
    async with ScriptedServer.start(CertificateAuthority.create(tmp_path)) as server:
        server.script("GET", f"{PATH}m", Answer(body={"metadata": {"name": "m", "uid": "now"}}))
        server.script("DELETE", f"{PATH}web", status_answer(409, "Conflict", "changed"))
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            client = DirectClient(transport)
            with pytest.raises(ConflictError, match="changed"):
                await clear_leftover(client, Thing.resource, left(GONE), owner=OWNER)
        (sent,) = (request for request in server.requests if request.method == "DELETE")
        assert json.loads(sent.body)["preconditions"] == {"uid": "child", "resourceVersion": "7"}
