# SPDX-License-Identifier: Apache-2.0
"""Finalizers: the patch against a model of the list, and the ways in which a server says no."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonpointer import JsonPointerException

from flexinfer import finalizers
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import (
    ConfigurationError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TerminalError,
)
from flexinfer.finalizers import Stage
from flexinfer.meta.envelope import ObjectMeta, decode_tree
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.meta.envelope import Tree

WIDGET = Resource(GroupVersionKind("example.com", "v1", "Widget"), "widgets")
PATH = "/apis/example.com/v1/namespaces/default/widgets/w"
OURS, FOREIGN = "example.com/ours", "example.org/foreign"

FAILED_TEST = status_answer(422, "Invalid", "the server rejected our request")
LOST_RACE = status_answer(409, "Conflict", "the object has been modified")
GONE = status_answer(404, "NotFound", 'widgets "w" not found')


@asynccontextmanager
async def serving(
    authority: CertificateAuthority,
) -> AsyncIterator[tuple[ScriptedServer, DirectClient]]:
    async with ScriptedServer.start(authority) as server:
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            yield server, DirectClient(transport)


def meta(*names: str, deleting: bool = False, uid: str = "u1") -> ObjectMeta:
    return ObjectMeta(
        name="w",
        namespace="default",
        uid=uid,
        finalizers=names,
        deletion_timestamp="2026-01-01T00:00:00Z" if deleting else None,
    )


def answer(*names: str, deleting: bool = False, uid: str = "u1") -> Answer:
    metadata: Tree = {"name": "w", "namespace": "default", "uid": uid, "finalizers": list(names)}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return Answer(body={"metadata": metadata})


async def add(client: DirectClient, known: ObjectMeta, name: str = OURS) -> ObjectMeta:
    return await finalizers.add(client, WIDGET, known, name, field_manager="m")


async def remove(client: DirectClient, known: ObjectMeta, name: str = OURS) -> None:
    await finalizers.remove(client, WIDGET, known, name, field_manager="m")


@pytest.mark.parametrize(
    "name",
    [
        *("", "plain", "/x", "example.com/", "Example.com/x", "a..b/x", "-a.b/x", "a.b/-x"),
        *("a.b/x/y", "a.b/x ", "a.b/x\n", f"{'a' * 254}/x", f"a.b/{'x' * 64}"),
    ],
)
async def test_a_name_without_a_domain_is_refused(
    authority: CertificateAuthority, name: str
) -> None:
    async with serving(authority) as (server, client):
        for call in (add, remove):
            with pytest.raises(ConfigurationError, match="use a domain of yours"):
                await call(client, meta(), name)
        assert server.requests == []


@pytest.mark.parametrize(
    "name", ["a.b/x", "flexinfer/x", "a-1.b/X_y.z-9", f"{'a' * 253}/{'x' * 63}"]
)
async def test_a_qualified_name_is_taken(authority: CertificateAuthority, name: str) -> None:
    async with serving(authority) as (_, client):
        assert (await add(client, meta(name), name)).finalizers == (name,)


async def test_the_patch_tests_object_and_list(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, client):
        server.script("PATCH", PATH, answer(FOREIGN, OURS))
        assert (await add(client, meta(FOREIGN))).finalizers == (FOREIGN, OURS)
        (sent,) = server.requests
        assert sent.headers["content-type"] == "application/json-patch+json"
        assert sent.query["fieldManager"] == "m"
        tests = decode_tree(b'{"patch":' + sent.body + b"}")["patch"][:2]
        assert tests == [
            {"op": "test", "path": "/metadata/uid", "value": "u1"},
            {"op": "test", "path": "/metadata/finalizers", "value": [FOREIGN]},
        ]


names = st.lists(st.sampled_from([f"a.b/{n}" for n in "wxyz"]), unique=True)


@given(known=names, live=names, adding=st.booleans())
def test_a_patch_does_what_it_is_for_or_nothing(
    known: list[str], live: list[str], *, adding: bool
) -> None:
    """Whatever the list is by now: the patch fails as a whole, or one name comes or goes."""
    name = "a.b/x"
    edit = finalizers._Edit(WIDGET, meta(*known), name, adding)
    if edit.is_done(edit.meta):
        return
    before: Tree = {"metadata": {"uid": "u1", **({"finalizers": live} if live else {})}}
    try:
        after = jsonpatch.apply_patch(_absent_is_null(before), edit.patch(edit.meta))
    except (jsonpatch.JsonPatchException, JsonPointerException):
        assert live != known
        return
    changed = after["metadata"]["finalizers"]
    assert changed == ([*live, name] if adding else [n for n in live if n != name])


def test_a_name_that_is_there_twice_goes_as_a_whole() -> None:
    known = meta("a.b/x", FOREIGN, "a.b/x", "a.b/y")
    patch = finalizers._Edit(WIDGET, known, "a.b/x", adding=False).patch(known)
    before = {"metadata": {"uid": "u1", "finalizers": list(known.finalizers)}}
    after = jsonpatch.apply_patch(before, patch)
    assert after["metadata"]["finalizers"] == [FOREIGN, "a.b/y"]


def _absent_is_null(tree: Tree) -> Tree:
    """Spell out what the API server's patch library reads from an absent field."""
    return {"metadata": {"finalizers": None} | tree["metadata"]}


