# SPDX-License-Identifier: Apache-2.0
"""Watches: what they ask for, what is heard of them, and how they go on after an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.errors import DeadlineError, ForbiddenError
from flexinfer.event import DeleteEvent

if TYPE_CHECKING:
    from test.unit.reflector.conftest import Rig


async def test_the_watch_asks_for_bookmarks_from_where_the_list_ended(new_rig: type[Rig]) -> None:
    rig = new_rig(labels="app=x")
    rig.api.put("a", labels={"app": "x"})
    async with rig.running():
        await rig.watching()
    assert rig.api.asked[-1].params == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
        "resourceVersion": "101",
        "labelSelector": "app=x",
    }
    assert rig.api.asked[0].params["labelSelector"] == "app=x"


async def test_events_reach_store_and_handlers_in_order(rig: Rig) -> None:
    rig.api.put("a")
    async with rig.running():
        await rig.watching()
        rig.api.put("a", size=2)
        rig.api.put("b")
        rig.api.delete("a")
        await rig.until(lambda: len(rig.events) == 4)
    assert rig.heard() == ["=a", "~a", "+b", "-a"]
    assert rig.content() == rig.truth()
    last = rig.events[-1]
    assert isinstance(last, DeleteEvent)
    assert last.object.meta.resource_version == "104"
    assert rig.metric("events_total", type="MODIFIED") == 1
    assert rig.metric("objects") == 1


async def test_a_regular_end_is_watched_on_at_once_without_a_list(rig: Rig) -> None:
    async with rig.running():
        await rig.watching()
        rig.api.put("a")
        await rig.equal()
        rig.api.close()
        await rig.watching(2)
    assert rig.count("LIST") == 1
    assert rig.api.asked[-1].params["resourceVersion"] == "101"
    assert rig.clock.now == 1000.0
    assert rig.metric("watch_restarts_total", reason="closed") == 1


async def test_c17_instant_closes_do_not_become_a_storm(rig: Rig) -> None:
    rig.api.closes_at_once = True
    async with rig.running():
        await rig.until(lambda: rig.clock.now >= 1030.0)
        opened = rig.count("WATCH")
        assert rig.informer.health() is None
        await rig.until(lambda: rig.clock.now >= 1130.0)
        assert "stale" in (rig.informer.health() or "")
        rig.api.closes_at_once = False
        await rig.watching()
        rig.api.put("a")
        await rig.equal()
        assert rig.informer.health() is None
    assert opened <= 15
    assert rig.count("LIST") == 1


async def test_c22_a_resumed_watch_replays_nothing(rig: Rig) -> None:
    for number in range(600):
        rig.api.put(f"w{number}")
    async with rig.running():
        await rig.watching()
        rig.events.clear()
        for opened in range(20):
            rig.api.cut()
            await rig.watching(opened + 2)
    assert rig.events == []
    assert rig.count("LIST") == 2
    watches = [asked.params for asked in rig.api.asked if asked.verb == "WATCH"]
    assert {params["resourceVersion"] for params in watches} == {"700"}
    assert all("sendInitialEvents" not in params for params in watches)


async def test_c32_a_right_that_is_revoked_while_running_shows_at_once(rig: Rig) -> None:
    async with rig.running():
        await rig.watching()
        rig.api.faults.extend([ForbiddenError("no")] * 2)
        rig.api.cut()
        await rig.until(lambda: "forbidden: cannot watch" in (rig.informer.health() or ""))
        assert rig.informer.has_synced
        await rig.watching(4)
        assert rig.informer.health() is None


async def test_c33_a_bookmark_moves_the_position_and_reaches_no_handler(rig: Rig) -> None:
    rig.api.put("a")
    async with rig.running():
        await rig.watching()
        rig.api.revision = 900
        rig.api.bookmark()
        await rig.until(lambda: rig.metric("events_total", type="BOOKMARK") == 1)
        rig.api.compact()
        rig.api.cut()
        await rig.watching(2)
    assert rig.api.asked[-1].params["resourceVersion"] == "900"
    assert rig.count("LIST") == 1
    assert rig.heard() == ["=a"]


async def test_c15_silence_is_borne_for_longer_while_no_bookmark_ever_came(rig: Rig) -> None:
    silent = DeadlineError("silent")
    async with rig.running():
        for number, expected in enumerate((90.0, 180.0, 305.0), start=1):
            await rig.watching(number)
            (watch,) = rig.api.watches
            assert watch.idle_timeout == expected
            rig.api.cut(silent)
        assert rig.count("LIST") == number - 1, "one silence is no reason to list, two are"
        await rig.watching(4)
        rig.api.bookmark()
        (watch,) = rig.api.watches
        await rig.until(lambda: watch.idle_timeout == 90.0)
        rig.api.cut(silent)
        await rig.watching(5)
        assert rig.api.watches[0].idle_timeout == 90.0
    assert rig.count("LIST") == 2


async def test_c29_objects_enter_and_leave_a_selector(new_rig: type[Rig]) -> None:
    rig = new_rig(labels="app=x")
    async with rig.running():
        await rig.watching()
        for _ in range(100):
            rig.api.put("a", labels={"app": "x"})
            rig.api.put("a", labels={"app": "y"})
        await rig.until(lambda: len(rig.events) == 200)
        rig.api.cut()
        await rig.watching(2)
    assert rig.heard() == ["+a", "-a"] * 100
    assert rig.content() == {}
    assert rig.api.asked[-1].params["resourceVersion"] == str(rig.api.revision)


async def test_c22_a_watch_that_is_cut_again_and_again_is_resumed_soon_each_time(rig: Rig) -> None:
    async with rig.running():
        for number in range(1, 6):
            await rig.watching(number)
            rig.api.put("a", round=number)
            await rig.until(lambda: len(rig.events) == number)  # noqa: B023
            before = rig.clock.now
            rig.api.cut()
            await rig.until(lambda: not rig.api.watches)
            await rig.watching(number + 1)
            assert rig.clock.now - before == pytest.approx(0.8)
    assert rig.count("LIST") == 1
