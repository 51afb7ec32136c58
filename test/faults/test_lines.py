# SPDX-License-Identifier: Apache-2.0
"""Lines that are too long, cut, or no events, and an informer that dies of something."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from flexinfer.builder import controller_for
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import CutInside, Footprint, Forward, Insert, Rewrite
from flexinfer.envtest.script import Answer, Close, HalfClose, Reset, status_answer
from flexinfer.errors import FlexInferError, ServerError
from flexinfer.reconcile import Request, Result
from hack.faultcases import Case, ConfigMap, bounded, running

if TYPE_CHECKING:
    from flexinfer.envtest.faults.forward import Edit
    from flexinfer.envtest.script import Rupture
    from flexinfer.meta.envelope import Tree

WATCH = {"watch": "true"}
LIST = {"watch": None}
MIB = 1 << 20


def padded(size: int) -> Rewrite:
    """Make the line of `big` so many bytes long."""

    def pad(event: Tree) -> Tree:
        item = event["object"]
        data = {**item["data"], "padding": '\u00e9\\"' * (size // 8)}
        return {**event, "object": {**item, "data": {**data, "more": "x" * (size // 2)}}}

    return Rewrite(pad, name="big")


def resident() -> int:
    """Return what this process holds in memory, in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_c24_a_huge_line_is_read(case: Case) -> None:
    case.proxy.script("GET", case.path(), Forward(lines=(padded(5 * MIB),)), query=WATCH)
    async with case.watching() as watched:
        await case.write(["big"], round="0")
        await eventually(lambda: len(watched.heard) == 1, within=30)
        assert len(watched.data("big")["more"]) == 5 * MIB // 2
        await case.write(["after"])
        await case.delete(["big"])
        await eventually(lambda: watched.heard.names() == ["big", "after", "big"], within=30)
        watched.heard.clear()
        before = resident()
        for number in range(5):
            await case.write(["big"], round=str(number))
            await eventually(lambda: watched.data("big")["round"] == str(number), within=30)  # noqa: B023
            watched.heard.clear()
        await case.delete(["big"])
        await eventually(lambda: len(watched.informer) == 1, within=30)
        watched.heard.clear()
        assert resident() - before < 60 * MIB
        assert len(watched.traffic) == 0


async def test_c24_a_line_above_the_cap_is_skipped_and_found_by_the_next_list(case: Case) -> None:
    edits = Forward(lines=(padded(20 * MIB),))
    case.proxy.script("GET", case.path(), edits, Forward(), query=WATCH)
    async with case.watching() as watched:
        await case.write(["big", "after"], round="0")
        await eventually(lambda: watched.metric("unreadable_lines_total") == 1, within=60)
        await eventually(lambda: watched.heard.names() == ["after"])
        case.proxy.strike(Close(), query=WATCH)
        await eventually(lambda: watched.heard.names() == ["after", "big"])
        assert watched.metric("relists_total", reason="unreadable") == 1
        bounded(watched.traffic, total=4, per_second=4)


@pytest.mark.parametrize("ending", [Close(), HalfClose(), Reset()])
async def test_c25_a_line_that_was_cut_is_read_again(case: Case, ending: Rupture) -> None:
    cut = Forward(lines=(CutInside(60, ending, name="cut"),))
    case.proxy.script("GET", case.path(), cut, Forward(), query=WATCH)
    async with case.watching() as watched:
        await case.write(["whole"])
        await eventually(lambda: len(watched.heard) == 1)
        await case.write(["cut"])
        await eventually(lambda: watched.heard.names() == ["whole", "cut"])
        assert watched.metric("unreadable_lines_total") == 0
        assert len(watched.traffic.lists()) == 0
        bounded(watched.traffic, total=2, per_second=2)


async def test_c25_an_error_page_is_no_event(case: Case) -> None:
    page = "<html><body>502 Bad Gateway</body></html>"
    bad = Answer(502, {"Content-Type": "text/html"}, page)
    mute = Insert({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1"}})
    async with case.watching() as watched:
        case.proxy.script("GET", case.path(), bad, Forward(lines=(mute,)), Forward(), query=WATCH)
        case.proxy.strike(Close(), query=WATCH)
        await eventually(lambda: [e.status for e in watched.traffic.watches()][-2:] == [200, 200])
        await case.write(["a"])
        await eventually(lambda: watched.heard.names() == ["a"])
        assert watched.metric("watch_restarts_total", reason="server_error") == 2
        assert len(watched.traffic.lists()) == 0
        bounded(watched.traffic, total=5, per_second=5)


async def test_c25_a_failed_list_is_an_error_with_its_code(case: Case) -> None:
    failed = status_answer(500, "InternalError", "etcdserver: request timed out")
    case.proxy.script("GET", case.path(), failed, failed, Forward(), query=LIST)
    await case.write(["a"])
    async with case.watching() as watched:
        assert watched.heard.names() == ["a"]
        lists = case.proxy.traffic.lists()
        assert [e.status for e in lists] == [500, 500, 200]
    case.proxy.script("GET", case.path(), failed, query=LIST)
    async with case.transport() as transport:
        with pytest.raises(ServerError, match="request timed out") as raised:
            await transport.request("GET", case.path())
        assert raised.value.status == 500


BROKEN: dict[str, Edit] = {
    "no-json": Rewrite(lambda _: b'{"type":"ADDED","object":{"meta', name="bad"),
    "no-metadata": Rewrite(lambda event: {**event, "object": {"kind": "ConfigMap"}}, name="bad"),
    "wrong-type": Rewrite(lambda event: {**event, "object": [1, 2]}, name="bad"),
    "unknown-event": Rewrite(lambda event: {**event, "type": "RENAMED"}, name="bad"),
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_c26_what_cannot_be_read_is_counted_and_the_watch_goes_on(
    case: Case, fault: str
) -> None:
    broken = Forward(lines=(BROKEN[fault],))
    case.proxy.script("GET", case.path(), broken, Forward(), query=WATCH)
    async with case.watching() as watched:
        await case.write(["bad"])
        await case.write(["good"])
        await eventually(lambda: watched.heard.names() == ["good"])
        assert watched.metric("unreadable_lines_total") == 1
        assert len(watched.traffic) == 0
        # It may have been the last of that object, so when the watch ends a list finds it.
        case.proxy.strike(Close(), query=WATCH)
        await eventually(lambda: watched.heard.names() == ["good", "bad"])
        bounded(watched.traffic, total=3, per_second=3)


class Idle:
    async def reconcile(self, request: Request) -> Result:
        del request
        return Result()


async def test_c26_a_dead_informer_fails_readiness_and_ends_the_manager(case: Case) -> None:
    before = Footprint.take(case.proxy)
    async with case.managing() as manager:
        controller_for(manager, ConfigMap).complete(Idle())
        with pytest.RaisesGroup(
            pytest.RaisesExc(FlexInferError, match="informer of configmaps was cancelled alone")
        ):
            async with running(manager):
                (task,) = [t for t in asyncio.all_tasks() if t.get_name() == "informer configmaps"]
                task.cancel()
                await anyio.sleep_forever()
        assert "[-]informer-configmaps failed: stopped" in manager.readyz.report().text
    bounded(case.proxy.traffic, total=5, per_second=5)
    await replace(case).leaves_nothing(before)
