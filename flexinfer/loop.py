# SPDX-License-Identifier: Apache-2.0
"""How a process of ours runs: on which event loop, and how often garbage is looked for."""

from __future__ import annotations

import gc
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
    collection does not hold the loop for it.
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    return anyio.run(func, *args, backend_options={"use_uvloop": find_spec("uvloop") is not None})
