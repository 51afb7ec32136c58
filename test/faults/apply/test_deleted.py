# SPDX-License-Identifier: Apache-2.0
"""What is deleted while a write is on its way is not made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.apply import Applier, Outcome, StatusWriter
from flexinfer.errors import ConflictError
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from test.faults.apply.conftest import Connect

CONFIG_MAP = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")


async def test_c57_a_child_that_is_deleted_meanwhile_is_not_made_again(bench: Connect) -> None:
    async with bench() as b:
        applier = Applier(b.client, field_manager=b.manager)
        path = b.path(CONFIG_MAP, "settings")
        intent = b.intent(CONFIG_MAP, "settings", data={"key": "a"})
        await applier.apply(CONFIG_MAP, intent, owner=b.owner)
        b.sent()
        b.client.meanwhile = lambda: b.admin.delete(path)
        changed = b.intent(CONFIG_MAP, "settings", data={"key": "b"})
        with pytest.raises(ConflictError):
            await applier.apply(CONFIG_MAP, changed, owner=b.owner)
        items = b.admin.get(CONFIG_MAP.collection_path(b.namespace))["items"]
        assert "settings" not in {item["metadata"]["name"] for item in items}
        assert b.writes() == [("patch", "configmaps", 409)]
        # What is still wanted is made by the next run, which sees that there is none.
        assert (await applier.apply(CONFIG_MAP, changed, owner=b.owner)).outcome == Outcome.CREATED


async def test_c57_a_status_does_not_bring_back_its_deleted_object(bench: Connect) -> None:
    async with bench() as b:
        writer = StatusWriter(b.client, field_manager=b.manager)
        b.client.meanwhile = lambda: b.admin.delete(b.path(b.owner.resource, "owner"))
        with pytest.raises(ConflictError):
            await writer.write(b.owner.resource, b.owner.metadata, {"phase": "Ready"})
        assert b.admin.get(b.owner.resource.collection_path(b.namespace))["items"] == []
        assert len(b.writes()) == 1
        with pytest.raises(ConflictError, match="is gone or was made anew"):
            await writer.write(b.owner.resource, b.owner.metadata, {"phase": "Ready"})
        assert b.writes() == []
