# SPDX-License-Identifier: Apache-2.0
"""Fields of former managers, and of updates under our name, are taken over once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.apply import Applier, Outcome
from flexinfer.errors import ConflictError
from flexinfer.kinds.service import Service
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from test.integration.apply.conftest import Connect

MANAGER = "test-controller"
CONFIG_MAP = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")


@pytest.mark.parametrize(
    ("manager", "is_owner"), [(MANAGER, False), (MANAGER, True), ("earlier", True)]
)
async def test_what_was_written_by_updates_before_is_taken_over_and_cleared_away(
    bench: Connect,
    manager: str,
    is_owner: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    async with bench() as b:
        intent = b.service()
        before = b.service(9000, sessionAffinity="ClientIP")
        before["spec"]["ports"].append({"name": "old", "port": 9001})
        before["metadata"]["ownerReferences"] = [b.reference()] if is_owner else []
        b.create_as(manager, Service.resource, before)
        b.own(Service.resource, "web")
        b.note(Service.resource, "web")
        applied = await b.applier.apply(Service.resource, intent, owner=b.owner)
        assert applied.outcome is Outcome.UPDATED
        live = b.get(Service.resource, "web")
        assert [port["port"] for port in live["spec"]["ports"]] == [80]
        assert live["spec"]["sessionAffinity"] == "None"
        assert live["metadata"]["annotations"]["note"] == "theirs"
        done = ("patch", "services", 200)
        assert b.writes() == [done, done]
        for applier in (b.applier, b.new_applier()):
            again = await applier.apply(Service.resource, intent, owner=b.owner)
            assert again.outcome is Outcome.UNCHANGED
        assert b.writes() == [done]


async def test_what_a_former_manager_applied_goes_when_nobody_asks_for_it(bench: Connect) -> None:
    async with bench() as b:
        former = Applier(b.client, field_manager="former")
        intent = b.config_map("a")
        more = intent | {"data": {"key": "a", "old": "b"}}
        await former.apply(CONFIG_MAP, more, owner=b.owner)
        await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "a", "old": "b"}
        heir = Applier(b.client, field_manager=b.manager, former_managers=["former"])
        await heir.apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "a"}


async def test_what_changes_while_it_is_taken_over_is_looked_at_again(bench: Connect) -> None:
    async with bench() as b:
        intent = b.config_map("a")
        b.create_as(MANAGER, CONFIG_MAP, intent | {"data": {"key": "a", "old": "b"}})
        b.own(CONFIG_MAP, "settings")
        b.client.meanwhile = lambda: b.note(CONFIG_MAP, "settings")
        with pytest.raises(ConflictError, match="has been modified"):
            await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        await b.applier.apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "a"}
