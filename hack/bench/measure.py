# SPDX-License-Identifier: Apache-2.0
"""Run a process to its end and read what it cost from the kernel's own accounting."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from hack.bench.results import Cost

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIB_PER_MIB = 1024


def run(module: str, *args: str) -> Cost:
    """Run `python -m module args` and return its cost; raise when it fails."""
    return command([sys.executable, "-m", module, *args])


def command(argv: Sequence[str]) -> Cost:
    """Run *argv* and return its cost; raise RuntimeError when it fails."""
    started = time.perf_counter()
    pid = os.posix_spawn(argv[0], list(argv), os.environ)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - started
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise RuntimeError(f"{' '.join(argv)} ended with exit code {code}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / _KIB_PER_MIB)
