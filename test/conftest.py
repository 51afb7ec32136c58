# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the fixtures of flexinfer.envtest, loops, properties without a clock."""

from __future__ import annotations

import asyncio
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest

# Tests assert no speed: on a busy machine any example may take long.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

pytest_plugins = ["flexinfer.envtest.pytest_plugin"]

# What knows sockets runs on both loops: programs are on uvloop only where that is installed.
_SOCKETS = {
    *("transport", "exec_plugin", "connection", "httpserver", "test_lines.py"),
    *("test_proxy.py", "test_server.py"),
}

# The fault proxy is aiohttp's, and no program of ours: uvloop leaves its reset sockets to the
# garbage collector.
_HARNESS = {"test_fault_proxy.py"}


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test on the loop that programs run on, and those of sockets on each."""
    if find_spec("uvloop") is None or item.path.name in _HARNESS:
        return {"asyncio": asyncio.new_event_loop}
    is_both = not _SOCKETS.isdisjoint(item.path.parts)
    both = {"asyncio": asyncio.new_event_loop} if is_both else {}
    return {"uvloop": import_module("uvloop").new_event_loop, **both}
