# SPDX-License-Identifier: Apache-2.0
"""Lists in pages, streams that are resumed, and what happened in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import Forward
from flexinfer.envtest.script import Hang, Reset, status_answer
from flexinfer.event import CreateEvent, DeleteEvent, UpdateEvent
from flexinfer.meta.selector import Selector
from hack.faultcases import SCALE, Case, bounded

if TYPE_CHECKING:
    from flexinfer.envtest.script import Rupture
    from flexinfer.meta.envelope import StoredObject, Tree

WATCH = {"watch": "true"}
LIST = {"watch": None}


async def cuts(case: Case, *, objects: int, ending: Rupture) -> None:
    names = [f"a{n}" for n in range(objects)]
    await case.write(names)
    async with case.watching() as watched:
        assert len(watched.heard) == objects
        watched.heard.clear()
        for number in range(20):
            await eventually(watched.is_watching)
            assert case.proxy.strike(ending, query=WATCH) == 1
            await case.write([names[0]], round=str(number))
            await eventually(lambda: watched.data(names[0]) == {"round": str(number)}, within=30)  # noqa: B023
        assert watched.heard.names() == [names[0]] * 20
        watches = watched.traffic.watches()
        assert all("sendInitialEvents" not in e.request.query for e in watches)
        assert all(e.request.query["resourceVersion"] not in {"", "0"} for e in watches)
        assert len(watched.traffic.lists()) == 0
        bounded(watched.traffic, total=40, per_second=40)


async def test_c22_a_resumed_watch_tells_only_what_is_new(case: Case) -> None:
    await cuts(case, objects=int(5000 * SCALE), ending=Reset())


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_c22_at_full_count(case: Case) -> None:
    await cuts(case, objects=5000, ending=Reset())


def explicit_end(page: Tree) -> Tree:
    """The last page, as servers write it that name every field."""
    metadata = page["metadata"]
    return {**page, "metadata": {"continue": "", "remainingItemCount": None, **metadata}}


async def test_c23_pages_are_followed_to_the_end_whatever_that_looks_like(case: Case) -> None:
    await case.write([f"a{n}" for n in range(1501)])
    case.proxy.script("GET", case.path(), Forward(body=explicit_end), query=LIST)
    async with case.watching() as watched:
        assert len(watched.informer) == len(watched.heard) == 1501
        pages = case.proxy.traffic.lists(case.path())
        assert [e.request.query.get("limit") for e in pages] == ["500"] * 4
        case.proxy.heal()
        # The third page has expired: everything once more, and nothing twice to the handlers.
        gone = status_answer(410, "Expired", "The provided continue parameter is too old")
        expired = status_answer(410, "Expired", "too old resource version")
        case.proxy.script("GET", case.path(), Forward(), Forward(), gone, Forward(), query=LIST)
        case.proxy.script("GET", case.path(), expired, Forward(), query=WATCH)
        case.proxy.strike(Reset(), query=WATCH)
        await eventually(lambda: watched.metric("relists_total", reason="expired") == 1, within=60)
        await eventually(watched.is_watching)
        assert len(watched.informer) == len(watched.heard) == 1501
        assert len(watched.traffic.lists()) == 3 + 4
        bounded(watched.traffic, total=12, per_second=12)


async def test_c28_what_was_deleted_while_nobody_listened_is_told(case: Case) -> None:
    names = [f"child-{n}" for n in range(100)]
    await case.write(names, labels={"owner": "a"})
    async with case.watching() as watched:
        watched.informer.add_index("owner", by_owner)
        watched.heard.clear()
        case.proxy.script("*", "*", Hang())
        case.proxy.strike(Hang())
        await case.delete(names[:40])
        case.plane.compact()
        case.plane.restart("kube-apiserver")
        case.proxy.heal()
        case.proxy.strike(Reset())
        await eventually(lambda: len(watched.informer) == 60, within=60)
        assert len(watched.heard) == 40
        assert all(
            isinstance(event, DeleteEvent) and event.final_state_unknown for event in watched.heard
        )
        assert set(watched.heard.names()) == set(names[:40])
        assert len(watched.informer.by_index("owner", "a")) == 60
        bounded(watched.traffic, total=30, per_second=20)


def by_owner(item: StoredObject) -> list[str]:
    return [item.meta.labels.get("owner", "")]


async def test_c29_objects_enter_and_leave_a_selection_in_turn(case: Case) -> None:
    async with case.watching(labels=Selector.parse("in=yes")) as watched:
        for _ in range(100):
            await case.write(["a"], labels={"in": "yes"})
            await case.write(["a"], labels={"in": "no"})
        await eventually(lambda: len(watched.heard) == 200, within=30)
        assert [type(event) for event in watched.heard] == [CreateEvent, DeleteEvent] * 100
        assert not any(isinstance(event, UpdateEvent) for event in watched.heard)
        assert len(watched.informer) == 0
        # The version at which it left is the position: a resumed watch does not tell it again.
        last = case.plane.admin.get(case.path("a"))["metadata"]["resourceVersion"]
        case.proxy.strike(Reset(), query=WATCH)
        await eventually(lambda: len(watched.traffic.watches()) == 1)
        (resumed,) = watched.traffic.watches()
        assert resumed.request.query["resourceVersion"] == last
        await case.write(["a"], labels={"in": "yes"}, round="last")
        await eventually(lambda: watched.data("a") == {"round": "last"})
        assert len(watched.heard) == 201
        bounded(watched.traffic, total=3, per_second=3)
