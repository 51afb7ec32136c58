# SPDX-License-Identifier: Apache-2.0
"""The process that writes while subjects watch; it keeps their protocol and is not measured.

usage: python -m hack.bench.writer ROUNDS SERVICE_ACCOUNT_FOLDER SERVER COUNT
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from flexinfer.client.auth import ServiceAccountCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.protocol import Patch
from flexinfer.client.transport import Transport
from flexinfer.meta.resource import NamespacedName
from hack.bench.fixture import NAMESPACE, WRITERS, name_of
from hack.bench.kinds import ITEMS, LAST_ROUND
from hack.bench.subject import done, ready


async def write(client: DirectClient, numbers: range, rounds: int) -> None:
    """Write *rounds* rounds to the Items of these numbers, one after the other."""
    for number_of_round in [*range(1, rounds), LAST_ROUND]:
        for number in numbers:
            await client.patch(
                ITEMS,
                NamespacedName(NAMESPACE, name_of(number)),
                {"spec": {"round": number_of_round}},
                content_type=Patch.MERGE,
                field_manager="bench-writer",
            )


async def run(rounds: int, folder: Path, server: str, count: int) -> None:
    """Write every round to *count* Items, sixteen at a time, each Item's rounds in order."""
    async with Transport(ServiceAccountCredentials(folder, server)) as transport:
        client = DirectClient(transport)
        await transport.request("GET", "/version")
        await ready()
        async with anyio.create_task_group() as group:
            for first in range(WRITERS):
                group.start_soon(write, client, range(first, count, WRITERS), rounds)
        await done()


if __name__ == "__main__":
    _, rounds_, folder_, server_, count_ = sys.argv
    anyio.run(run, int(rounds_), Path(folder_), server_, int(count_))
