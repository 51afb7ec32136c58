# SPDX-License-Identifier: Apache-2.0
"""The position of a watch: what voids it, what keeps it, and what a new list then tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.errors import (
    BadRequestError,
    Cause,
    DeadlineError,
    ExpiredError,
    ForbiddenError,
    NotFoundError,
    ServerError,
    ThrottledError,
    TransportError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from test.unit.reflector.conftest import Rig


@pytest.mark.parametrize("as_event", [False, True])
async def test_c19_c28_an_expired_watch_is_listed_anew_with_tombstones(
    rig: Rig, *, as_event: bool
) -> None:
    rig.api.expires_as_event = as_event
    for number in range(100):
        rig.api.put(f"w{number}")
    rig.informer.add_index("name", lambda item: [item.meta.name])
    async with rig.running():
        await rig.watching()
        rig.api.is_holding = True
        rig.events.clear()
        for number in range(40):
            rig.api.delete(f"w{number}")
        rig.api.put("w40", size=2)
        rig.api.put("new")
        rig.api.compact()
        rig.api.cut()
        await rig.equal()
        await rig.watching(3)
    assert sorted(rig.heard()) == sorted([*(f"?w{n}" for n in range(40)), "~w40", "+new"])
    assert rig.count("LIST") == 2
    assert len(rig.informer) == 61
    assert rig.informer.by_index("name", "w0") == []
    assert rig.metric("relists_total", reason="expired") == 1


async def test_c19_a_watch_that_expires_after_each_list_backs_off(rig: Rig) -> None:
    rig.api.faults.extend([None, *[ExpiredError("too old"), None] * 4])
    async with rig.running():
        await rig.watching(5)
    assert rig.count("LIST") == 5
    assert rig.clock.now - 1000.0 == pytest.approx(0.8 + 1.6 + 3.2)


@pytest.mark.parametrize(
    "fault",
    [
        TransportError("reset"),
        DeadlineError("silent"),
        ThrottledError("slow down"),
        ServerError("oops", status=502),
        ForbiddenError("no"),
        UnauthorizedError("who"),
    ],
)
async def test_failures_to_open_a_watch_keep_the_position(rig: Rig, fault: Exception) -> None:
    rig.api.put("a")
    rig.api.faults.extend([None, fault, fault])
    async with rig.running():
        await rig.watching(3)
    assert rig.count("LIST") == 1
    watches = [asked.params for asked in rig.api.asked if asked.verb == "WATCH"]
    assert [params["resourceVersion"] for params in watches] == ["101"] * 3
    assert rig.clock.now - 1000.0 == pytest.approx(0.8 + 1.6)


@pytest.mark.parametrize(
    "fault",
    [
        BadRequestError("invalid resourceVersion"),
        NotFoundError("no such kind"),
        ServerError(
            "Too large resource version",
            status=504,
            causes=[Cause("ResourceVersionTooLarge", "", "Too large resource version")],
        ),
    ],
)
async def test_c20_failures_that_void_the_position_lead_to_a_list(
    rig: Rig, fault: Exception
) -> None:
    rig.api.faults.extend([None, fault])
    async with rig.running():
        await rig.watching(2)
    assert rig.count("LIST") == 2


async def test_c20_a_restored_server_is_followed_to_its_older_state(rig: Rig) -> None:
    rig.api.put("a")
    past, revision = dict(rig.api.objects), rig.api.revision
    async with rig.running():
        await rig.watching()
        rig.api.put("a", size=2)
        rig.api.put("b")
        await rig.equal()
        rig.api.restore(past, revision)
        rig.api.faults.append(ExpiredError("too old"))
        rig.api.cut()
        await rig.equal()
    assert rig.heard() == ["=a", "~a", "+b", "?a", "+a", "?b"]


async def test_c30_retry_after_is_the_least_wait(rig: Rig) -> None:
    rig.api.faults.extend([None, ThrottledError("slow down", retry_after=3.0)])
    async with rig.running():
        await rig.watching(2)
    assert rig.clock.now - 1000.0 >= 3.0


async def test_c20_a_version_that_is_given_out_again_is_news(rig: Rig) -> None:
    rig.api.put("a", size=1)
    async with rig.running():
        await rig.watching()
        past, revision = dict(rig.api.objects), rig.api.revision
        lost = rig.api.put("a", size=2)
        await rig.until(lambda: len(rig.events) == 2)
        rig.api.restore(past, revision)
        again = rig.api.put("a", size=3)
        assert again.meta.resource_version == lost.meta.resource_version
        rig.api.put("b")
        rig.api.restore(rig.api.objects, revision)
        rig.api.faults.append(ExpiredError("too old"))
        rig.api.cut()
        await rig.until(lambda: len(rig.events) == 5)
        (item,) = (i for i in rig.informer.list() if i.meta.name == "a")
        assert item.body == again.body
    assert rig.heard() == ["=a", "~a", "?a", "+a", "+b"]


async def test_an_object_made_again_under_its_name_is_a_delete_and_a_create(rig: Rig) -> None:
    rig.api.put("a")
    async with rig.running():
        await rig.watching()
        rig.api.is_holding = True
        rig.api.delete("a")
        rig.api.put("a")
        rig.api.compact()
        rig.api.cut()
        await rig.equal()
    assert rig.heard() == ["=a", "-a", "+a"]
