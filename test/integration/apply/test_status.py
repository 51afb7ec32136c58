# SPDX-License-Identifier: Apache-2.0
"""A status is written when it says something new, and to the object that was looked at alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from flexinfer import conditions
from flexinfer.apply import Outcome, StatusWriter
from flexinfer.errors import ConflictError
from flexinfer.kinds.namespace import Namespace
from flexinfer.kinds.structure import Merge
from flexinfer.meta.condition import Condition, ConditionStatus
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree
    from test.integration.apply.conftest import Bench, Connect

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CONFIG_MAP = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")


def status_of(reason: str, *nodes: str, **more: object) -> Tree:
    ready = conditions.set_condition(
        [],
        "Ready",
        ConditionStatus.FALSE,
        reason=reason,
        observed_generation=1,
        now=NOW,
    )
    cached = conditions.set_condition(
        [],
        "Cached",
        ConditionStatus.TRUE,
        reason="Cached",
        observed_generation=1,
        now=NOW,
    )
    entries = [condition.wire() for condition in (*ready, *cached)]
    return {"conditions": entries, "nodes": list(nodes), "phase": "Pending", **more}


def writer(b: Bench, *foreign: str) -> StatusWriter:
    return StatusWriter(
        b.client,
        field_manager=b.manager,
        foreign=foreign,
        structures={b.owner.resource: {"status.nodes": Merge.SET}},
    )


async def test_a_status_is_written_when_it_says_something_new(bench: Connect) -> None:
    async with bench() as b:
        status = writer(b)

        async def written(tree: Tree) -> Outcome:
            return await status.write(b.owner.resource, b.owner.metadata, tree)

        assert await written(status_of("A", "n1", "n2")) is Outcome.UPDATED
        reordered = status_of("A", "n2", "n1", seen=None)
        reordered["conditions"].reverse()
        assert await written(reordered) is Outcome.UNCHANGED
        assert b.writes() == [("patch", "widgets", 200)]
        assert await written(status_of("B", "n1", seen="now")) is Outcome.UPDATED
        assert await written(status_of("B", "n1")) is Outcome.UPDATED
        live = b.get(b.owner.resource, "owner")
        assert "seen" not in live["status"]
        assert live["status"]["nodes"] == ["n1"]
        assert live["metadata"]["generation"] == 1


async def test_a_foreign_change_of_our_status_is_written_over_and_of_others_is_not(
    bench: Connect,
) -> None:
    async with bench() as b:
        status = writer(b)
        tree = status_of("A")

        async def written() -> Outcome:
            return await status.write(b.owner.resource, b.owner.metadata, tree)

        await written()
        path = f"{b.path(b.owner.resource, 'owner')}/status"
        b.admin.merge(path, {"status": {"seen": "theirs"}})
        b.writes()
        assert [await written(), await written()] == [Outcome.UNCHANGED] * 2
        assert b.writes() == []
        b.admin.merge(path, {"status": {"phase": "Hacked"}})
        assert [await written(), await written()] == [Outcome.UPDATED, Outcome.UNCHANGED]
        live = b.get(b.owner.resource, "owner")["status"]
        assert (live["phase"], live["seen"]) == ("Pending", "theirs")


@pytest.mark.parametrize("named", [("seen",), ()])
async def test_another_order_is_no_news_and_beside_unnamed_fields_of_others_one_request(
    bench: Connect, named: tuple[str, ...]
) -> None:
    async with bench() as b:
        status, tree = writer(b, *named), status_of("A", "n1", "n2")
        await status.write(b.owner.resource, b.owner.metadata, tree)
        path = f"{b.path(b.owner.resource, 'owner')}/status"
        b.admin.merge(path, {"status": {"seen": "theirs"}})
        b.writes()
        outcomes = []
        for _ in range(4):
            tree["conditions"].reverse()
            outcomes.append(await status.write(b.owner.resource, b.owner.metadata, tree))
        # A new order is one that the server keeps, so what was sent for it changed the object.
        assert (
            outcomes == [Outcome.UNCHANGED if named else Outcome.UPDATED] + [Outcome.UNCHANGED] * 3
        )
        assert b.writes() == ([] if named else [("patch", "widgets", 200)])
        assert b.get(b.owner.resource, "owner")["status"]["seen"] == "theirs"


async def test_a_restart_writes_no_status_that_is_there_already(bench: Connect) -> None:
    async with bench() as b:
        tree = status_of("A", "n2", "n1")
        await writer(b).write(b.owner.resource, b.owner.metadata, tree)
        path = f"{b.path(b.owner.resource, 'owner')}/status"
        b.admin.merge(path, {"status": {"seen": "theirs"}})
        b.writes()
        told = writer(b, "seen")
        for _ in range(2):
            outcome = await told.write(b.owner.resource, b.owner.metadata, tree)
            assert outcome is Outcome.UNCHANGED
        assert b.writes() == []
        untold = writer(b)
        for _ in range(2):
            outcome = await untold.write(b.owner.resource, b.owner.metadata, tree)
            assert outcome is Outcome.UNCHANGED
        assert b.writes() == [("patch", "widgets", 200)]


async def test_no_status_reaches_an_object_that_the_run_did_not_look_at(bench: Connect) -> None:
    async with bench() as b:
        status = writer(b)
        old = b.owner.metadata
        path = b.path(b.owner.resource, "owner")
        b.client.meanwhile = lambda: b.admin.delete(path)
        for _ in range(2):
            with pytest.raises(ConflictError, match=r"Widget .*/owner is gone"):
                await status.write(b.owner.resource, old, status_of("A"))
        assert await b.client.read(b.owner.resource, b.owner.key) is None
        new = b.make_owner("owner")
        with pytest.raises(ConflictError, match="is gone or was made anew"):
            await status.write(b.owner.resource, old, status_of("A"))
        assert "status" not in b.get(b.owner.resource, "owner")
        assert await status.write(b.owner.resource, new.metadata, status_of("A")) is Outcome.UPDATED


async def test_runs_that_see_the_same_write_one_status_and_move_no_time(bench: Connect) -> None:
    async with bench() as b:
        status, found = writer(b), list[Condition]()
        for minute in range(5):
            found = conditions.set_condition(
                found,
                "Ready",
                ConditionStatus.FALSE,
                reason="Loading",
                observed_generation=1,
                now=NOW + timedelta(minutes=minute),
            )
            tree = {"conditions": [condition.wire() for condition in found]}
            await status.write(b.owner.resource, b.owner.metadata, tree)
        assert b.writes() == [("patch", "widgets", 200)]
        (live,) = b.get(b.owner.resource, "owner")["status"]["conditions"]
        assert live["lastTransitionTime"] == "2026-01-02T00:00:00Z"


async def test_a_condition_of_ours_stands_beside_those_of_another_controller(
    bench: Connect,
) -> None:
    async with bench() as b:
        stored = await b.client.read(Namespace.resource, NamespacedName("", b.namespace))
        assert stored is not None
        (ours,) = status_of("A")["conditions"][:1]
        del ours["observedGeneration"], ours["message"]
        status = writer(b, "phase")
        for expected in (Outcome.UPDATED, Outcome.UNCHANGED):
            tree = {"conditions": [ours]}
            assert await status.write(Namespace.resource, stored.meta, tree) is expected
        live = b.admin.get(f"/api/v1/namespaces/{b.namespace}")["status"]
        assert live == {"phase": "Active", "conditions": [ours]}


async def test_a_kind_without_a_status_is_named(bench: Connect) -> None:
    async with bench() as b:
        applied = await b.applier.apply(CONFIG_MAP, b.config_map("a"), owner=b.owner)
        with pytest.raises(ConflictError, match="its kind has no status subresource"):
            await writer(b).write(CONFIG_MAP, applied.object.meta, {"phase": "Pending"})


async def test_a_status_does_not_follow_an_object_that_is_made_anew_on_its_way(
    bench: Connect,
) -> None:
    async with bench() as b:

        def made_anew() -> None:
            b.admin.delete(b.path(b.owner.resource, "owner"))
            b.make_owner("owner")

        b.client.meanwhile = made_anew
        with pytest.raises(ConflictError, match="has been modified"):
            await writer(b).write(b.owner.resource, b.owner.metadata, status_of("A"))
        assert "status" not in b.get(b.owner.resource, "owner")


async def test_a_write_of_somebody_else_leaves_the_status_to_the_next_run(bench: Connect) -> None:
    async with bench() as b:
        path = b.path(b.owner.resource, "owner")
        b.client.meanwhile = lambda: b.admin.merge(path, {"spec": {"size": 2}})
        status = writer(b)
        with pytest.raises(ConflictError, match="has been modified"):
            await status.write(b.owner.resource, b.owner.metadata, status_of("A"))
        outcome = await status.write(b.owner.resource, b.owner.metadata, status_of("A"))
        assert outcome is Outcome.UPDATED
        assert b.writes() == [("patch", "widgets", 409), ("patch", "widgets", 200)]
        assert b.get(b.owner.resource, "owner")["status"]["phase"] == "Pending"
