# SPDX-License-Identifier: Apache-2.0
"""No slot is lost and none handed out twice, whoever is cancelled when."""

from __future__ import annotations

import asyncio

import anyio
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.client.slots import Slots


class Crowd:
    """Those who hold or wait for slots, each waiter with a scope to cancel it by."""

    def __init__(self, number: int) -> None:
        self.slots = Slots(number)
        self.held = 0
        self.served: list[anyio.CancelScope] = []

    async def wait(self, scope: anyio.CancelScope) -> None:
        with scope:
            await self.slots.wait()
            self.held += 1
            self.served.append(scope)

    def give_back(self) -> None:
        self.held -= 1
        self.slots.give_back()


async def turn() -> None:
    """Let everybody go on who can."""
    for _ in range(4):
        await checkpoint()


async def test_those_who_wait_are_served_in_their_order() -> None:
    crowd, scopes = Crowd(1), [anyio.CancelScope() for _ in range(3)]
    assert crowd.slots.take()
    async with anyio.create_task_group() as group:
        for scope in scopes:
            group.start_soon(crowd.wait, scope)
        await turn()
        assert not crowd.slots.take()
        for number in range(3):
            crowd.slots.give_back()
            await turn()
            assert crowd.served == scopes[: number + 1]
    crowd.slots.give_back()
    assert [crowd.slots.take(), crowd.slots.take()] == [True, False]


async def test_who_waits_while_one_is_free_has_it() -> None:
    slots = Slots(1)
    with anyio.fail_after(10):
        await slots.wait()
    assert not slots.take()


async def test_a_slot_that_was_handed_to_a_cancelled_waiter_is_free_again() -> None:
    crowd, tasks = Crowd(1), list[asyncio.Task[object] | None]()

    async def wait() -> None:
        tasks.append(asyncio.current_task())
        await crowd.wait(anyio.CancelScope())

    assert crowd.slots.take()
    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await turn()
        crowd.slots.give_back()
        for task in filter(None, tasks):
            task.cancel()  # as a deadline does; a scope lets who has been served go on
    assert crowd.served == []
    assert crowd.slots.take()


async def test_who_gave_up_leaves_nothing_behind() -> None:
    slots = Slots(1)
    assert slots.take()
    for _ in range(100):
        waiting = slots.wait()
        waiting.send(None)
        waiting.close()
    assert not slots.waiting
    slots.give_back()
    assert slots.take()


@given(st.integers(1, 3), st.lists(st.sampled_from(["take", "give", "cancel", "turn"])))
def test_there_are_never_more_nor_fewer_than_there_are(number: int, steps: list[str]) -> None:
    anyio.run(play, number, steps)


async def play(number: int, steps: list[str]) -> None:
    crowd, waiting = Crowd(number), list[anyio.CancelScope]()
    async with anyio.create_task_group() as group:
        for step in steps:
            if step == "take" and crowd.slots.take():
                crowd.held += 1
            elif step == "take":
                waiting.append(anyio.CancelScope())
                group.start_soon(crowd.wait, waiting[-1])
            elif step == "give" and crowd.held:
                crowd.give_back()
            elif step == "cancel" and waiting:
                waiting.pop(0).cancel()
            else:
                await turn()
            assert 0 <= crowd.held <= number
        await turn()
        for scope in waiting:
            scope.cancel()
    while crowd.held:
        crowd.give_back()
    assert [crowd.slots.take() for _ in range(number + 1)] == [True] * number + [False]
