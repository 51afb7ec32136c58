# SPDX-License-Identifier: Apache-2.0
"""How a process runs, seen in one of its own: these settings are for a whole process."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import asyncio, gc, sys
{before}
from flexinfer import loop

async def main(word):
    print(type(asyncio.get_running_loop()).__module__, gc.get_freeze_count() > 0, word)

loop.run(main, "said")
print(gc.get_threshold()[0] > 700)
"""


def said(program: str) -> list[str]:
    """Return the lines that *program* prints as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


_HIDDEN = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "uvloop" else find_spec(name)
"""


@pytest.mark.parametrize(
    ("before", "module"),
    [("", "uvloop"), (_HIDDEN, "asyncio.unix_events")],
    ids=["with uvloop", "without"],
)
def test_a_process_runs_on_uvloop_where_there_is_one(before: str, module: str) -> None:
    assert said(_PROGRAM.format(before=before)) == [f"{module} True said", "True"]


_POLICY = """
import os
{before}
from flexinfer import loop

async def main():
    print(os.sched_getscheduler(0) == os.SCHED_BATCH)

loop.run(main)
"""

_REFUSED = """
def refuse(*_):
    raise PermissionError(1, "Operation not permitted")

os.sched_setscheduler = refuse
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the policy is Linux's")
@pytest.mark.parametrize(
    ("before", "is_batch"), [("", "True"), (_REFUSED, "False")], ids=["granted", "refused"]
)
def test_a_process_interrupts_no_other_where_it_may_say_so(before: str, is_batch: str) -> None:
    assert said(_POLICY.format(before=before)) == [is_batch]
