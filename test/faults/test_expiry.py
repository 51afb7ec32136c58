# SPDX-License-Identifier: Apache-2.0
"""Positions that the server does not know any more, or not yet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.to_thread import run_sync

from flexinfer.cache.timing import Timing
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import Bookmarks, Drop, FaultProxy, Forward
from flexinfer.envtest.script import Hang, Reset, status_answer
from flexinfer.event import CreateEvent, DeleteEvent, UpdateEvent
from hack.faultcases import SCALE, TENTH, Case, Watched, bounded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.meta.envelope import Tree

WATCH = {"watch": "true"}
GONE: Tree = {
    "type": "ERROR",
    "object": {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "too old resource version: 1 (9)",
        "reason": "Expired",
        "code": 410,
    },
}


async def lose(case: Case, watched: Watched) -> None:
    """Change one object, delete two and leave three, unseen by the watch, which is silent."""
    assert case.proxy.strike(Hang(), path=case.path(), query=WATCH) == 1
    watched.heard.clear()
    await case.write(["changed"], round="1")
    await case.delete(["gone-1", "gone-2"])


def found_out(watched: Watched) -> None:
    """What was lost is known: each loss once, and nothing of what stayed as it was."""
    updates = [e for e in watched.heard if isinstance(e, UpdateEvent)]
    deletes = [e for e in watched.heard if isinstance(e, DeleteEvent)]
    assert [e.new.meta.name for e in updates] == ["changed"]
    assert {e.object.meta.name for e in deletes} == {"gone-1", "gone-2"}
    assert all(e.final_state_unknown for e in deletes)
    assert len(watched.heard) == 3
    assert len(watched.informer) == 4


NAMES = ["changed", "gone-1", "gone-2", "same-1", "same-2", "same-3"]


async def test_c19_a_position_that_expired_is_listed_anew_once(case: Case) -> None:
    await case.write(NAMES, round="0")
    async with case.watching() as watched:
        await lose(case, watched)
        case.plane.compact()
        await run_sync(case.plane.restart, "kube-apiserver")
        case.proxy.strike(Reset())
        await eventually(lambda: found_out(watched), within=30)
        assert watched.metric("relists_total", reason="expired") == 1
        assert len(watched.traffic.lists(case.path())) == 1
        bounded(watched.traffic, total=25, per_second=20)


@pytest.mark.parametrize("form", ["status", "event"])
async def test_c19_an_expired_answer_and_an_expired_event_are_the_same(
    case: Case, form: str
) -> None:
    await case.write(NAMES, round="0")
    async with case.watching() as watched:
        await lose(case, watched)
        if form == "status":
            gone = status_answer(410, "Expired", "too old resource version")
            case.proxy.script("GET", case.path(), gone, Forward(), query=WATCH)
        else:
            # The stream stays open after the event: that is no reason to stay on it.
            case.proxy.script("GET", case.path(), Forward(lines=(Drop(),)), Forward(), query=WATCH)
        case.proxy.strike(Reset())
        if form == "event":
            await eventually(lambda: case.proxy.insert(GONE, path=case.path()) == 1)
        await eventually(lambda: found_out(watched))
        assert watched.metric("relists_total", reason="expired") == 1
        await case.write(["same-1"], round="1")
        await eventually(lambda: len(watched.heard) == 4)
        bounded(watched.traffic, total=6, per_second=6)


async def test_c20_a_server_that_was_rolled_back_is_followed(case: Case) -> None:
    await case.write(["kept", "changed", "deleted"], round="0")
    snapshot = await run_sync(case.plane.snapshot)
    # Nothing writes to this plane but the test, so its versions stay behind for as long as the
    # watch that begins in their future is silent.
    case.proxy.script("GET", case.path(), Forward(lines=(Bookmarks(1.0),)), query=WATCH)
    async with case.watching() as watched:
        await eventually(lambda: watched.metric("events_total", type="BOOKMARK") > 0)
        for number in range(30):
            await case.write(["changed"], round=str(number))
        await case.write(["new"], round="1")
        await case.delete(["deleted"])
        await eventually(lambda: "new" in watched.heard.names(CreateEvent))
        await eventually(lambda: len(watched.heard.names(DeleteEvent)) == 1)
        watched.heard.clear()
        await run_sync(case.plane.rollback, snapshot)
        await eventually(
            lambda: len(watched.heard.names(CreateEvent)) == 3, within=5 * 2 * TENTH.idle_timeout
        )
        assert sorted(watched.heard.names(CreateEvent)) == ["changed", "deleted", "kept"]
        await eventually(lambda: len(watched.informer) == 3)
        assert {watched.data(name)["round"] for name in ("kept", "changed", "deleted")} == {"0"}
        await case.write(["kept"], round="after")
        await eventually(lambda: watched.data("kept") == {"round": "after"})
        bounded(watched.traffic, total=25, per_second=10)


async def test_c20_a_version_that_the_server_does_not_know_yet_is_given_up(case: Case) -> None:
    await case.write(["a"], round="0")

    def ahead(query: Mapping[str, str]) -> Mapping[str, str]:
        return {"resourceVersion": str(int(query["resourceVersion"]) + 1_000_000)}

    # The server thinks about it for three seconds, whatever our scale.
    async with case.watching(timing=replace(TENTH, open_timeout=Timing().open_timeout)) as watched:
        # As a list the server refuses it: 504 with the cause ResourceVersionTooLarge.
        case.proxy.script("GET", case.path(), Forward(ask=ahead), Forward(), query=WATCH)
        case.proxy.strike(Reset(), query=WATCH)
        await case.write(["a"], round="1")
        await eventually(lambda: watched.data("a") == {"round": "1"}, within=30)
        assert len(watched.traffic.lists(case.path())) == 1
        bounded(watched.traffic, total=8, per_second=5)


async def quiet(case: Case, *, seconds: float, every: float, timing: Timing) -> None:
    """Be quiet for so long, while others write and etcd is compacted, then lose the connection.

    The API server has no watch cache, so it knows nothing older than the compaction, which
    forgets what is older than the last bookmark can be: a watch may end, and be resumed, at any
    time. A second informer of the same objects never gets a bookmark, and bears the silence:
    that one has to list again.
    """
    others = replace(case, namespace="default")

    async def others_write(seconds: float) -> None:
        with anyio.move_on_after(seconds):
            for number in range(1_000_000):
                await others.write(["unrelated"], round=str(number))
                await anyio.sleep(every / 4)

    await case.write(["a", "b"], round="0")
    with (
        case.plane.add_apiserver("--watch-cache=false") as server,
        FaultProxy.start(server) as first,
        FaultProxy.start(server) as second,
    ):
        first.script("GET", case.path(), Forward(lines=(Bookmarks(every),)), query=WATCH)
        second.script("GET", case.path(), Forward(lines=(Drop("BOOKMARK"),)), query=WATCH)
        async with (
            replace(case, proxy=first).watching(timing=timing) as watched,
            replace(case, proxy=second).watching(
                timing=replace(timing, idle_timeout=seconds)
            ) as control,
        ):
            await others_write(3 * every)
            revision = await run_sync(case.plane.revision)
            await others_write(seconds - 6 * every)
            await run_sync(case.plane.compact, revision)
            await anyio.sleep(3 * every)
            for proxy in (first, second):
                assert proxy.strike(Reset(), query=WATCH) == 1
            await eventually(lambda: len(control.traffic.watches()) > 1 < len(watched.traffic))
            await case.write(["a"], round="1")
            await eventually(lambda: watched.data("a") == control.data("a") == {"round": "1"})
            assert watched.heard.names() == control.heard.names() == ["a", "b", "a"]
            assert watched.metric("events_total", type="BOOKMARK") >= seconds / every / 5
            assert watched.metric("relists_total", reason="expired") == 0
            assert control.metric("events_total", type="BOOKMARK") == 0
            assert control.metric("relists_total", reason="expired") == 1
            bounded(watched.traffic, total=int(5 * seconds / every), per_second=5)


async def test_c33_a_bookmark_keeps_the_position_alive(case: Case) -> None:
    await quiet(case, seconds=600 * SCALE, every=60 * SCALE, timing=TENTH)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_c33_at_full_length(case: Case) -> None:
    await quiet(case, seconds=600, every=60, timing=Timing())
