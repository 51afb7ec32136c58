# SPDX-License-Identifier: Apache-2.0
"""A list of many big objects: the event loop goes on, the Lease is kept, memory stays in bounds."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from hack import biglist

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.client.direct import DirectClient
    from flexinfer.meta.envelope import Tree
    from hack.faultcases import Case

GAP = 0.1  # seconds by which a beat may be late
SLACK = 5  # times, for what else runs on the machine
WRITERS = 16
# 48 values of 170 characters: 9 KB with its metadata.
DATA = {f"key-{number}": "v" * 170 for number in range(48)}


async def fill(case: Case, count: int) -> None:
    numbers = iter(range(count))

    async def write(client: DirectClient) -> None:
        for number in numbers:
            metadata = {"name": f"big-{number:06d}", "namespace": case.namespace}
            intent: Tree = {"metadata": metadata, "data": DATA}
            await client.create(biglist.CONFIG_MAPS, intent, field_manager="case")

    async with case.direct() as client, anyio.create_task_group() as group:
        for _ in range(WRITERS):
            group.start_soon(write, client)


async def measured(case: Case, folder: Path) -> Tree:
    """List in a process of its own, so that its memory and its event loop are its own."""
    token = folder / "token"
    token.write_text(case.plane.admin_token)
    argv = (sys.executable, "-m", "hack.biglist", case.plane.url, str(token))
    done = await anyio.run_process([*argv, str(case.plane.ca_file), case.namespace])
    (line,) = [line for line in done.stdout.decode().splitlines() if line.startswith("{")]
    said: Tree = json.loads(line)
    return said


def check(said: Tree, *, count: int, slack: float) -> None:
    assert said["objects"] == count, said
    assert said["longest_gap"] <= biglist.BEAT + slack * GAP, said
    # The share of the gap that is our own doing, whatever else the machine was at.
    assert said["most_work"] <= biglist.BEAT + GAP, said
    added = said["final_mib"] - said["before_mib"]
    assert said["peak_mib"] - said["before_mib"] <= 3 * added, said
    assert said["terms"] == 1, said


async def test_c41_a_big_list_holds_up_neither_the_loop_nor_the_lease(
    case: Case, tmp_path: Path
) -> None:
    await fill(case, 2_000)
    check(await measured(case, tmp_path), count=2_000, slack=SLACK)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_c41_at_full_count(case: Case, tmp_path: Path) -> None:
    await fill(case, 20_000)
    check(await measured(case, tmp_path), count=20_000, slack=SLACK)
