# SPDX-License-Identifier: Apache-2.0
"""The lag of the event loop: noticed while it lasts, remembered, and forgotten."""

from __future__ import annotations

import time

import anyio
from prometheus_client import CollectorRegistry

from flexinfer.envtest.eventually import eventually
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
