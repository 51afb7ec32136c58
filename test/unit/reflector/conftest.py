# SPDX-License-Identifier: Apache-2.0
"""An informer on a simulated server, on a clock that moves when somebody sleeps."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.lowlevel import checkpoint

from flexinfer.cache.informer import Informer, InformerOptions
from flexinfer.cache.timing import Timing
from flexinfer.envtest.clock import ManualClock
from flexinfer.envtest.simulated import SimulatedApi
from flexinfer.event import CreateEvent, DeleteEvent, UpdateEvent
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.meta.selector import Selector
from flexinfer.metrics import Registry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from flexinfer.event import Event

WIDGETS = Resource(GroupVersionKind("test.io", "v1", "Widget"), "widgets")


class Rig:
    """An informer on a simulated server, and what its one handler heard."""

    def __init__(self, *, labels: str = "") -> None:
        self.api = SimulatedApi(WIDGETS)
        self.clock = ManualClock()
        self.registry = Registry()
        self.events: list[Event] = []
        timing = Timing(clock=self.clock, sleep=self.clock.sleep, random=lambda: 0.0)
        self.informer = Informer(
            self.api,
            WIDGETS,
            labels=Selector.parse(labels) if labels else None,
            options=InformerOptions(timing=timing, registry=self.registry),
        )
        self.informer.add_handler(self.events.append)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self.informer.run)
            yield
            group.cancel_scope.cancel()

    async def until(self, condition: Callable[[], object], *, within: float = 5.0) -> None:
        with anyio.fail_after(within):
            while not condition():
                await checkpoint()

    async def watching(self, count: int = 1) -> None:
        await self.until(lambda: self.count("WATCH") >= count and self.api.watches)

    async def equal(self) -> None:
        await self.until(lambda: self.content() == self.truth())

    def count(self, verb: str) -> int:
        return sum(1 for asked in self.api.asked if asked.verb == verb)

    def content(self) -> dict[str, str]:
        return {str(o.meta.key): o.meta.resource_version for o in self.informer.list()}

    def truth(self, selector: str = "") -> dict[str, str]:
        """Return what the server has, as `content` should be."""
        chosen = Selector.parse(selector)
        return {
            str(key): tree["metadata"]["resourceVersion"]
            for key, tree in self.api.objects.items()
            if chosen.matches(tree["metadata"]["labels"])
        }

    def heard(self) -> list[str]:
        return [describe(event) for event in self.events]

    def metric(self, name: str, **labels: str) -> float:
        labels = {"resource": "widgets.test.io", "selector": "", **labels}
        return self.registry.get_sample_value(f"flexinfer_informer_{name}", labels) or 0.0


def describe(event: Event) -> str:
    match event:
        case CreateEvent(item, is_initial):
            return f"{'=' if is_initial else '+'}{item.meta.name}"
        case UpdateEvent(_, item):
            return f"~{item.meta.name}"
        case DeleteEvent(item, unknown):
            return f"{'?' if unknown else '-'}{item.meta.name}"


@pytest.fixture(scope="session")
def new_rig() -> type[Rig]:
    """Give the class, to make a rig of: with a selector, or one for each example."""
    return Rig


@pytest.fixture
def rig(new_rig: type[Rig]) -> Rig:
    return new_rig()
