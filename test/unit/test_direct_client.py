# SPDX-License-Identifier: Apache-2.0
"""What the direct client sends, byte for byte, and what it makes of the answers."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

from flexinfer import errors
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.protocol import Patch, Propagation
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer, Close, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flexinfer.client.protocol import Client
    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.meta.selector import Selector

WIDGETS = Resource(GroupVersionKind("example.org", "v1", "Widget"), "widgets")
NODES = Resource(GroupVersionKind("", "v1", "Node"), "nodes", namespaced=False)
KEY = NamespacedName("default", "a")
COLLECTION = "/apis/example.org/v1/namespaces/default/widgets"
PATH = f"{COLLECTION}/a"
GONE = status_answer(404, "NotFound", 'widgets.example.org "a" not found')
NOT_SERVED = Answer(404, body="404 page not found\n")


class Spec(Model):
    size: int = 0


class Widget(Object):
    resource: ClassVar[Resource] = WIDGETS

    spec: Spec = Spec()


@asynccontextmanager
async def serving(
    authority: CertificateAuthority,
) -> AsyncIterator[tuple[ScriptedServer, DirectClient]]:
    async with ScriptedServer.start(authority) as server:
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            yield server, DirectClient(transport)


def widget(name: str = "a", size: int = 1, **metadata: str) -> dict[str, Any]:
    return {
        "apiVersion": "example.org/v1",
        "kind": "Widget",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"size": size},
    }


def page(*items: dict[str, Any], token: str | None = "") -> Answer:
    metadata = {"resourceVersion": "7", "continue": token}
    if token is None:
        del metadata["continue"]
    return Answer(body={"kind": "WidgetList", "metadata": metadata, "items": list(items)})


async def test_the_direct_client_is_a_client(authority: CertificateAuthority) -> None:
    async with serving(authority) as (_, client):
        as_protocol: Client = client
        assert as_protocol is client


async def test_get_returns_the_model_and_read_what_is_stored(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        server.script("GET", PATH, Answer(body=widget(size=3, resourceVersion="5")))
        got = await client.get(Widget, KEY)
        assert got is not None
        assert (got.key, got.spec.size) == (KEY, 3)
        stored = await client.read(WIDGETS, KEY)
        assert stored is not None
        assert (stored.meta.resource_version, stored.body) == ("5", b'{"spec":{"size":3}}')


async def test_an_object_that_is_not_there_is_none(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, client):
        server.script("GET", PATH, GONE)
        assert await client.get(Widget, KEY) is None


async def test_a_kind_that_is_not_served_is_an_error(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, client):
        server.script("GET", PATH, NOT_SERVED)
        server.script("DELETE", PATH, NOT_SERVED)
        with pytest.raises(errors.NotFoundError, match="404 page not found"):
            await client.read(WIDGETS, KEY)
        with pytest.raises(errors.NotFoundError):
            await client.delete(WIDGETS, KEY)


async def test_an_object_that_does_not_fit_names_the_field(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        server.script("GET", PATH, Answer(body=widget() | {"spec": {"size": "big"}}))
        with pytest.raises(errors.DecodeError) as caught:
            await client.get(Widget, KEY)
        assert caught.value.field == "spec.size"


@pytest.mark.parametrize("last", ["", None])
async def test_list_follows_every_page(authority: CertificateAuthority, last: str | None) -> None:
    async with serving(authority) as (server, client):
        server.script("GET", COLLECTION, page(widget("c"), token=last), query={"continue": "2+/="})
        server.script("GET", COLLECTION, page(widget("b"), token="2+/="), query={"continue": "1"})
        server.script("GET", COLLECTION, page(widget("a"), token="1"))
        got = await client.list(Widget, namespace="default")
        assert [w.metadata.name for w in got] == ["a", "b", "c"]
        assert [r.query for r in server.requests] == [
            {"limit": "500"},
            {"limit": "500", "continue": "1"},
            {"limit": "500", "continue": "2+/="},
        ]


async def test_list_of_all_namespaces_and_of_some_labels(authority: CertificateAuthority) -> None:
    class Written:
        """Be a selector as far as the client knows: something with a query form."""

        def __str__(self) -> str:
            return "a=b,c in (d,e)"

    async with serving(authority) as (server, client):
        server.script("GET", "/apis/example.org/v1/widgets", page())
        assert await client.list(Widget, labels=cast("Selector", Written())) == []
        assert server.requests[0].query["labelSelector"] == "a=b,c in (d,e)"


async def test_an_expired_page_starts_the_list_once_more(authority: CertificateAuthority) -> None:
    expired = status_answer(410, "Expired", "the continue token is too old")
    async with serving(authority) as (server, client):
        server.script("GET", COLLECTION, expired, page(widget("b")), query={"continue": "1"})
        server.script("GET", COLLECTION, page(widget("a"), token="1"))
        got = await client.list(Widget, namespace="default")
        assert [w.metadata.name for w in got] == ["a", "b"]
        server.script("GET", COLLECTION, expired, query={"continue": "1"})
        with pytest.raises(errors.ExpiredError):
            await client.list(Widget, namespace="default")
        assert len(server.requests) == 8


async def test_a_list_that_never_ends_is_an_error(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, client):
        server.script("GET", COLLECTION, page(widget("a"), token="1"))
        with pytest.raises(errors.DecodeError, match="does not end"):
            await client.list(Widget, namespace="default")


async def test_an_unreadable_item_is_not_left_out_in_silence(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        server.script("GET", COLLECTION, page(widget("a"), {"metadata": {"name": 3}}))
        with pytest.raises(errors.DecodeError, match="1 objects cannot be read"):
            await client.list(Widget, namespace="default")


async def test_create_sends_the_intent_and_says_who_writes(
    authority: CertificateAuthority,
) -> None:
    intent = {"metadata": {"name": "a", "namespace": "default"}, "spec": {"size": 1}}
    async with serving(authority) as (server, client):
        server.script(
            "POST",
            COLLECTION,
            Answer(201, body=widget(uid="u")),
            status_answer(409, "AlreadyExists", 'widgets.example.org "a" already exists'),
        )
        created = await client.create(WIDGETS, intent, field_manager="me")
        assert created.meta.uid == "u"
        with pytest.raises(errors.AlreadyExistsError):
            await client.create(WIDGETS, intent, field_manager="me")
        (first, _) = server.requests
        assert first.query == {"fieldManager": "me", "fieldValidation": "Strict"}
        assert first.headers["content-type"] == "application/json"
        assert json.loads(first.body) == widget()
        assert "kind" not in intent


@pytest.mark.parametrize(
    ("options", "path", "force"),
    [({}, PATH, "true"), ({"force": False, "subresource": "status"}, PATH + "/status", "false")],
)
async def test_apply_is_a_server_side_apply(
    authority: CertificateAuthority, options: dict[str, Any], path: str, force: str
) -> None:
    async with serving(authority) as (server, client):
        server.script("PATCH", path, Answer(body=widget(resourceVersion="8")))
        applied = await client.apply(WIDGETS, widget(uid="u"), field_manager="me", **options)
        assert applied.meta.resource_version == "8"
        (sent,) = server.requests
        assert sent.headers["content-type"] == "application/apply-patch+yaml"
        assert sent.query == {"fieldManager": "me", "fieldValidation": "Strict", "force": force}
        assert json.loads(sent.body) == widget(uid="u")


async def test_apply_is_repeated_after_a_lost_connection(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        server.script("PATCH", PATH, Close(), Answer(body=widget()))
        await client.apply(WIDGETS, widget(), field_manager="me")
        assert [r.method for r in server.requests] == ["PATCH", "PATCH"]


async def test_an_apply_to_an_object_that_was_re_created_is_a_conflict(
    authority: CertificateAuthority,
) -> None:
    cause = {"reason": "FieldManagerConflict", "field": ".spec.size", "message": "by other"}
    async with serving(authority) as (server, client):
        server.script("PATCH", PATH, status_answer(409, "Conflict", "no", causes=[cause]))
        with pytest.raises(errors.ConflictError) as caught:
            await client.apply(WIDGETS, widget(uid="old"), field_manager="me", force=False)
        assert caught.value.causes == (
            errors.Cause("FieldManagerConflict", ".spec.size", "by other"),
        )


async def test_numbers_are_sent_exactly(authority: CertificateAuthority) -> None:
    intent = widget() | {"spec": {"large": 2**53 + 1, "whole": 1.0, "negative": -(2**63)}}
    async with serving(authority) as (server, client):
        server.script("PATCH", PATH, Answer(body=intent))
        answer = await client.apply(WIDGETS, intent, field_manager="me")
        for data in (server.requests[0].body, answer.body):
            assert b'"large":9007199254740993' in data
            assert b'"whole":1.0' in data
            assert b'"negative":-9223372036854775808' in data


@pytest.mark.parametrize(
    ("patch", "content_type", "media_type"),
    [
        ({"spec": {"size": 2}}, Patch.MERGE, "application/merge-patch+json"),
        (
            [{"op": "replace", "path": "/spec/size", "value": 2}],
            Patch.JSON,
            "application/json-patch+json",
        ),
    ],
)
async def test_each_patch_has_its_own_content_type(
    authority: CertificateAuthority, patch: Any, content_type: Patch, media_type: str
) -> None:
    async with serving(authority) as (server, client):
        server.script("PATCH", PATH + "/status", Answer(body=widget()))
        await client.patch(
            WIDGETS,
            KEY,
            patch,
            content_type=content_type,
            field_manager="me",
            subresource="status",
        )
        (sent,) = server.requests
        assert sent.headers["content-type"] == media_type
        assert sent.query == {"fieldManager": "me", "fieldValidation": "Strict"}
        assert json.loads(sent.body) == patch


@pytest.mark.parametrize(("patch", "content_type"), [({}, Patch.JSON), ([], Patch.MERGE)])
async def test_a_patch_of_the_wrong_shape_is_refused(
    authority: CertificateAuthority, patch: Any, content_type: Patch
) -> None:
    async with serving(authority) as (server, client):
        with pytest.raises(errors.ConfigurationError, match="a merge patch is a dict"):
            await client.patch(WIDGETS, KEY, patch, content_type=content_type, field_manager="me")
        assert server.requests == []


async def test_delete_names_the_uid_and_what_happens_to_the_owned(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        server.script("DELETE", PATH, Answer(body={"kind": "Status"}))
        await client.delete(WIDGETS, KEY)
        await client.delete(WIDGETS, KEY, uid="u", propagation=Propagation.FOREGROUND)
        await client.delete(WIDGETS, KEY, uid="u", resource_version="7")
        options = {"apiVersion": "v1", "kind": "DeleteOptions"}
        assert [json.loads(r.body) for r in server.requests] == [
            options | {"propagationPolicy": "Background"},
            options | {"propagationPolicy": "Foreground", "preconditions": {"uid": "u"}},
            options
            | {
                "propagationPolicy": "Background",
                "preconditions": {"uid": "u", "resourceVersion": "7"},
            },
        ]


async def test_deleting_what_is_gone_is_a_success_and_another_uid_a_conflict(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        server.script("DELETE", PATH, GONE, status_answer(409, "Conflict", "uid"))
        await client.delete(WIDGETS, KEY)
        with pytest.raises(errors.ConflictError):
            await client.delete(WIDGETS, KEY, uid="old")


async def test_cluster_scoped_objects_have_no_namespace_in_their_path(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        server.script("GET", "/api/v1/nodes/n", Answer(body={"metadata": {"name": "n"}}))
        assert await client.read(NODES, NamespacedName("", "n")) is not None


@pytest.mark.parametrize(
    ("resource", "key", "message"),
    [
        (WIDGETS, NamespacedName("default", ""), "does not name an object"),
        (WIDGETS, NamespacedName("default", ".."), "does not name an object"),
        (WIDGETS, NamespacedName("..", "a"), "does not name an object"),
        (WIDGETS, NamespacedName("", "a"), "needs a namespace"),
        (NODES, NamespacedName("default", "a"), "cluster-scoped"),
    ],
)
async def test_a_key_that_would_reach_something_else_is_refused(
    authority: CertificateAuthority, resource: Resource, key: NamespacedName, message: str
) -> None:
    async with serving(authority) as (server, client):
        with pytest.raises(errors.ConfigurationError, match=message):
            await client.delete(resource, key)
        with pytest.raises(errors.ConfigurationError, match=message):
            await client.read(resource, key)
        assert server.requests == []


async def test_a_slash_in_a_name_stays_in_the_name(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, client):
        server.script("GET", f"{COLLECTION}/a%2Fstatus", GONE)
        assert await client.read(WIDGETS, NamespacedName("default", "a/status")) is None


async def test_a_write_without_a_field_manager_is_refused(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (_, client):
        with pytest.raises(errors.ConfigurationError, match="field_manager"):
            await client.apply(WIDGETS, widget(), field_manager="")
        with pytest.raises(errors.ConfigurationError, match="field_manager"):
            await client.create(WIDGETS, widget(), field_manager="")


async def test_a_create_in_no_namespace_is_refused(authority: CertificateAuthority) -> None:
    async with serving(authority) as (_, client):
        with pytest.raises(errors.ConfigurationError, match="needs a namespace"):
            await client.create(WIDGETS, {"spec": {}}, field_manager="me")


def test_an_impossible_timeout_is_refused() -> None:
    transport = Transport(StaticCredentials("https://127.0.0.1:1"))
    with pytest.raises(errors.ConfigurationError, match="timeout"):
        DirectClient(transport, timeout=0)


async def test_every_try_of_a_write_asks_its_guard_first_and_no_read_does(
    authority: CertificateAuthority,
) -> None:
    left = 0

    def guard() -> None:
        nonlocal left
        if not left:
            raise errors.NotLeadingError("not now")
        left -= 1

    async with ScriptedServer.start(authority) as server:
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            client = DirectClient(transport, guard=guard)
            intent = {"metadata": {"name": "a", "namespace": "default"}}
            writes = (
                lambda: client.create(WIDGETS, intent, field_manager="m"),
                lambda: client.apply(WIDGETS, intent, field_manager="m"),
                lambda: client.patch(WIDGETS, KEY, {}, content_type=Patch.MERGE, field_manager="m"),
                lambda: client.delete(WIDGETS, KEY),
            )
            for write in writes:
                with pytest.raises(errors.NotLeadingError):
                    await write()
            assert not server.requests
            left = 1  # by the second try somebody else may lead
            busy = {"Retry-After": "1"}
            server.script("PATCH", PATH, Answer(429, headers=busy), Answer(body=widget()))
            with pytest.raises(errors.NotLeadingError):
                await writes[1]()
            assert len(server.requests) == 1
            server.script("GET", PATH, GONE)
            assert await client.read(WIDGETS, KEY) is None
