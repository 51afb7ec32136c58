# SPDX-License-Identifier: Apache-2.0
"""No slot is lost and none handed out twice, whoever is cancelled when."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from flexinfer.client.slots import Slots


async def test_those_who_wait_are_served_in_their_order() -> None:
    slots, served = Slots(1), list[int]()

    async def wait(number: int) -> None:
        await slots.wait()
        served.append(number)

    assert slots.take()
    waiting = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert not slots.take()
    for number in range(3):
        slots.give_back()
        await asyncio.wait([waiting[number]], timeout=10)
        assert served == list(range(number + 1))
    slots.give_back()
    assert slots.take()
    assert not slots.take()


async def test_a_slot_that_was_handed_to_a_cancelled_waiter_is_free_again() -> None:
    slots = Slots(1)
    assert slots.take()
    waiting = asyncio.create_task(slots.wait())
    await asyncio.sleep(0)
    slots.give_back()
    waiting.cancel()
    await asyncio.wait([waiting], timeout=10)
    assert waiting.cancelled()
    assert slots.take()


@given(st.integers(1, 3), st.lists(st.sampled_from(["take", "give", "cancel", "turn"])))
def test_there_are_never_more_nor_fewer_than_there_are(number: int, steps: list[str]) -> None:
    async def play() -> None:
        slots, held, waiting = Slots(number), 0, list[asyncio.Task[None]]()

        async def wait() -> None:
            nonlocal held
            await slots.wait()
            held += 1

        for step in [*steps, "turn"]:
            if step == "take":
                if slots.take():
                    held += 1
                else:
                    waiting.append(asyncio.create_task(wait()))
            elif step == "give" and held:
                held -= 1
                slots.give_back()
            elif step == "cancel" and waiting:
                waiting.pop(0).cancel()
            for _ in range(3):
                await asyncio.sleep(0)
            assert 0 <= held <= number
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        while held:
            held -= 1
            slots.give_back()
        assert [slots.take() for _ in range(number + 1)] == [True] * number + [False]

    asyncio.run(play())
