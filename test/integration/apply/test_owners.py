# SPDX-License-Identifier: Apache-2.0
"""Whose an object is: ours, somebody else's, or an earlier owner's of the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.apply import Outcome
from flexinfer.errors import ConfigurationError, ConflictError, NotOursError
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flexinfer.meta.envelope import Tree
    from test.integration.apply.conftest import Bench, Connect

CONFIG_MAP = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")


@pytest.mark.parametrize("controller", [None, "other"])
async def test_an_object_that_is_not_ours_is_left_untouched_and_named(
    bench: Connect, controller: str | None
) -> None:
    async with bench() as b:
        theirs = b.config_map("theirs")
        words = "it exists already and has no controller"
        if controller is not None:
            words = "it is controlled by Widget other"
            other = b.make_owner("other")
            theirs["metadata"]["ownerReferences"] = [
                b.reference() | {"name": "other", "uid": other.metadata.uid}
            ]
        b.admin.create(CONFIG_MAP.collection_path(b.namespace), theirs)
        ours = b.config_map("ours")
        with pytest.raises(NotOursError, match=f"ConfigMap {b.namespace}/settings .*{words}"):
            await b.applier.apply(CONFIG_MAP, ours, owner=b.owner)
        assert b.writes() == []
        assert b.get(CONFIG_MAP, "settings")["data"] == theirs["data"]


async def test_an_object_that_appears_just_before_the_first_apply_is_left_untouched(
    bench: Connect,
) -> None:
    async with bench() as b:
        theirs = b.config_map("theirs")
        b.client.meanwhile = lambda: b.admin.create(CONFIG_MAP.collection_path(b.namespace), theirs)
        with pytest.raises(NotOursError, match="it exists already and has no controller"):
            await b.applier.apply(CONFIG_MAP, b.config_map("ours"), owner=b.owner)
        assert b.writes() == [("patch", "configmaps", 409)]
        found = b.get(CONFIG_MAP, "settings")
        assert found["data"] == theirs["data"]
        assert "ownerReferences" not in found["metadata"]


async def test_an_object_of_ours_that_appears_just_before_the_first_apply_is_updated(
    bench: Connect,
) -> None:
    async with bench() as b:
        early = b.config_map("early")
        early["metadata"]["ownerReferences"] = [b.reference()]
        b.client.meanwhile = lambda: b.admin.create(CONFIG_MAP.collection_path(b.namespace), early)
        applied = await b.applier.apply(CONFIG_MAP, b.config_map("ours"), owner=b.owner)
        assert applied.outcome is Outcome.UPDATED
        # Refused, then the fields of who created it taken over, then applied.
        assert [code for _, _, code in b.writes()] == [409, 200, 200]
        assert b.get(CONFIG_MAP, "settings")["data"] == b.config_map("ours")["data"]


def leave_behind(b: Bench, *, finalizers: Sequence[str] = ()) -> Tree:
    """Make a child of an earlier Widget of the owner's name, which nobody collects.

    A version that is not served keeps the garbage collector from it, as a bad moment would.
    """
    left = b.config_map("before")
    left["metadata"] |= {
        "finalizers": list(finalizers),
        "ownerReferences": [
            b.reference() | {"apiVersion": "apply.example.com/v0", "uid": "of-the-earlier-one"}
        ],
    }
    return b.admin.create(CONFIG_MAP.collection_path(b.namespace), left)


async def test_what_an_earlier_owner_of_the_name_left_behind_makes_way(bench: Connect) -> None:
    async with bench() as b:
        left = leave_behind(b)
        applied = await b.applier.apply(CONFIG_MAP, b.config_map("ours"), owner=b.owner)
        assert applied.outcome is Outcome.CREATED
        assert applied.object.meta.uid != left["metadata"]["uid"]
        assert b.writes() == [("delete", "configmaps", 200), ("patch", "configmaps", 201)]


async def test_what_is_left_behind_with_a_finalizer_is_waited_for_and_named(
    bench: Connect,
) -> None:
    async with bench() as b:
        leave_behind(b, finalizers=["example.com/stay"])
        ours = b.config_map("ours")
        words = f"ConfigMap {b.namespace}/settings is being deleted: an earlier Widget owner left"
        for writes in ([("delete", "configmaps", 200)], []):
            with pytest.raises(NotOursError, match=words):
                await b.applier.apply(CONFIG_MAP, ours, owner=b.owner)
            assert b.writes() == writes
        b.admin.merge(b.path(CONFIG_MAP, "settings"), {"metadata": {"finalizers": None}})
        applied = await b.applier.apply(CONFIG_MAP, ours, owner=b.owner)
        assert applied.outcome is Outcome.CREATED


async def test_the_child_of_a_successor_is_not_taken_for_left_behind(bench: Connect) -> None:
    async with bench() as b:
        earlier = b.owner
        b.admin.delete(b.path(b.owner.resource, "owner"))
        b.owner = b.make_owner("owner")
        ours = b.config_map("ours")
        await b.applier.apply(CONFIG_MAP, ours, owner=b.owner)
        b.writes()
        with pytest.raises(ConflictError, match="made anew"):
            await b.new_applier().apply(CONFIG_MAP, ours, owner=earlier)
        assert b.writes() == []


async def test_a_removed_owner_reference_is_put_back(bench: Connect) -> None:
    async with bench() as b:
        intent = b.config_map("a")
        await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        path = b.path(CONFIG_MAP, "settings")
        b.admin.merge(path, {"metadata": {"ownerReferences": []}})
        again = await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        assert again.outcome is Outcome.UPDATED
        assert again.object.meta.controller is not None


async def test_what_an_earlier_owner_of_the_name_left_behind_is_not_taken_over(
    bench: Connect,
) -> None:
    async with bench() as b:
        intent = b.config_map("a")
        await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        b.admin.merge(b.path(CONFIG_MAP, "settings"), {"metadata": {"ownerReferences": []}})
        b.admin.delete(b.path(b.owner.resource, "owner"))
        b.writes()
        with pytest.raises(NotOursError, match="it exists already and has no controller"):
            await b.applier.apply(CONFIG_MAP, intent, owner=b.make_owner("owner"))
        assert b.writes() == []


async def test_an_object_without_owner_is_ours_until_a_controller_has_it(bench: Connect) -> None:
    async with bench() as b:
        intent = b.config_map("a")
        first = await b.applier.apply(CONFIG_MAP, intent, owner=None)
        assert first.object.meta.owner_references == ()
        b.admin.merge(
            b.path(CONFIG_MAP, "settings"),
            {
                "metadata": {
                    "ownerReferences": [
                        {
                            "apiVersion": "apply.example.com/v1",
                            "kind": "Widget",
                            "name": "owner",
                            "uid": b.owner.metadata.uid,
                            "controller": True,
                        }
                    ]
                }
            },
        )
        with pytest.raises(NotOursError, match="controlled by Widget owner"):
            await b.applier.apply(CONFIG_MAP, intent, owner=None)


async def test_an_owner_elsewhere_is_refused_without_a_request(bench: Connect) -> None:
    async with bench() as b:
        with pytest.raises(ConfigurationError, match="cannot own default/settings"):
            await b.applier.apply(CONFIG_MAP, b.config_map("a", namespace="default"), owner=b.owner)
        assert b.writes() == []
