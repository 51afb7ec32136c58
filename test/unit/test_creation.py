# SPDX-License-Identifier: Apache-2.0
"""Creates whose answers are lost, and a server that resets one request in twenty."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.creation import says
from flexinfer.client.direct import DirectClient
from flexinfer.client.protocol import Patch
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer, Close, Hang, Reset, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import AlreadyExistsError, DeadlineError, TransportError
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.meta.envelope import Tree

WIDGETS = Resource(GroupVersionKind("example.org", "v1", "Widget"), "widgets")
PATH = "/apis/example.org/v1/namespaces/default/widgets"
TAKEN = status_answer(409, "AlreadyExists", 'widgets.example.org "a" already exists')
GONE = status_answer(404, "NotFound", 'widgets.example.org "a" not found')
FORBIDDEN = status_answer(403, "Forbidden", "widgets.example.org is forbidden")
MANAGER = "tests"


@asynccontextmanager
async def serving(
    authority: CertificateAuthority, *, seconds: float = 30.0
) -> AsyncIterator[tuple[ScriptedServer, DirectClient]]:
    async with ScriptedServer.start(authority) as server:
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            yield server, DirectClient(transport, timeout=seconds)


def intent(holder: str = "me", **metadata: Any) -> Tree:
    metadata = {"name": "a", "namespace": "default", "labels": {"x": "y"}, **metadata}
    return {"metadata": metadata, "spec": {"holder": holder, "ports": [{"port": 1}, {"port": 2}]}}


def live(holder: str = "me", **metadata: Any) -> Answer:
    """What the API server makes of an intent: more fields, and defaults inside lists."""
    tree = intent(holder, uid="u-1", resourceVersion="7", **metadata)
    for port in tree["spec"]["ports"]:
        port["protocol"] = "TCP"
    head = {"apiVersion": "example.org/v1", "kind": "Widget"}
    return Answer(body={**head, **tree, "status": {}})


@pytest.mark.parametrize("fault", [Reset(), Close()])
async def test_c72_a_create_that_did_not_arrive_is_sent_again(
    authority: CertificateAuthority, fault: Reset | Close
) -> None:
    async with serving(authority) as (server, client):
        server.script("POST", PATH, fault, live())
        made = await client.create(WIDGETS, intent(), field_manager=MANAGER)
        assert made.meta.uid == "u-1"
        assert [r.method for r in server.requests] == ["POST", "POST"]
        assert server.requests[0].body == server.requests[1].body


async def test_c72_a_create_whose_answer_was_lost_is_a_success(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        server.script("POST", PATH, Reset(), TAKEN)
        server.script("GET", f"{PATH}/a", live())
        made = await client.create(WIDGETS, intent(), field_manager=MANAGER)
        assert (made.meta.uid, made.meta.resource_version) == ("u-1", "7")


@pytest.mark.parametrize(
    "found",
    [
        live("somebody else"),
        live(labels={"x": "z"}),
        live(deletionTimestamp="2030-01-31T12:00:00Z"),
        GONE,
        FORBIDDEN,
        Close(),
    ],
)
async def test_c72_what_is_not_ours_still_exists_already(
    authority: CertificateAuthority, found: Answer | Close
) -> None:
    async with serving(authority) as (server, client):
        server.script("POST", PATH, Reset(), TAKEN)
        server.script("GET", f"{PATH}/a", found)
        with pytest.raises(AlreadyExistsError):
            await client.create(WIDGETS, intent(), field_manager=MANAGER)


async def test_c72_a_name_that_was_taken_from_the_start_is_not_read(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        server.script("POST", PATH, TAKEN)
        with pytest.raises(AlreadyExistsError):
            await client.create(WIDGETS, intent(), field_manager=MANAGER)
        assert [r.method for r in server.requests] == ["POST"]


async def test_c72_a_generated_name_is_sent_once(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, client):
        server.script("POST", PATH, Reset())
        nameless = intent(generateName="a-")
        del nameless["metadata"]["name"]
        with pytest.raises(TransportError, match="connection lost"):
            await client.create(WIDGETS, nameless, field_manager=MANAGER)
        assert len(server.requests) == 1


async def test_c72_a_server_that_always_resets_is_given_up(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        server.script("POST", PATH, Reset())
        with pytest.raises(TransportError, match="connection lost"):
            await client.create(WIDGETS, intent(), field_manager=MANAGER)
        assert len(server.requests) == 3


async def test_c72_all_of_it_is_within_one_deadline(authority: CertificateAuthority) -> None:
    async with serving(authority, seconds=0.3) as (server, client):
        server.script("POST", PATH, Reset(), TAKEN)
        server.script("GET", f"{PATH}/a", Hang())
        with pytest.raises(DeadlineError):
            await client.create(WIDGETS, intent(), field_manager=MANAGER)


async def test_c72_one_reset_in_twenty_on_used_connections_reaches_no_caller(
    authority: CertificateAuthority,
) -> None:
    count = 60
    # Each kind of call meets its resets at other moments, never on its first.
    faulty = [[Reset() if n % 20 == first else live() for n in range(count)] for first in (7, 11)]
    created = [Reset() if n % 20 == 13 else TAKEN if n % 20 == 14 else live() for n in range(count)]
    async with serving(authority) as (server, client):
        server.script("GET", f"{PATH}/a", *faulty[0])
        server.script("PATCH", f"{PATH}/a", *faulty[1])
        server.script("POST", PATH, *created)
        for _ in range(count - 6):
            assert await client.read(WIDGETS, NamespacedName("default", "a")) is not None
            await client.apply(WIDGETS, intent(), field_manager=MANAGER)
            made = await client.create(WIDGETS, intent(), field_manager=MANAGER)
            assert made.meta.uid == "u-1"
        methods = [r.method for r in server.requests]
        assert methods.count("POST") == count - 6 + 3
        assert len(methods) <= 3 * count + 9


async def test_c72_a_json_patch_is_never_repeated(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, client):
        server.script("PATCH", f"{PATH}/a", Reset(), live())
        with pytest.raises(TransportError, match="connection lost"):
            await client.patch(
                WIDGETS,
                NamespacedName("default", "a"),
                [{"op": "add", "path": "/x", "value": 1}],
                content_type=Patch.JSON,
                field_manager=MANAGER,
            )
        assert len(server.requests) == 1


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


def defaulted(tree: Any) -> Any:
    """Add a field to every dict, as defaults do."""
    if isinstance(tree, dict):
        return {**{key: defaulted(value) for key, value in tree.items()}, "defaulted": True}
    return [defaulted(entry) for entry in tree] if isinstance(tree, list) else tree


@given(TREES)
def test_every_tree_says_itself_and_what_it_was_before_defaults(tree: Any) -> None:
    assert says(tree, tree)
    assert says(defaulted(tree), json.loads(json.dumps(tree)))


@pytest.mark.parametrize(
    ("found", "wanted"),
    [({}, {"a": 1}), ({"a": 1}, {"a": 2}), ([1, 2], [1]), ([], {}), ({}, []), (None, {}), ({}, 1)],
)
def test_what_differs_is_not_said(found: Any, wanted: Any) -> None:
    assert not says(found, wanted)
