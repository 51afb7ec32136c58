# SPDX-License-Identifier: Apache-2.0
"""How a process of ours runs: its event loop, its turn on the CPU, its garbage collector."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Unpack

__all__ = ["run"]

T = TypeVar("T")
PosArgs = TypeVarTuple("PosArgs")

_THRESHOLDS = (10_000, 20, 50)
"""Objects more than were freed, and so many times that of each generation before the next.

By Python's own 700 a busy manager looks a hundred times a second, for 5 % of its CPU, and finds
little: what a reconcile leaves behind is freed as it ends.
"""


def run(func: Callable[[Unpack[PosArgs]], Awaitable[T]], *args: *PosArgs) -> T:
    """Run *func* as the whole work of this process, on uvloop where that is installed.

    What is loaded by now is never looked at by the garbage collector again, so that a full
    collection does not hold the loop for it. On Linux the process interrupts no other one when
    something comes for it (`SCHED_BATCH`, see ADR 15).
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    _interrupt_nobody()
    return anyio.run(func, *args, backend_options={"use_uvloop": find_spec("uvloop") is not None})


def _interrupt_nobody() -> None:
    """Wait for the end of another process's turn, a few milliseconds on a CPU that is busy.

    More has come by then, and is done in one turn.
    """
    if sys.platform == "linux":
        # A sandbox may refuse it, and all works as well without.
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
