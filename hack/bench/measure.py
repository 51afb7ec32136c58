# SPDX-License-Identifier: Apache-2.0
"""What a process has cost so far, read from outside it: its CPU clock and its resident memory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hack.bench.results import Cost

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIB_PER_MIB = 1024
# Of the kernel's MAKE_PROCESS_CPUCLOCK: the clock of a whole process that counts what its threads
# ran for, as the scheduler does, in nanoseconds.
_CPUCLOCK_SCHED = 2


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process; OSError when it is gone.

    Nanoseconds, where /proc/PID/stat counts ticks of 10 ms. The number of the clock of another
    process is made of its id as clock_getcpuclockid(3) makes it.
    """
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB; OSError when it is gone."""
    return _status(pid, "VmRSS")


def peak_rss_mib(pid: int) -> float:
    """Return the most resident memory that a process ever had, as `rss_mib` does."""
    return _status(pid, "VmHWM")


def _status(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / _KIB_PER_MIB
    raise OSError(f"process {pid} has no {field}: it has ended")


def command(argv: Sequence[str]) -> Cost:
    """Run *argv* to its end and return its cost; raise RuntimeError when it fails.

    Without its memory: what the kernel reports at the end has that of this process in it, whose
    memory the other one was born with.
    """
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    started = time.perf_counter()
    pid = os.posix_spawn(argv[0], list(argv), os.environ, file_actions=quiet)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - started
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise RuntimeError(f"{' '.join(argv)} ended with exit code {code}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, 0.0, 0.0)
