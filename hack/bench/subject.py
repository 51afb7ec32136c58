# SPDX-License-Identifier: Apache-2.0
"""Our process that is measured, and the protocol that all subjects keep.

usage: python -m hack.bench.subject WORK SERVICE_ACCOUNT_FOLDER SERVER COUNT

1. Start, import, connect (one request), and whatever else is not to be measured.
2. Print `ready`, and wait for a line on stdin.
3. Do the work; print `done`.
4. Stay until stdin closes, so that CPU time and memory can be read from outside.

| work | before `ready` | after it |
|---|---|---|
| sync | | COUNT Items are listed into the cache |
| reconcile | | a controller with 16 workers starts; COUNT Items have their child and status |
| watch | a controller starts and reconciles COUNT Items once | it has seen the last round of each |
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from flexinfer import log, loop
from flexinfer.builder import controller_for
from flexinfer.cache.informers import Informers
from flexinfer.client.auth import ServiceAccountCredentials
from flexinfer.client.transport import Transport
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.predicate import generation_changed
from hack.bench.kinds import ITEMS, ConfigMap, Item
from hack.bench.reconcilers import WORKERS, ItemReconciler, RoundReconciler, Tally

_WITHIN = 600.0
_STDIN = 0


async def ready() -> None:
    """Say that we are ready, and return when the harness says go."""
    print("ready", flush=True)
    await anyio.wait_readable(_STDIN)
    os.read(_STDIN, 64)


async def done() -> None:
    """Say that the work is done, and return when stdin closes."""
    print("done", flush=True)
    while True:
        await anyio.wait_readable(_STDIN)
        if not os.read(_STDIN, 64):
            return


async def sync(transport: Transport, count: int) -> None:
    """List *count* Items into the cache."""
    await ready()
    informers = Informers(transport)
    informer = informers.informer(ITEMS)
    async with anyio.create_task_group() as group:
        await group.start(informers.run)
        await informers.wait_synced(_WITHIN)
        if len(informer) != count:
            raise SystemExit(f"the cache holds {len(informer)} objects, not {count}")
        await done()
        group.cancel_scope.cancel()


async def reconcile(transport: Transport, count: int) -> None:
    """Apply a child of *count* Items and write their status."""
    await ready()
    manager = _manager(transport)
    everything = Tally(count)
    (
        controller_for(manager, Item, predicate=generation_changed)
        .owns(ConfigMap, echoes=False)  # the reconciler goes on with what apply answers
        .with_options(workers=WORKERS)
        .complete(ItemReconciler(manager.client, everything))
    )
    async with anyio.create_task_group() as group:
        await group.start(manager.run)
        await everything.reached.wait()
        await done()
        group.cancel_scope.cancel()


async def watch(transport: Transport, count: int) -> None:
    """See the last round of *count* Items."""
    manager = _manager(transport)
    seen, ended = Tally(count), Tally(count)
    controller_for(manager, Item).complete(RoundReconciler(manager.client, seen, ended))
    async with anyio.create_task_group() as group:
        await group.start(manager.run)
        await seen.reached.wait()
        await ready()
        await ended.reached.wait()
        await done()
        group.cancel_scope.cancel()


def _manager(transport: Transport) -> Manager:
    # The harness ends us: no signals.
    options = ManagerOptions(metrics_address="0", probe_address="0", signals=())
    return Manager(transport, options=options)


WORKS = {"sync": sync, "reconcile": reconcile, "watch": watch}


async def run(work: str, folder: Path, server: str, count: int) -> None:
    """Connect and do *work*; raise SystemExit when it cannot be done."""
    async with Transport(ServiceAccountCredentials(folder, server)) as transport:
        await transport.request("GET", "/version")
        with anyio.fail_after(_WITHIN):
            await WORKS[work](transport, count)


if __name__ == "__main__":
    _, work_, folder_, server_, count_ = sys.argv
    log.configure()
    loop.run(run, work_, Path(folder_), server_, int(count_))
