# SPDX-License-Identifier: Apache-2.0
"""Objects that go, or are made anew, while an apply is on its way to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.apply import Outcome
from flexinfer.errors import ConflictError, NotOursError
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from test.integration.apply.conftest import Connect

CONFIG_MAP = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")


async def test_what_is_deleted_while_the_apply_is_on_its_way_does_not_come_back(
    bench: Connect,
) -> None:
    async with bench() as b:
        await b.applier.apply(CONFIG_MAP, b.config_map("a"), owner=b.owner)
        path = b.path(CONFIG_MAP, "settings")
        b.client.meanwhile = lambda: b.admin.delete(path)
        changed = b.config_map("b")
        with pytest.raises(ConflictError):
            await b.applier.apply(CONFIG_MAP, changed, owner=b.owner)
        assert await b.client.read(CONFIG_MAP, b.key("settings")) is None
        again = await b.applier.apply(CONFIG_MAP, changed, owner=b.owner)
        assert again.outcome is Outcome.CREATED
        b.admin.delete(path)
        after = await b.applier.apply(CONFIG_MAP, changed, owner=b.owner)
        assert after.outcome is Outcome.CREATED
        assert after.object.meta.uid != again.object.meta.uid


async def test_what_is_made_anew_while_the_apply_is_on_its_way_is_not_written_to(
    bench: Connect,
) -> None:
    async with bench() as b:
        await b.applier.apply(CONFIG_MAP, b.config_map("a"), owner=b.owner)

        def made_anew() -> None:
            b.admin.delete(b.path(CONFIG_MAP, "settings"))
            b.admin.create(CONFIG_MAP.collection_path(b.namespace), b.config_map("theirs"))

        b.client.meanwhile = made_anew
        changed = b.config_map("b")
        with pytest.raises(ConflictError, match="settings was made anew"):
            await b.applier.apply(CONFIG_MAP, changed, owner=b.owner)
        with pytest.raises(NotOursError):
            await b.applier.apply(CONFIG_MAP, changed, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "theirs"}


async def test_what_goes_while_its_name_is_looked_at_is_created(bench: Connect) -> None:
    async with bench() as b:
        path = b.path(CONFIG_MAP, "settings")
        theirs = b.config_map("theirs")
        b.client.meanwhile = lambda: b.admin.create(CONFIG_MAP.collection_path(b.namespace), theirs)
        b.client.before_look = lambda: b.admin.delete(path)
        applied = await b.applier.apply(CONFIG_MAP, b.config_map("a"), owner=b.owner)
        assert applied.outcome is Outcome.CREATED
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "a"}
