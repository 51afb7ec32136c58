# SPDX-License-Identifier: Apache-2.0
"""Who changed what, by `managedFields`; how often we ask; what the note says."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from flexinfer.apply import Claim, Reverted
from flexinfer.apply.plan import Child, Kind
from flexinfer.apply.reverted import PERIOD, Witness, claims_on
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import Answer, Reset, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.kinds.structure import ListMap, Merge, shape_of
from flexinfer.meta.envelope import ObjectMeta
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.recorder import EventRecorder, ObjectReference, announce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.envtest.script import Action
    from flexinfer.meta.envelope import Tree
    from flexinfer.recorder.series import Identity

SHAPE = shape_of(
    {
        "spec.ports": ListMap(("port", "protocol")),
        "spec.tags": Merge.SET,
        "spec.selector": Merge.ATOMIC_MAP,
    }
)


class Thing(Object):
    resource: ClassVar[Resource] = Resource(GroupVersionKind("x.y", "v1", "Thing"), "things")


OWNER = Thing(metadata=ObjectMeta(name="owner", namespace="default", uid="u1"))
META = ObjectMeta(name="web", namespace="default", uid="u2")
PATH = "/apis/x.y/v1/namespaces/default/things/web"


def entry(manager: str, *paths: str, operation: str = "Update", subresource: str = "") -> Tree:
    """Write an entry of `managedFields`; a path is its keys with spaces between."""
    fields: Tree = {}
    for path in paths:
        at = fields
        for key in path.split():
            at = at.setdefault(key, {})
    made: Tree = {"manager": manager, "operation": operation, "fieldsV1": fields}
    return made | ({"subresource": subresource} if subresource else {})


def claims(spec: Tree, live: Tree, *entries: Tree) -> list[tuple[str, ...]]:
    whole = {"metadata": {"managedFields": list(entries)}, "spec": live}
    found = claims_on({"spec": spec}, whole, SHAPE, field_manager="ours")
    return [(claim.manager, *claim.paths) for claim in found]


@pytest.mark.parametrize(
    ("spec", "theirs", "path"),
    [
        ({"size": 1}, "f:spec f:size", "spec.size"),
        ({"a": {"b": 1}}, "f:spec f:a f:b", "spec.a.b"),
        ({"list": [1, 2]}, "f:spec f:list", "spec.list"),
        ({"selector": {"a": "b"}}, "f:spec f:selector", "spec.selector"),
        ({"tags": ["x"]}, 'f:spec f:tags v:"x"', "spec.tags[x]"),
        (
            {"ports": [{"port": 80, "name": "n"}]},
            'f:spec f:ports k:{"port":80,"protocol":"TCP"} f:name',
            "spec.ports[port=80,protocol=TCP].name",
        ),
    ],
)
def test_a_field_that_only_they_hold_is_theirs(spec: Tree, theirs: str, path: str) -> None:
    assert claims(spec, spec, entry("them", theirs)) == [("them", path)]
    both = entry("them", theirs), entry("ours", theirs)
    assert claims(spec, spec, *both) == []


def test_what_nobody_holds_is_removed_only_where_it_is_missing() -> None:
    assert claims({"size": 1}, {"size": 2}) == []
    assert claims({"size": 1}, {}) == [("", "spec.size")]
    assert claims({"empty": {}, "zero": 0, "off": False, "text": "", "none": []}, {}) == []
    assert claims({"tags": ["x", "y"]}, {"tags": ["y"]}) == [("", "spec.tags[x]")]
    assert claims({"a": {"b": 1}}, {"a": "another type"}) == [("", "spec.a.b")]


def test_managers_and_their_subresources_are_kept_apart() -> None:
    spec = {"size": 1, "count": 2, "free": 3}
    found = claims_on(
        {"spec": spec},
        {
            "metadata": {
                "managedFields": [
                    entry("kubectl", "f:spec f:size", subresource="scale"),
                    entry("kubectl", "f:spec f:count"),
                    entry("argocd", "f:spec f:count", operation="Apply"),
                    entry("ours", "f:spec f:free", operation="Apply"),
                ]
            },
            "spec": spec,
        },
        SHAPE,
        field_manager="ours",
    )
    assert found == (
        Claim("kubectl", "Update", "scale", ("spec.size",)),
        Claim("kubectl", "Update", "", ("spec.count",)),
        Claim("argocd", "Apply", "", ("spec.count",)),
    )


def test_an_object_without_managed_fields_gives_no_claims() -> None:
    live = {"metadata": {}, "spec": {"size": 2}}
    assert claims_on({"spec": {"size": 1}}, live, SHAPE, field_manager="ours") == ()


@asynccontextmanager
async def serving(
    authority: CertificateAuthority, *actions: Action
) -> AsyncIterator[tuple[ScriptedServer, DirectClient]]:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", PATH, *actions)
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            yield server, DirectClient(transport)


CHILD = Child(
    Kind.of(Thing.resource),
    {
        "apiVersion": "x.y/v1",
        "kind": "Thing",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"size": 1},
    },
    OWNER,
)
SEEN = Answer(
    body={
        "metadata": {"name": "web", "managedFields": [entry("them", "f:spec f:size")]},
        "spec": {"size": 2},
    }
)


async def test_one_child_is_looked_at_once_a_minute_until_its_owner_is_forgotten(
    authority: CertificateAuthority,
) -> None:
    now = 0.0
    async with serving(authority, SEEN) as (server, client):
        witness = Witness(client, field_manager="ours", observer=lambda _: None, clock=lambda: now)
        seen = await witness.look(CHILD, CHILD.intent)
        assert seen is not None
        assert Claim("them", "Update", "", ("spec.size",)) in seen
        now = PERIOD - 0.1
        assert await witness.look(CHILD, CHILD.intent) is None
        now = PERIOD
        assert await witness.look(CHILD, CHILD.intent) == seen
        witness.forget(CHILD.owner_id)
        assert witness._looked == {}
        assert await witness.look(CHILD, CHILD.intent) == seen
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    "failure",
    [
        Reset(),
        status_answer(403, "Forbidden", "no right"),
        status_answer(404, "NotFound", "gone"),
        Answer(body="no JSON"),
    ],
)
async def test_no_answer_is_no_claim_and_no_error(
    authority: CertificateAuthority, failure: Action
) -> None:
    async with serving(authority, failure) as (_, client):
        witness = Witness(client, field_manager="ours", observer=lambda _: None)
        assert await witness.look(CHILD, CHILD.intent) == ()


async def test_nobody_is_asked_when_nobody_wants_to_know(authority: CertificateAuthority) -> None:
    async with serving(authority) as (server, client):
        witness = Witness(client, field_manager="ours", observer=None)
        assert await witness.look(CHILD, CHILD.intent) is None
        witness.report(CHILD, META, ())
        assert server.requests == []


class Notes:
    def __init__(self) -> None:
        self.events: list[tuple[Identity, str]] = []

    def observe(self, identity: Identity, note: str) -> None:
        self.events.append((identity, note))


def note(*found: Claim, owner: Any = OWNER) -> tuple[Identity, str]:
    notes = Notes()
    announce(EventRecorder(notes, "test"))(Reverted(owner, Thing.resource, META, found))
    (event,) = notes.events
    return event


def test_the_note_names_managers_and_a_few_fields() -> None:
    many = Claim("them", "Apply", "", tuple(f"spec.f{n}" for n in range(7)))
    assert note(many)[1] == (
        "Thing web: took back spec.f0, spec.f1, spec.f2, spec.f3, spec.f4 and 2 more, "
        "set by them (Apply)"
    )
    assert note()[1] == "Thing web: took back the change of a manager that left no trace"


def test_a_child_in_another_namespace_than_its_owner_is_named_with_it() -> None:
    owner = Thing(metadata=ObjectMeta(name="owner", uid="u1"))
    assert note(owner=owner)[1].startswith("Thing default/web: took back ")


def test_the_event_is_about_the_owner_or_the_child_without_one() -> None:
    child = ObjectReference("x.y/v1", "Thing", "default", "web", "u2")
    identity, _ = note()
    assert (identity.regarding.name, identity.related) == ("owner", child)
    identity, _ = note(owner=None)
    assert identity.regarding == child
