# SPDX-License-Identifier: Apache-2.0
"""No two reconciles of one shared GPU group at once, and no lock kept for a group at rest."""

from __future__ import annotations

import gc

import anyio
import pytest
from anyio.lowlevel import checkpoint

from controllers.model.grouplocks import GroupLocks


async def most_at_once(groups: list[str]) -> int:
    """Hold the lock of each group in a task of its own; return how many were inside at once."""
    locks, inside, most = GroupLocks(), 0, 0

    async def work(group: str) -> None:
        nonlocal inside, most
        async with locks.hold(group):
            inside += 1
            most = max(most, inside)
            for _ in range(5):
                await checkpoint()
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for group in groups:
            tasks.start_soon(work, group)
    return most


async def test_members_of_a_group_go_one_at_a_time() -> None:
    assert await most_at_once(["ns/g"] * 4) == 1


async def test_other_groups_and_models_without_one_do_not_wait() -> None:
    assert await most_at_once(["ns/g", "ns/h", "other/g"]) == 3
    assert await most_at_once([""] * 3) == 3


async def test_a_reconcile_that_fails_lets_the_next_one_in() -> None:
    locks = GroupLocks()
    with pytest.raises(ValueError, match="broken"):
        async with locks.hold("ns/g"):
            raise ValueError("broken")
    with anyio.fail_after(5):
        async with locks.hold("ns/g"):
            pass


async def test_a_group_at_rest_has_no_lock() -> None:
    locks = GroupLocks()
    for number in range(100):
        async with locks.hold(f"ns/g{number}"):
            pass
    gc.collect()
    assert not locks._locks
