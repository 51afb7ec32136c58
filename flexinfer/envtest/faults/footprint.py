# SPDX-License-Identifier: Apache-2.0
"""What a process holds open: to show that a fault left nothing behind."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.faults.proxy import FaultProxy

_DESCRIPTORS = Path("/proc/self/fd")
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))


@dataclass(frozen=True, slots=True)
class Footprint:
    """Count what this process holds, without what the proxy in it holds; needs Linux.

    `sockets` are connections to the proxy, `tasks` those of the running event loop.
    """

    tasks: int
    sockets: int
    descriptors: int
    threads: int

    @classmethod
    def take(cls, proxy: FaultProxy) -> Footprint:
        """Count now; call it on the event loop of what is looked at.

        Raises ConfigurationError where there is no /proc.
        """
        if not _DESCRIPTORS.is_dir():
            raise ConfigurationError("Footprint reads /proc: use it on Linux")
        ours, theirs = 0, 0
        open_sockets = frozenset(_open_sockets())
        for inode, local, remote in _connections():
            if inode in open_sockets:
                ours += remote == proxy.port
                theirs += local == proxy.port or remote == proxy.upstream_port
        # The folder itself is open while it is read.
        descriptors = sum(1 for _ in _DESCRIPTORS.iterdir()) - 1 - theirs
        return cls(_tasks(), ours, descriptors, threading.active_count())

    def assert_no_growth(self, later: Footprint, *, allow: int = 2) -> None:
        """Raise AssertionError when *later* holds more, each kind by more than *allow*.

        A connection that is kept for the next request may be there or not, hence two.
        """
        for name in self.__slots__:
            before, after = getattr(self, name), getattr(later, name)
            if after > before + allow:
                raise AssertionError(f"{name} grew from {before} to {after}: {self} -> {later}")


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


def _open_sockets() -> Iterator[str]:
    for descriptor in _DESCRIPTORS.iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]


def _connections() -> Iterator[tuple[str, int, int]]:
    """Yield inode, local port and remote port of every TCP socket of this network."""
    for table in _TABLES:
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            yield fields[9], _port(fields[1]), _port(fields[2])


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
