# SPDX-License-Identifier: Apache-2.0
"""A controller on a queue that notes what it is asked, and reconcilers that follow a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.controller import Controller, ControllerOptions
from flexinfer.envtest.eventually import eventually
from flexinfer.reconcile import Request, Result
from flexinfer.workqueue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

A = Request("ns", "a")


class Scripted:
    """Answer each reconcile with the next step of a script, then with success."""

    def __init__(self, *steps: Result | BaseException | Callable[[], Awaitable[Result]]) -> None:
        self.steps = list(steps)
        self.seen: list[Request] = []
        self.ran = anyio.Event()

    async def reconcile(self, request: Request) -> Result:
        self.seen.append(request)
        step = self.steps.pop(0) if self.steps else Result()
        if not self.steps:
            self.ran.set()
        if isinstance(step, BaseException):
            raise step
        return step if isinstance(step, Result) else await step()


class Recording(WorkQueue[Request]):
    """Be a real queue that also remembers how it was asked to retry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__("test", registry=registry)
        self.asked: list[tuple[str, Request, float, int]] = []
        self.forgotten: list[Request] = []

    def add_after(self, key: Request, delay: float, *, priority: int = 0) -> None:
        self.asked.append(("after", key, delay, priority))
        super().add_after(key, delay, priority=priority)

    def add_rate_limited(self, key: Request, *, priority: int = 0) -> None:
        super().add_rate_limited(key, priority=priority)
        _, _, delay, _ = self.asked.pop()
        self.asked.append(("limited", key, delay, priority))

    def forget(self, key: Request) -> None:
        self.forgotten.append(key)
        super().forget(key)


class Bench:
    """Be a controller, its queue and its metrics."""

    def __init__(self, reconciler: Any, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.queue = Recording(self.registry)
        self.controller = Controller(
            "test",
            reconciler,
            queue=self.queue,
            options=ControllerOptions(**({"jitter": lambda: 0.5} | options)),
            registry=self.registry,
        )

    def metric(self, name: str, **labels: str) -> float | None:
        labels = {"controller": "test", **labels}
        return self.registry.get_sample_value(f"controller_runtime_{name}", labels)

    def results(self) -> dict[str, float | None]:
        names = ("success", "error", "requeue", "requeue_after")
        return {name: self.metric("reconcile_total", result=name) for name in names}

    def only_retry(self) -> tuple[str, Request, float, int]:
        ((how, key, delay, priority),) = self.queue.asked
        return how, key, round(delay, 6), priority

    async def run_until(self, happened: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(self.controller.run)
                await eventually(happened, within=10, every=0.001)
                self.controller.shut_down()

    async def run_once(self, key: Request = A, *, priority: int = 0) -> None:
        """Run one reconcile of *key* to its end."""
        self.queue.add(key, priority=priority)
        await self.run_until(lambda: (self.metric("reconcile_time_seconds_count") or 0) >= 1)


@pytest.fixture(scope="session")
def scripted() -> type[Scripted]:
    """Give the class, to make reconcilers of that take these steps."""
    return Scripted


@pytest.fixture(scope="session")
def new_bench() -> type[Bench]:
    """Give the class, to make a controller of a reconciler, with these options."""
    return Bench
