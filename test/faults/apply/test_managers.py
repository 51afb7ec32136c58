# SPDX-License-Identifier: Apache-2.0
"""Who owns what: fields that were written by update, or under a former name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.apply import Applier, Outcome
from flexinfer.errors import ConflictError, NotFoundError, NotOursError
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from test.faults.apply.conftest import Bench, Connect

CONFIG_MAP = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")
# Whether it is there, of which a client with a cache asks nobody, and then all of it.
LOOKS = 2 * [("get", "configmaps", 200)]


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_c52_what_was_written_by_update_under_our_name_becomes_ours(
    bench: Connect, method: str
) -> None:
    async with bench() as b:
        path = b.path(CONFIG_MAP, "settings")
        b.admin.create(
            CONFIG_MAP.collection_path(b.namespace), b.owned(b.intent(CONFIG_MAP, "settings"))
        )
        old = b.owned(b.intent(CONFIG_MAP, "settings", data={"kept": "old", "removed": "x"}))
        b.wrote_as(b.manager, method, old, path)
        assert (b.manager, "Update") in b.managers(CONFIG_MAP, "settings")
        b.wrote_as(
            "somebody", "APPLY", b.intent(CONFIG_MAP, "settings", data={"theirs": "y"}), path
        )

        intent = b.intent(CONFIG_MAP, "settings", data={"kept": "new"})
        applied = await Applier(b.client, field_manager=b.manager).apply(
            CONFIG_MAP, intent, owner=b.owner
        )
        assert applied.outcome is Outcome.UPDATED
        assert b.get(CONFIG_MAP, "settings")["data"] == {"kept": "new", "theirs": "y"}
        managers = b.managers(CONFIG_MAP, "settings")
        assert (b.manager, "Apply") in managers
        assert (b.manager, "Update") not in managers
        assert ("somebody", "Apply") in managers
        update = [("patch", "configmaps", 200)]
        assert b.sent() == [*LOOKS, *update, *update]


async def test_c52_it_happens_once_and_costs_nothing_afterwards(bench: Connect) -> None:
    async with bench() as b:
        path = b.path(CONFIG_MAP, "settings")
        intent = b.intent(CONFIG_MAP, "settings", data={"key": "a"})
        applier = Applier(b.client, field_manager=b.manager)
        await applier.apply(CONFIG_MAP, intent, owner=b.owner)
        b.wrote_as(b.manager, "PATCH", {"data": {"added": "by the old version"}}, path)
        restarted = Applier(b.client, field_manager=b.manager)
        b.sent()
        assert (await restarted.apply(CONFIG_MAP, intent, owner=b.owner)).outcome == Outcome.UPDATED
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "a"}
        assert b.sent() == LOOKS + 2 * [("patch", "configmaps", 200)]
        again = await restarted.apply(CONFIG_MAP, intent, owner=b.owner)
        assert again.outcome is Outcome.UNCHANGED
        assert b.writes() == []
        third = Applier(b.client, field_manager=b.manager)
        b.sent()
        assert (await third.apply(CONFIG_MAP, intent, owner=b.owner)).outcome == Outcome.UNCHANGED
        assert b.sent() == [*LOOKS, ("patch", "configmaps", 200)]


def written_by_update(b: Bench) -> str:
    """Make a ConfigMap with a field that our name wrote by update; return its path."""
    path = b.path(CONFIG_MAP, "settings")
    old = b.owned(b.intent(CONFIG_MAP, "settings"))
    b.admin.create(CONFIG_MAP.collection_path(b.namespace), old)
    b.wrote_as(b.manager, "PUT", old | {"data": {"removed": "x"}}, path)
    return path


async def test_c52_a_writer_that_comes_between_is_not_overwritten(bench: Connect) -> None:
    async with bench() as b:
        path = written_by_update(b)
        late = {"data": {"late": "y"}}
        slow = b.slow(lambda: b.wrote_as("somebody", "PATCH", late, path))
        intent = b.intent(CONFIG_MAP, "settings", data={"key": "a"})
        applier = Applier(slow, field_manager=b.manager)
        with pytest.raises(ConflictError):
            await applier.apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"removed": "x", "late": "y"}
        await Applier(b.client, field_manager=b.manager).apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "a", "late": "y"}


async def test_c52_what_is_deleted_meanwhile_is_not_made_again(bench: Connect) -> None:
    async with bench() as b:
        path = written_by_update(b)
        slow = b.slow(lambda: b.admin.delete(path))
        intent = b.intent(CONFIG_MAP, "settings", data={"key": "a"})
        with pytest.raises(ConflictError, match="settings is gone; read it again"):
            await Applier(slow, field_manager=b.manager).apply(CONFIG_MAP, intent, owner=b.owner)
        with pytest.raises(NotFoundError):
            b.get(CONFIG_MAP, "settings")


async def test_c52_an_object_that_is_not_ours_keeps_its_managers(bench: Connect) -> None:
    async with bench() as b:
        path = b.path(CONFIG_MAP, "settings")
        foreign = b.intent(CONFIG_MAP, "settings", data={"key": "theirs"})
        b.admin.create(CONFIG_MAP.collection_path(b.namespace), foreign)
        b.wrote_as(b.manager, "PUT", foreign | {"data": {"key": "also theirs"}}, path)
        assert (b.manager, "Update") in b.managers(CONFIG_MAP, "settings")
        before = b.get(CONFIG_MAP, "settings")
        applier = Applier(b.client, field_manager=b.manager, former_managers=["envtest"])
        with pytest.raises(NotOursError, match="is left untouched"):
            await applier.apply(CONFIG_MAP, foreign, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings") == before
        assert b.writes() == []


@pytest.mark.parametrize("method", ["APPLY", "PUT"])
async def test_c53_a_field_of_a_former_manager_goes_when_the_intent_is_without_it(
    bench: Connect, method: str
) -> None:
    async with bench() as b:
        path = b.path(CONFIG_MAP, "settings")
        old = b.owned(b.intent(CONFIG_MAP, "settings", data={"kept": "a", "removed": "x"}))
        b.admin.create(
            CONFIG_MAP.collection_path(b.namespace), b.owned(b.intent(CONFIG_MAP, "settings"))
        )
        b.wrote_as("ctrl-v1", method, old, path)
        intent = b.intent(CONFIG_MAP, "settings", data={"kept": "a"})

        unaware = Applier(b.client, field_manager="ctrl-v2")
        await unaware.apply(CONFIG_MAP, intent, owner=b.owner)
        assert "removed" in b.get(CONFIG_MAP, "settings")["data"]

        aware = Applier(b.client, field_manager="ctrl-v2", former_managers=["ctrl-v0", "ctrl-v1"])
        await aware.apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"kept": "a"}
        managers = dict(b.managers(CONFIG_MAP, "settings"))
        assert managers["ctrl-v2"] == "Apply"
        assert "ctrl-v1" not in managers
