# SPDX-License-Identifier: Apache-2.0
"""Follow the samples: a live table on a terminal, a line per change elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

from flexinfer.errors import FlexInferError
from hack.localcluster.expectations import missing, unseen
from hack.localcluster.table import render

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flexinfer.meta.envelope import Tree
    from hack.localcluster.expectations import State

_EVERY = 0.25


class Table:
    """Print the table anew whenever it changes; over the last one where there is a terminal."""

    def __init__(self) -> None:
        self._last: list[str] = []

    def show(self, models: Sequence[Tree], *, trouble: str = "") -> None:
        """Print *models*, and *trouble* below them, unless they look as they did."""
        width = shutil.get_terminal_size((160, 24)).columns
        lines = render(models, width=width)
        lines += [" ".join(trouble.split())[:width]] if trouble else []
        if lines == self._last:
            return
        if sys.stdout.isatty():
            if self._last:
                sys.stdout.write(f"\x1b[{len(self._last)}F\x1b[J")
            print("\n".join(lines), flush=True)
        elif news := _changed(self._last, lines):
            print("\n".join(news), flush=True)
        self._last = lines


def _changed(before: Sequence[str], after: Sequence[str]) -> list[str]:
    known = set(before)
    return [line for line in after if line not in known]


def follow(
    models: Callable[[], Sequence[Tree]],
    expected: Mapping[str, State],
    *,
    within: float,
    check: Callable[[], None],
) -> list[str]:
    """Show the models until all are as expected; return what is missing after *within* seconds.

    *check* raises when a process has ended.
    """
    return _follow(models, lambda seen: missing(expected, seen), within=within, check=check)


def follow_any(
    models: Callable[[], Sequence[Tree]], *, within: float, check: Callable[[], None]
) -> list[str]:
    """Show the models until each has a status, whichever; return those that have none."""
    return _follow(models, unseen, within=within, check=check)


def _follow(
    models: Callable[[], Sequence[Tree]],
    lacks: Callable[[Sequence[Tree]], list[str]],
    *,
    within: float,
    check: Callable[[], None],
) -> list[str]:
    table = Table()
    deadline = time.monotonic() + within
    while True:
        check()
        seen = models()
        table.show(seen)
        lacking = lacks(seen)
        if not lacking or time.monotonic() > deadline:
            return lacking
        time.sleep(_EVERY)


def watch(models: Callable[[], Sequence[Tree]], *, check: Callable[[], None]) -> None:
    """Show the models until Ctrl-C; those last read, and why, while they cannot be read."""
    table = Table()
    seen: Sequence[Tree] = ()
    while True:
        check()
        trouble = ""
        try:
            seen = models()
        except FlexInferError as error:  # such as: somebody deletes the kind, to install it anew
            trouble = f"Cannot be read now, and is tried again: {error}"
        table.show(seen, trouble=trouble)
        time.sleep(_EVERY)
