# SPDX-License-Identifier: Apache-2.0
"""Lists: read to their end, once more when a page expires, named when they fail."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.lowlevel import checkpoint

from flexinfer.errors import (
    DeadlineError,
    ExpiredError,
    ForbiddenError,
    NotFoundError,
    ServerError,
    ThrottledError,
    TransportError,
    UnauthorizedError,
)
from flexinfer.meta.resource import NamespacedName

if TYPE_CHECKING:
    from flexinfer.event import Event
    from test.unit.reflector.conftest import Rig


async def test_c23_a_list_is_read_to_its_end(rig: Rig) -> None:
    for number in range(1501):
        rig.api.put(f"w{number}")
    async with rig.running():
        await rig.watching()
    lists = [asked.params for asked in rig.api.asked if asked.verb == "LIST"]
    assert len(rig.informer) == len(rig.events) == 1501
    assert [params["limit"] for params in lists] == ["500"] * 4
    assert all("resourceVersion" not in params for params in lists)
    assert [asked.verb for asked in rig.api.asked] == ["LIST"] * 4 + ["WATCH"]


async def test_c23_a_page_that_expired_means_one_list_from_the_start(rig: Rig) -> None:
    for number in range(1501):
        rig.api.put(f"w{number}")
    rig.api.page_faults.extend([None, ExpiredError("continue is too old")])
    async with rig.running():
        await rig.watching()
    assert rig.count("LIST") == 3 + 4
    assert len(rig.informer) == len(rig.events) == 1501
    assert rig.clock.now == 1000.0


async def test_c23_pages_that_expire_again_and_again_are_not_asked_for_in_a_hot_loop(
    rig: Rig,
) -> None:
    for number in range(501):
        rig.api.put(f"w{number}")
    rig.api.page_faults.extend([ExpiredError("continue is too old")] * 6)
    async with rig.running():
        await rig.watching()
    assert rig.clock.now - 1000.0 == pytest.approx(0.8 + 1.6 + 3.2 + 6.4 + 12.8)


async def test_an_object_that_went_between_two_starts_of_a_list_is_reported_as_gone(
    rig: Rig,
) -> None:
    for number in range(501):
        rig.api.put(f"w{number}")
    rig.api.page_faults.append(ExpiredError("continue is too old"))
    async with rig.running():
        await rig.until(lambda: rig.informer.get(NamespacedName("default", "w0")))
        rig.api.delete("w0")
        await rig.equal()
        await rig.watching()
    assert rig.heard()[-1] in ("?w0", "-w0")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            ForbiddenError('User "sa" cannot list resource "widgets"'),
            ["forbidden", "cannot list widgets.test.io", "grant list, watch on widgets.test.io"],
        ),
        (NotFoundError("404"), ["kind missing", "widgets.test.io", "test.io/v1", "Custom"]),
        (DeadlineError("30 s"), ["timeout", "list widgets.test.io"]),
        (TransportError("refused"), ["unreachable", "refused"]),
        (UnauthorizedError("401"), ["unauthorized", "credential"]),
        (ThrottledError("429"), ["throttled"]),
        (ServerError("oops"), ["server error", "oops"]),
    ],
)
async def test_c32_a_failing_first_list_is_named_and_recovers_by_itself(
    rig: Rig, fault: Exception, words: list[str]
) -> None:
    rig.api.put("a")
    rig.api.faults.extend([fault] * 3)
    assert rig.informer.health() == "not started"
    async with rig.running():
        await rig.until(lambda: rig.count("LIST") == 2)
        health = rig.informer.health()
        assert health is not None
        assert all(word in health for word in words), health
        assert not rig.informer.has_synced
        await rig.informer.wait_synced(5)
        await rig.watching()
        assert rig.informer.health() is None
    assert rig.heard() == ["=a"]


async def test_a_list_that_makes_no_sense_is_asked_for_again(rig: Rig) -> None:
    answers = [b"<html>", b'{"items":[]}']
    request = rig.api.request

    async def broken(*args: object, **kwargs: object) -> bytes:
        if answers:
            await checkpoint()
            return answers.pop(0)
        return await request(*args, **kwargs)  # type: ignore[arg-type]  # passes through

    rig.api.request = broken  # type: ignore[method-assign]  # one fault, for one test
    async with rig.running():
        await rig.until(lambda: "unreadable" in (rig.informer.health() or ""))
        await rig.informer.wait_synced(5)


async def test_what_a_list_may_have_held_unreadably_is_not_taken_for_gone(rig: Rig) -> None:
    rig.api.put("a")
    rig.api.put("b")
    async with rig.running():
        await rig.watching()
        rig.api.objects[NamespacedName("default", "a")]["metadata"]["labels"] = {"x": 1}
        rig.api.faults.append(ExpiredError("too old"))
        rig.api.cut()
        await rig.watching(3)
        assert sorted(rig.content()) == ["default/a", "default/b"]
        rig.api.objects[NamespacedName("default", "a")]["metadata"]["labels"] = {}
        rig.api.close()
        await rig.watching(4)
    assert rig.heard() == ["=a", "=b"]
    assert rig.metric("unreadable_lines_total") == 1


async def test_c26_a_defect_of_the_reflector_reaches_its_owner(rig: Rig) -> None:

    async def broken(*_: object, **__: object) -> bytes:
        await checkpoint()
        raise ZeroDivisionError

    rig.api.request = broken  # type: ignore[method-assign]  # a defect, for one test
    with pytest.raises(ZeroDivisionError):
        await rig.informer.run()
    assert not rig.informer.has_synced


async def test_c41_a_big_list_lets_others_run(rig: Rig) -> None:
    for number in range(2000):
        rig.api.put(f"w{number}")
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await checkpoint()

    def slow(_: Event) -> None:
        end = perf_counter() + 0.0002
        while perf_counter() < end:
            pass

    rig.informer.add_handler(slow)
    async with anyio.create_task_group() as group:
        group.start_soon(other)
        async with rig.running():
            await rig.informer.wait_synced(30)
        group.cancel_scope.cancel()
    # 0.4 s of work in slices of 5 ms; the pages alone would let others run 5 times.
    assert turns > 30
