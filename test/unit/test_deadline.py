# SPDX-License-Identifier: Apache-2.0
"""The time of one call, and cancellations that come in the very same round of the loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from flexinfer.client.deadline import Deadline, OverdueError

if TYPE_CHECKING:
    from collections.abc import Callable


async def test_what_ends_in_time_is_left_alone() -> None:
    with Deadline(60) as deadline:
        await anyio.lowlevel.checkpoint()
        assert 0 < deadline.left() <= 60
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_what_takes_longer_is_cancelled_and_said_to_be_overdue() -> None:
    with pytest.raises(OverdueError), Deadline(0.01):
        await anyio.sleep_forever()
    await anyio.lowlevel.checkpoint()  # nothing of it is left
    with anyio.move_on_after(5) as scope, pytest.raises(OverdueError), Deadline(0.01):
        await anyio.sleep_forever()
    assert not scope.cancelled_caught


async def test_an_error_on_the_way_out_is_that_error() -> None:
    async def fails() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise KeyError("the cure")

    with pytest.raises(KeyError, match="the cure"), Deadline(0.01):
        await fails()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_scope_around_it_that_ends_first_ends_it() -> None:
    with anyio.move_on_after(0.01) as scope, Deadline(60):
        await anyio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_scope_that_ends_in_the_same_round_is_obeyed(*, is_first: bool) -> None:
    loop = asyncio.get_running_loop()
    with anyio.CancelScope() as scope:
        deadline = Deadline(60)
        both = [scope.cancel, deadline._expire]
        for end in both if is_first else reversed(both):
            loop.call_soon(end)
        try:
            with deadline:
                await anyio.sleep_forever()
        except OverdueError:
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_task_that_is_cancelled_in_the_same_round_ends(*, is_first: bool) -> None:
    loop = asyncio.get_running_loop()

    async def work() -> None:
        with Deadline(60) as deadline:
            task = asyncio.current_task()
            assert task is not None
            both: list[Callable[[], object]] = [task.cancel, deadline._expire]
            for end in both if is_first else reversed(both):
                loop.call_soon(end)
            await anyio.sleep_forever()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(work())
    assert task.cancelled()
