# SPDX-License-Identifier: Apache-2.0
"""The process that is measured: connect, do the work, say so in one line, and end.

usage: python -m hack.bench.subject idle|sync SERVICE_ACCOUNT_FOLDER SERVER COUNT
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from flexinfer.cache.informers import Informers
from flexinfer.client.auth import ServiceAccountCredentials
from flexinfer.client.transport import Transport
from hack.bench.fixture import ITEMS

_WITHIN = 120.0


async def run(work: str, folder: Path, server: str, count: int) -> None:
    """Do *work*; raise when the cache does not hold *count* objects at the end."""
    async with (
        Transport(ServiceAccountCredentials(folder, server)) as transport,
        anyio.create_task_group() as group,
    ):
        informers = Informers(transport)
        if work == "sync":
            informer = informers.informer(ITEMS)
            await group.start(informers.run)
            await informers.wait_synced(_WITHIN)
            if len(informer) != count:
                raise SystemExit(f"the cache holds {len(informer)} objects, not {count}")
        else:
            await transport.request("GET", "/version")
        group.cancel_scope.cancel()


if __name__ == "__main__":
    _, work_, folder_, server_, count_ = sys.argv
    anyio.run(run, work_, Path(folder_), server_, int(count_))
