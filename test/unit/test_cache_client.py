# SPDX-License-Identifier: Apache-2.0
"""The cache client: reads come from informers, writes go through and are read at once."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from flexinfer.cache.client import CacheClient
from flexinfer.cache.informer import InformerOptions
from flexinfer.cache.informers import Informers
from flexinfer.cache.timing import Timing
from flexinfer.client.direct import DirectClient
from flexinfer.client.protocol import Patch
from flexinfer.envtest.clock import ManualClock
from flexinfer.envtest.simulated import SimulatedApi
from flexinfer.errors import (
    AlreadyExistsError,
    CacheNotSyncedError,
    ConfigurationError,
    ConflictError,
    DecodeError,
    NotWatchedError,
)
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource
from flexinfer.meta.selector import Selector
from flexinfer.metrics import Registry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from flexinfer.client.protocol import Client
    from flexinfer.client.transport import Transport
    from flexinfer.meta.envelope import Tree

WIDGETS = Resource(GroupVersionKind("test.io", "v1", "Widget"), "widgets")
OTHERS = Resource(GroupVersionKind("test.io", "v1", "Other"), "others", namespaced=False)
KEY = NamespacedName("default", "a")


class WidgetSpec(Model):
    size: int = 0


class Widget(Object):
    resource: ClassVar[Resource] = WIDGETS
    spec: WidgetSpec = WidgetSpec()


class Other(Object):
    resource: ClassVar[Resource] = OTHERS


class Rig:
    """A cache client whose reads and writes meet one simulated kind."""

    def __init__(self, *, labels: str = "") -> None:
        self.api = SimulatedApi(WIDGETS)
        clock = ManualClock()
        timing = Timing(clock=clock, sleep=clock.sleep, random=lambda: 0.0)
        options = InformerOptions(timing=timing, registry=Registry())
        self.informers = Informers(self.api, options=options)
        self.informer = self.informers.informer(
            WIDGETS, labels=Selector.parse(labels) if labels else None
        )
        self.informer.add_index("app", lambda item: [item.meta.labels.get("app", "none")])
        # The simulated server has the transport's shape, not its type.
        self.direct = DirectClient(cast("Transport", self.api))
        self.client = CacheClient(self.informers, self.direct)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            await group.start(self.informers.run)
            await self.informers.wait_synced(5)
            await self.until(lambda: self.api.watches)
            yield
            group.cancel_scope.cancel()

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(5):
            while not condition():
                await checkpoint()

    async def caught_up(self) -> None:
        self.api.is_holding = False
        self.api.bookmark()
        await self.until(lambda: len(self.informer._own) == 0)

    def requests(self, *verbs: str) -> int:
        return sum(1 for asked in self.api.asked if asked.verb in verbs)

    async def names(self) -> list[str]:
        return sorted(widget.metadata.name for widget in await self.client.list(Widget))


def intent(name: str = "a", *, uid: str = "", size: int = 0, **metadata: object) -> Tree:
    head: Tree = {"name": name, "namespace": "default", "labels": {}, **metadata}
    return {"metadata": head | ({"uid": uid} if uid else {}), "spec": {"size": size}}


def test_it_is_a_client() -> None:
    client: Client = Rig().client
    assert isinstance(client, CacheClient)


async def test_reads_come_from_the_cache() -> None:
    rig = Rig()
    rig.api.put("a", labels={"app": "x"}, size=1)
    rig.api.put("b", labels={"app": "y"}, size=2)
    async with rig.running():
        asked = len(rig.api.asked)
        widget = await rig.client.get(Widget, KEY)
        assert widget is not None
        assert widget.spec.size == 1
        assert await rig.client.get(Widget, KEY) is widget
        assert await rig.client.list(
            Widget, namespace="default", labels=Selector.parse("app=x")
        ) == [widget]
        assert await rig.client.by_index(Widget, "app", "x") == [widget]
        assert await rig.client.get(Widget, NamespacedName("default", "none")) is None
        stored = await rig.client.read(WIDGETS, KEY)
        assert stored is not None
        assert stored.tree(WIDGETS)["spec"] == {"size": 1}
        assert len(rig.api.asked) == asked


async def test_c39_what_a_reader_gets_is_frozen_and_the_store_stays_as_it_is() -> None:
    rig = Rig()
    rig.api.put("a", labels={"app": "x"}, size=1)
    async with rig.running():
        widget = await rig.client.get(Widget, KEY)
        assert widget is not None
        with pytest.raises(ValueError, match="frozen"):
            widget.spec.size = 9  # type: ignore[misc]  # the point of the test
        with pytest.raises(TypeError, match="frozen"):
            widget.metadata.labels["app"] = "y"
        again = await rig.client.get(Widget, KEY)
        assert again is not None
        assert (again.spec.size, again.metadata.labels) == (1, {"app": "x"})
        assert len(await rig.client.by_index(Widget, "app", "x")) == 1


async def test_c40_an_object_that_does_not_fit_names_its_field_and_can_be_read_raw() -> None:
    rig = Rig()
    rig.api.put("a", size="large", unknown={"kept": True})
    async with rig.running():
        with pytest.raises(DecodeError, match=r"Widget default/a: spec\.size") as caught:
            await rig.client.get(Widget, KEY)
        assert caught.value.field == "spec.size"
        with pytest.raises(DecodeError, match=r"spec\.size"):
            await rig.client.list(Widget)
        stored = await rig.client.read(WIDGETS, KEY)
        assert stored is not None
        assert stored.tree(WIDGETS)["spec"]["unknown"] == {"kept": True}


async def test_a_kind_that_nothing_watches_is_refused_by_name() -> None:
    rig = Rig()
    async with rig.running():
        with pytest.raises(NotWatchedError, match=r"nothing keeps Other \(others\.test\.io\)"):
            await rig.client.get(Other, NamespacedName("", "a"))
        with pytest.raises(NotWatchedError, match=r"owns\(\) or watches\(\)"):
            await rig.client.list(Other)
        with pytest.raises(ConfigurationError, match="no index 'none'"):
            await rig.client.by_index(Widget, "none", "x")


async def test_a_key_of_the_wrong_scope_is_refused() -> None:
    rig = Rig()
    async with rig.running():
        with pytest.raises(ConfigurationError, match="Widget needs a namespace"):
            await rig.client.get(Widget, NamespacedName("", "a"))
        with pytest.raises(ConfigurationError, match="Other is cluster-scoped"):
            await rig.client.read(OTHERS, KEY)


async def test_c32_a_read_before_the_first_list_says_why_it_is_not_there() -> None:
    rig = Rig()
    with pytest.raises(CacheNotSyncedError, match=r"widgets\.test\.io: not started"):
        await rig.client.get(Widget, KEY)


async def test_c35_a_reconciler_that_creates_when_it_sees_none_creates_one() -> None:
    rig = Rig()
    async with rig.running():
        rig.api.is_holding = True
        for _ in range(10):
            if not await rig.client.list(Widget):
                child = intent(generateName="child-", name="")
                await rig.client.create(WIDGETS, child, field_manager="test")
        assert len(rig.api.objects) == 1
        await rig.caught_up()
        assert len(await rig.client.list(Widget)) == 1


async def test_c35_every_kind_of_write_is_read_at_once_and_then_from_the_watch() -> None:
    rig = Rig()
    rig.api.put("a", size=1)
    async with rig.running():
        rig.api.is_holding = True
        await rig.client.apply(WIDGETS, intent(size=2), field_manager="test")
        assert (await read(rig)).spec.size == 2
        merge: Tree = {"spec": {"size": 3}}
        await rig.client.patch(WIDGETS, KEY, merge, content_type=Patch.MERGE, field_manager="test")
        assert (await read(rig)).spec.size == 3
        await rig.client.apply(WIDGETS, intent(size=4), field_manager="test", subresource="status")
        written = await read(rig)
        assert written.spec.size == 4
        with pytest.raises(AlreadyExistsError):
            await rig.client.create(WIDGETS, intent(), field_manager="test")
        await rig.caught_up()
        assert await read(rig) is written


async def read(rig: Rig) -> Widget:
    widget = await rig.client.get(Widget, KEY)
    assert widget is not None
    return widget


async def test_the_answer_of_another_subresource_is_not_taken_for_the_object() -> None:
    rig = Rig()
    rig.api.put("a", size=1)
    async with rig.running():
        rig.api.is_holding = True
        await rig.client.apply(WIDGETS, intent(size=9), field_manager="test", subresource="scale")
        assert (await read(rig)).spec.size == 1


@pytest.mark.parametrize("uid", ["", "uid-1"])
async def test_c35_a_deleted_object_reads_as_gone_at_once(uid: str) -> None:
    rig = Rig()
    rig.api.put("a")
    rig.api.put("b")
    async with rig.running():
        rig.api.is_holding = True
        await rig.client.delete(WIDGETS, KEY, uid=uid)
        assert await rig.client.get(Widget, KEY) is None
        assert await rig.names() == ["b"]
        assert len(await rig.client.by_index(Widget, "app", "none")) == 1
        await rig.client.delete(WIDGETS, KEY)
        rig.api.is_holding = False
        rig.api.send()
        await rig.until(lambda: len(rig.informer._own) == 0)
        assert await rig.names() == ["b"]


async def test_c35_an_object_with_a_finalizer_reads_as_terminating_at_once() -> None:
    rig = Rig()
    async with rig.running():
        await rig.client.create(WIDGETS, intent(finalizers=["test.io/x"]), field_manager="test")
        rig.api.is_holding = True
        await rig.client.delete(WIDGETS, KEY)
        assert (await read(rig)).metadata.deletion_timestamp is not None
        patch: Tree = {"metadata": {"finalizers": []}}
        await rig.client.patch(WIDGETS, KEY, patch, content_type=Patch.MERGE, field_manager="test")
        await rig.caught_up()
        assert await rig.client.get(Widget, KEY) is None


async def test_deleting_another_object_than_asked_for_is_a_conflict_and_hides_nothing() -> None:
    rig = Rig()
    rig.api.put("a")
    async with rig.running():
        with pytest.raises(ConflictError):
            await rig.client.delete(WIDGETS, KEY, uid="uid-of-another")
        assert await rig.client.get(Widget, KEY) is not None


async def test_deleting_by_name_hides_what_was_shown_and_not_its_successor() -> None:
    rig = Rig()
    rig.api.put("a")
    async with rig.running():
        rig.api.is_holding = True
        rig.api.delete("a")
        await rig.client.delete(WIDGETS, KEY)
        assert await rig.client.get(Widget, KEY) is None
        rig.api.put("a")
        rig.api.is_holding = False
        rig.api.send()
        await rig.until(lambda: rig.informer.get(KEY))
        assert (await read(rig)).metadata.uid == "uid-2"


async def test_a_live_read_passes_the_cache_and_later_reads_are_not_older() -> None:
    rig = Rig()
    rig.api.put("a", size=1)
    async with rig.running():
        rig.api.is_holding = True
        rig.api.put("a", size=2)
        assert (await read(rig)).spec.size == 1
        live = await rig.client.live_read(WIDGETS, KEY)
        assert live is not None
        assert (await read(rig)).spec.size == 2
        assert rig.requests("GET") == 1
        assert await rig.client.live_read(WIDGETS, NamespacedName("default", "none")) is None


async def test_writes_to_a_kind_without_informer_just_go_through() -> None:
    rig = Rig()
    client = CacheClient(Informers(rig.api), rig.direct)
    stored = await client.create(WIDGETS, intent(size=1), field_manager="test")
    assert stored.meta.key == KEY
    assert await client.live_read(WIDGETS, KEY) is not None
    await client.delete(WIDGETS, KEY)
    assert rig.api.objects == {}


async def test_an_own_write_outside_a_selector_is_not_listed() -> None:
    rig = Rig(labels="app=x")
    async with rig.running():
        rig.api.is_holding = True
        await rig.client.apply(WIDGETS, intent(labels={"app": "x"}), field_manager="test")
        await rig.client.apply(WIDGETS, intent("b", labels={"app": "y"}), field_manager="test")
        assert await rig.names() == ["a"]
        await rig.client.apply(WIDGETS, intent(labels={"app": "y"}), field_manager="test")
        assert await rig.names() == []
        await rig.caught_up()
        assert await rig.names() == []


async def test_c29_the_selector_is_left_by_our_write_and_entered_by_anothers() -> None:
    rig = Rig(labels="app=x")
    rig.api.put("a", labels={"app": "x"})
    async with rig.running():
        for _ in range(20):
            rig.api.is_holding = True
            await rig.client.apply(WIDGETS, intent(labels={"app": "y"}), field_manager="test")
            assert await rig.names() == []
            rig.api.put("a", labels={"app": "x"})
            rig.api.is_holding = False
            rig.api.send()
            await rig.until(lambda: rig.informer.get(KEY))
        assert len(rig.informer._own) == 0


async def test_c37_objects_that_come_and_go_leave_nothing_behind() -> None:
    rig = Rig()
    async with rig.running():
        for number in range(300):
            name = f"w{number}"
            key = NamespacedName("default", name)
            await rig.client.create(WIDGETS, intent(name), field_manager="test")
            await rig.client.get(Widget, key)
            await rig.client.delete(WIDGETS, key)
        await rig.caught_up()
        store = rig.informer._store
        assert (len(store), len(store._memo), len(rig.informer._own._due)) == (0, 0, 0)
        assert store._indexes["app"]._keys == {}