@pytest.mark.parametrize("refusal", [FAILED_TEST, LOST_RACE], ids=["422", "409"])
async def test_a_refused_patch_is_made_anew_from_what_is_there(
    authority: CertificateAuthority, refusal: Answer
) -> None:
    async with serving(authority) as (server, client):
        server.script("PATCH", PATH, refusal, answer(FOREIGN, OURS))
        server.script("GET", PATH, answer(FOREIGN))
        assert (await add(client, meta())).finalizers == (FOREIGN, OURS)
        server.script("PATCH", PATH, refusal, answer(FOREIGN))
        server.script("GET", PATH, answer(FOREIGN, OURS))
        await remove(client, meta(OURS))
        assert [r.method for r in server.requests] == ["PATCH", "GET", "PATCH"] * 2
        assert f'"value":["{FOREIGN}"]'.encode() in server.requests[2].body


@pytest.mark.parametrize("refusal", [FAILED_TEST, LOST_RACE], ids=["422", "409"])
async def test_others_that_never_stop_are_a_conflict_after_twenty_tries(
    authority: CertificateAuthority, refusal: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalizers, "_LONGEST_PAUSE", 0.01)
    async with serving(authority) as (server, client):
        server.script("PATCH", PATH, refusal)
        server.script("GET", PATH, answer(FOREIGN))
        with pytest.raises(ConflictError, match="others changed its finalizers 20 times in a row"):
            await add(client, meta())
        assert len(server.requests) == 40


async def test_what_others_did_for_us_is_done(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, client):
        server.script("PATCH", PATH, FAILED_TEST)
        server.script("GET", PATH, answer(OURS, FOREIGN))
        assert (await add(client, meta())).finalizers == (OURS, FOREIGN)
        server.script("GET", PATH, answer(FOREIGN))
        await remove(client, meta(OURS))
        assert len(server.requests) == 4


async def test_an_object_that_validation_refuses_is_not_tried_again(
    authority: CertificateAuthority,
) -> None:
    causes = [{"reason": "FieldValueInvalid", "field": "spec.size", "message": "too large"}]
    async with serving(authority) as (server, client):
        server.script("PATCH", PATH, status_answer(422, "Invalid", "invalid", causes=causes))
        server.script("GET", PATH, answer())
        with pytest.raises(InvalidError):
            await add(client, meta())
        server.script("GET", PATH, answer(OURS))
        with pytest.raises(InvalidError):
            await remove(client, meta(OURS))
        assert len(server.requests) == 4


async def test_a_deletion_that_is_seen_too_late_is_a_conflict(
    authority: CertificateAuthority,
) -> None:
    forbidden = [{"reason": "FieldValueForbidden", "field": "metadata.finalizers", "message": "no"}]
    async with serving(authority) as (server, client):
        refusal = status_answer(422, "Invalid", "no new finalizers", causes=forbidden)
        server.script("PATCH", PATH, refusal)
        server.script("GET", PATH, answer(FOREIGN, deleting=True))
        with pytest.raises(ConflictError, match="is being deleted by now"):
            await add(client, meta(FOREIGN))
        assert len(server.requests) == 2


async def test_a_known_deletion_is_refused_without_a_request(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        with pytest.raises(TerminalError, match="Widget default/w is being deleted"):
            await add(client, meta(deleting=True))
        assert (await add(client, meta(OURS, deleting=True))).finalizers == (OURS,)
        assert server.requests == []


@pytest.mark.parametrize("gone", [GONE, answer(OURS, uid="u2")], ids=["gone", "made anew"])
async def test_another_object_or_none_is_success_for_a_removal_only(
    authority: CertificateAuthority, gone: Answer
) -> None:
    async with serving(authority) as (server, client):
        server.script("PATCH", PATH, FAILED_TEST)
        server.script("GET", PATH, gone)
        await remove(client, meta(OURS))
        with pytest.raises(ConflictError, match="is gone or was made anew"):
            await add(client, meta())
        server.script("PATCH", PATH, GONE)
        await remove(client, meta(OURS))
        with pytest.raises(ConflictError, match="is gone or was made anew"):
            await add(client, meta())


async def test_a_missing_kind_and_a_missing_right_are_raised(
    authority: CertificateAuthority,
) -> None:
    async with serving(authority) as (server, client):
        server.script("PATCH", PATH, Answer(404, body="404 page not found"))
        with pytest.raises(NotFoundError):
            await add(client, meta())
        await remove(client, meta(OURS))
        server.script("PATCH", PATH, status_answer(403, "Forbidden", "no right"))
        for call, known in ((add, meta()), (remove, meta(OURS))):
            with pytest.raises(ForbiddenError):
                await call(client, known)


async def test_guard_keeps_the_finalizer_when_the_clean_up_fails(
    authority: CertificateAuthority,
) -> None:
    async def clean_up() -> bool:
        raise ConflictError("not yet")

    async with serving(authority) as (server, client):
        server.script("PATCH", PATH, answer(OURS))

        async def guard(known: ObjectMeta) -> Stage:
            return await finalizers.guard(
                client, WIDGET, known, OURS, field_manager="m", clean_up=clean_up
            )

        assert await guard(meta()) is Stage.LIVE
        assert await guard(meta(FOREIGN, deleting=True)) is Stage.RELEASED
        with pytest.raises(ConflictError, match="not yet"):
            await guard(meta(OURS, deleting=True))
        assert len(server.requests) == 1
