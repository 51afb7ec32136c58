# SPDX-License-Identifier: Apache-2.0
"""A leader that lists many big objects: how late its event loop was, and how much memory it took.

usage: python -m hack.biglist SERVER TOKEN_FILE CA_FILE NAMESPACE

Prints one line of JSON: how many ConfigMaps of the namespace an informer holds; of a heartbeat of
100 ms meanwhile the longest gap, the most work between two beats, and their number; resident
memory in MiB before the list, at its peak, and at the end; and how often the Lease `big-list` was
acquired, which is once if it was kept all the time.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from flexinfer.cache.informers import Informers
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.leaderelection import LeaderElectionOptions, Leadership
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from flexinfer.client.auth import Credentials

CONFIG_MAPS = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")
LEASE = "big-list"
BEAT = 0.1  # seconds
_WITHIN = 300.0
_KIB_PER_MIB = 1024


@dataclass
class Heartbeat:
    """Beat ten times a second; keep the longest time, and the most work, between two beats.

    Time goes by for the others on this machine too; work is CPU seconds of this thread alone.
    """

    beats: int = 0
    longest: float = 0.0
    busiest: float = 0.0

    async def run(self) -> None:
        """Beat until cancelled."""
        last, last_work = time.perf_counter(), time.thread_time()
        while True:
            await anyio.sleep(BEAT)
            now, work = time.perf_counter(), time.thread_time()
            self.beats += 1
            self.longest = max(self.longest, now - last)
            self.busiest = max(self.busiest, work - last_work)
            last, last_work = now, work


def resident(field: str = "VmRSS") -> float:
    """Return what this process holds now, in MiB; with `VmHWM` what it held at most."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / _KIB_PER_MIB
    raise SystemExit(f"/proc/self/status has no {field}: this needs Linux")


@dataclass
class BigList:
    """List the ConfigMaps of a namespace whenever this process leads, and say what it took."""

    transport: Transport
    namespace: str
    terms: int = 0

    async def sync(self) -> None:
        """List, print, and end."""
        self.terms += 1
        heartbeat, before = Heartbeat(), resident()
        async with anyio.create_task_group() as group:
            group.start_soon(heartbeat.run)
            informers = Informers(self.transport)
            informer = informers.informer(CONFIG_MAPS, namespace=self.namespace)
            await group.start(informers.run)
            await informers.wait_synced(_WITHIN)
            await anyio.sleep(BEAT)
            said = {
                "objects": len(informer),
                "beats": heartbeat.beats,
                "longest_gap": heartbeat.longest,
                "most_work": heartbeat.busiest,
                "before_mib": before,
                "peak_mib": resident("VmHWM"),
                "final_mib": resident(),
                "terms": self.terms,
            }
            group.cancel_scope.cancel()
        print(json.dumps(said))


async def main(server: str, token: str, ca_pem: str, namespace: str) -> None:
    """Hold a Lease and list meanwhile."""

    def credentials() -> Credentials:
        return StaticCredentials(server, token=token, context=client_context(ca_pem))

    options = LeaderElectionOptions(
        name=LEASE, namespace=namespace, lease_duration=3.0, renew_deadline=2.0, retry_period=0.4
    )
    async with (
        Leadership(options, lambda: Transport(credentials())) as leadership,
        Transport(credentials()) as transport,
    ):
        await leadership.lead(BigList(transport, namespace).sync)


if __name__ == "__main__":
    _, server_, token_file, ca_file, namespace_ = sys.argv
    token_, ca_pem_ = (Path(path).read_text(encoding="utf-8") for path in (token_file, ca_file))
    anyio.run(main, server_, token_, ca_pem_, namespace_)
