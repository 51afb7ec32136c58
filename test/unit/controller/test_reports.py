# SPDX-License-Identifier: Apache-2.0
"""What a controller reports: its series, the lines of its runs, and settings that it refuses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import structlog
from prometheus_client import CollectorRegistry

from flexinfer import log
from flexinfer.controller import Controller, ControllerOptions
from flexinfer.errors import ConfigurationError, ForbiddenError, TerminalError, TransportError
from flexinfer.reconcile import Request, Result
from flexinfer.workqueue import WorkQueue

if TYPE_CHECKING:
    from test.unit.controller.conftest import Bench, Scripted

A = Request("ns", "a")


async def test_all_series_exist_before_the_first_reconcile(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    bench = new_bench(scripted(), workers=3)
    assert bench.results() == dict.fromkeys(bench.results(), 0)
    for name in ("errors", "panics", "timeouts"):
        assert bench.metric(f"reconcile_{name}_total") == 0
    assert bench.metric("terminal_reconcile_errors_total") == 0
    await bench.run_until(lambda: True)
    assert bench.metric("max_concurrent_reconciles") == 3


async def test_every_line_of_a_reconcile_carries_its_keys(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    logger = log.get_logger("reconciler")

    async def leaky() -> Result:
        structlog.contextvars.bind_contextvars(left_over="yes")
        raise ValueError("boom")

    async def chatty() -> Result:
        logger.info("applied")
        return Result()

    reconciler = scripted(leaky, chatty)
    bench = new_bench(reconciler)
    bench.queue.add(A)
    merge = [structlog.contextvars.merge_contextvars, log.merge_run]
    with structlog.testing.capture_logs(processors=merge) as logs:
        await bench.run_until(lambda: bench.results()["success"] == 1)
    (failure,) = [line for line in logs if line["event"] == "reconcile failed"]
    (applied,) = [line for line in logs if line["event"] == "applied"]
    for line in (failure, applied):
        assert (line["controller"], line["namespace"], line["name"]) == ("test", "ns", "a")
    assert failure["reconcile_id"] != applied["reconcile_id"]
    assert isinstance(failure["exc_info"], ValueError)
    assert "left_over" not in applied


@pytest.mark.parametrize(
    "error", [ForbiddenError("quota"), TransportError("refused"), TerminalError("no"), ValueError()]
)
async def test_only_what_is_no_state_of_the_world_is_logged_with_a_traceback(
    new_bench: type[Bench], scripted: type[Scripted], error: Exception
) -> None:
    bench = new_bench(scripted(error))
    with structlog.testing.capture_logs() as logs:
        await bench.run_once()
    (failure,) = [line for line in logs if line["event"] == "reconcile failed"]
    assert failure["error"] == f"{type(error).__name__}: {error}"
    assert failure["exc_info"] is (error if isinstance(error, ValueError) else None)


def test_impossible_settings_are_refused(scripted: type[Scripted]) -> None:
    with pytest.raises(ConfigurationError, match="workers is 0: a controller needs at least 1"):
        ControllerOptions(workers=0)
    with pytest.raises(ConfigurationError, match="hot_loop is 0: use a number of runs a minute"):
        ControllerOptions(hot_loop=0)
    for timeout in (0, -1, math.nan):
        with pytest.raises(ConfigurationError, match="reconcile_timeout is"):
            ControllerOptions(reconcile_timeout=timeout)
    registry = CollectorRegistry()
    queue = WorkQueue[Request]("q", registry=registry)
    with pytest.raises(ConfigurationError, match="controller name is empty"):
        Controller("", scripted(), queue=queue, registry=registry)
