# SPDX-License-Identifier: Apache-2.0
"""The lag of the event loop: noticed while it lasts, remembered, and forgotten."""

from __future__ import annotations

import threading
import time

import anyio
import pytest
import structlog
from prometheus_client import CollectorRegistry

from flexinfer.envtest.eventually import eventually
from flexinfer.errors import ConfigurationError
from flexinfer.looplag import LoopLag


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_stall_is_reported_and_then_forgotten() -> None:
    clock = Clock()
    registry = CollectorRegistry()
    lag = LoopLag(clock=clock, registry=registry)
    assert lag.check() is None
    lag.observe(0.2)
    assert lag.check() is None
    clock.now += 1
    lag.observe(2.5)
    assert registry.get_sample_value("flexinfer_event_loop_lag_seconds") == 2.5
    clock.now += 9
    lag.observe(0.0)
    assert lag.check() == "the event loop was blocked for 2.5 s: find what does not await"
    clock.now += 2
    lag.observe(0.1)
    assert lag.check() is None
    assert registry.get_sample_value("flexinfer_event_loop_lag_seconds") == 0.1


async def test_a_blocked_loop_is_measured() -> None:
    registry = CollectorRegistry()
    lag = LoopLag(registry=registry)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(lag.run)
            await anyio.wait_all_tasks_blocked()
            time.sleep(1.6)  # noqa: ASYNC251 - to block the loop is the point
            assert lag.check() is not None
            await eventually(
                lambda: bool(registry.get_sample_value("flexinfer_event_loop_lag_seconds"))
            )
            group.cancel_scope.cancel()
    measured = registry.get_sample_value("flexinfer_event_loop_lag_seconds")
    assert measured is not None
    assert measured > 1.0
    assert "the event loop was blocked for" in (lag.check() or "")


def test_two_managers_share_the_gauge() -> None:
    registry = CollectorRegistry()
    LoopLag(registry=registry)
    LoopLag(registry=registry)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf")])
def test_an_impossible_limit_is_refused(limit: float) -> None:
    with pytest.raises(ConfigurationError, match=r"loop_lag is .*: use a positive, finite"):
        LoopLag(limit=limit, registry=CollectorRegistry())


async def test_the_stack_of_a_blocked_loop_is_logged_once_a_stall() -> None:
    lag = LoopLag(limit=0.1, registry=CollectorRegistry())

    def block_in_here(stalls: int) -> None:
        deadline = time.monotonic() + 10
        while len(logs) < stalls and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)

    with structlog.testing.capture_logs() as logs, anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(lag.run)
            for stalls in (1, 2):
                await anyio.wait_all_tasks_blocked()
                block_in_here(stalls)
                assert len(logs) == stalls
                await eventually(lambda: lag._due != lag._reported)
            group.cancel_scope.cancel()
    for line in logs:
        assert line["log_level"] == "warning"
        assert line["event"] == "the event loop is blocked"
        assert line["seconds"] >= 0.1
        assert "in block_in_here" in line["stack"]
        assert "time.sleep(0.01)" in line["stack"]


async def test_the_watchdog_ends_with_the_heartbeat() -> None:
    before = threading.active_count()
    lag = LoopLag(limit=60, registry=CollectorRegistry())
    async with anyio.create_task_group() as group:
        group.start_soon(lag.run)
        await eventually(lambda: threading.active_count() == before + 1)
        group.cancel_scope.cancel()
    assert threading.active_count() == before
    with structlog.testing.capture_logs() as logs:
        lag.look(threading.get_ident())
    assert (logs, lag.check()) == ([], None)


def test_a_thread_that_is_gone_has_no_stack() -> None:
    clock = Clock()
    lag = LoopLag(clock=clock, registry=CollectorRegistry())
    lag._due = clock.now - 5
    with structlog.testing.capture_logs() as logs:
        lag.look(0)
        lag.look(0)
    assert [(line["seconds"], line["stack"]) for line in logs] == [(5.0, "")]
