# SPDX-License-Identifier: Apache-2.0
"""A set of children: what is applied, what is deleted, and what one refusal leaves undone."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from flexinfer.apply import (
    Applied,
    AppliedChildren,
    Applier,
    LiveClient,
    Outcome,
    apply_children,
)
from flexinfer.errors import (
    ConfigurationError,
    ForbiddenError,
    NotOursError,
    TerminalError,
    TransportError,
)
from flexinfer.kinds.configmap import ConfigMap
from flexinfer.kinds.namespace import Namespace
from flexinfer.meta.envelope import ObjectMeta, OwnerReference, StoredObject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flexinfer.meta.envelope import Tree
    from flexinfer.meta.resource import NamespacedName
    from flexinfer.meta.selector import Selector

LABEL = "example.com/of"
Names = list[str]
OWNER = Namespace(metadata=ObjectMeta(name="o", uid="owner"))


def child(name: str, *, controller: str = "owner", **meta: str) -> ConfigMap:
    reference = OwnerReference(
        api_version="v1", kind="Namespace", name="o", uid=controller, controller=True
    )
    return ConfigMap(
        metadata=ObjectMeta(
            name=name,
            namespace="n",
            uid=f"uid-{name}",
            labels={LABEL: "owner"},
            owner_references=(reference,) if controller else (),
            **meta,  # type: ignore[arg-type]  # metadata fields that are text
        )
    )


def intent(name: str, **metadata: object) -> Tree:
    return {"metadata": {"name": name, "namespace": "n", **metadata}, "data": {"a": "b"}}


class World:
    """A client and an applier in one: what is there, and what was done to it."""

    def __init__(
        self,
        *there: ConfigMap,
        answers: Mapping[str, Outcome | Exception] = {},
        drift: Mapping[str, tuple[str, ...]] = {},
    ) -> None:
        self.there = there
        self.answers = answers
        self.drift = drift
        self.applied: list[Tree] = []
        self.deleted: list[tuple[str, str]] = []

    async def list(
        self, kind: type[ConfigMap], *, namespace: str = "", labels: Selector | None = None
    ) -> Sequence[ConfigMap]:
        assert (kind, namespace, str(labels)) == (ConfigMap, "", f"{LABEL}=owner")
        return self.there

    async def delete(self, _resource: object, key: NamespacedName, *, uid: str) -> None:
        self.deleted.append((key.name, uid))

    async def apply(self, resource: object, intent: Tree, *, owner: object) -> Applied:
        assert (resource, owner) == (ConfigMap.resource, OWNER)
        self.applied.append(intent)
        answer = self.answers.get(intent["metadata"]["name"], Outcome.CREATED)
        if isinstance(answer, Exception):
            raise answer
        drift = self.drift.get(intent["metadata"]["name"], ())
        return Applied(StoredObject(ObjectMeta(), b"{}"), answer, drift)

    async def report(self, *names: str) -> AppliedChildren:
        return await apply_children(
            cast("LiveClient", self),
            cast("Applier", self),
            ConfigMap,
            map(intent, names),
            owner=OWNER,
            label=LABEL,
        )

    async def children(self, *names: str) -> tuple[Names, Names, Names]:
        done = await self.report(*names)
        return (
            [key.name for key in done.written],
            [key.name for key in done.deleted],
            [str(error) for error in done.not_ours],
        )


async def test_each_intent_is_applied_with_its_head_and_the_label() -> None:
    world = World(answers={"a": Outcome.UNCHANGED})
    given = intent("a", labels={"x": "y"})
    await apply_children(
        cast("LiveClient", world),
        cast("Applier", world),
        ConfigMap,
        [given],
        owner=OWNER,
        label=LABEL,
    )
    (sent,) = world.applied
    assert (sent["apiVersion"], sent["kind"]) == ("v1", "ConfigMap")
    assert sent["metadata"]["labels"] == {"x": "y", LABEL: "owner"}
    assert given == intent("a", labels={"x": "y"}), "the author's intent is not changed"


async def test_what_is_not_wanted_any_more_goes_and_the_rest_stays() -> None:
    world = World(child("a"), child("b"))
    assert await world.children("a", "c") == (["a", "c"], ["b"], [])
    assert world.deleted == [("b", "uid-b")]
    assert (await World(child("a"), child("b")).children())[1] == ["a", "b"]


async def test_only_what_the_owner_controls_and_what_does_not_go_already_is_deleted() -> None:
    world = World(
        child("stranger", controller="another"),
        child("orphan", controller=""),
        child("going", deletion_timestamp="2026-01-01T00:00:00Z"),
    )
    assert await world.children() == ([], [], [])
    assert world.deleted == []


async def test_what_goes_already_and_is_still_there_is_told() -> None:
    going = {"deletion_timestamp": "2026-01-01T00:00:00Z"}
    world = World(child("a", **going), child("b", **going), child("c", controller="x", **going))
    assert (await world.report("a")).leaving == (("n", "b"),)
    assert (await World(child("a")).report()).leaving == ()


async def test_immutable_fields_that_are_not_as_asked_are_told_of_each_child() -> None:
    world = World(answers={"a": Outcome.UNCHANGED}, drift={"a": ("spec.x", "spec.y")})
    assert (await world.report("a", "b")).drift == {("n", "a"): ("spec.x", "spec.y")}


async def test_what_was_unchanged_is_not_told() -> None:
    assert await World(answers={"a": Outcome.UNCHANGED}).children("a", "b") == (["b"], [], [])


async def test_a_name_that_is_somebody_elses_is_reported_and_the_others_are_applied() -> None:
    world = World(child("z"), answers={"a": NotOursError("a is theirs")})
    assert await world.children("a", "b") == (["b"], ["z"], ["a is theirs"])


@pytest.mark.parametrize("error", [ForbiddenError("quota"), TerminalError("never")])
async def test_one_refusal_is_raised_after_everything_else_is_done(error: Exception) -> None:
    world = World(child("z"), answers={"a": error, "b": ForbiddenError("another")})
    with pytest.raises(type(error), match=str(error)):
        await world.children("a", "b", "c")
    assert [sent["metadata"]["name"] for sent in world.applied] == ["a", "b", "c"]
    assert world.deleted == [("z", "uid-z")]


async def test_a_server_that_is_away_ends_it_at_once() -> None:
    world = World(child("z"), answers={"a": TransportError("away")})
    with pytest.raises(TransportError):
        await world.children("a", "b")
    assert len(world.applied) == 1
    assert world.deleted == []


async def test_two_intents_of_one_name_are_refused_before_anything_is_sent() -> None:
    world = World()
    with pytest.raises(ConfigurationError, match="two intents are for ConfigMap n/a"):
        await world.children("a", "a")
    assert world.applied == []
