# SPDX-License-Identifier: Apache-2.0
"""What an event and a reconcile cost, counted: requests, decoded bytes, calls. No clock is read.

The controller is the benchmark's, as an author writes one: a child and a status each. Bounds stand
a tenth above what was counted on Python 3.11; later ones call a little less. Work that is done
twice, or for nothing, is above them: `make test-mutations` puts two such wastes back.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio
import pytest
import structlog
from prometheus_client import CollectorRegistry

import flexinfer
from flexinfer.builder import controller_for
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.simulated import SimulatedApi
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.envelope import encode
from flexinfer.predicate import labels_changed
from hack.bench.kinds import ITEMS, ConfigMap, Item
from hack.bench.reconcilers import ItemReconciler, Tally

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import FrameType

    from flexinfer.meta.resource import NamespacedName

COUNT = 100
PACKAGE = f"{Path(flexinfer.__file__).parent}/"
SERVER = f"{PACKAGE}envtest/"


class Calls:
    """Count the calls of the framework's functions, by `module.function`, while it is entered.

    What the simulated server calls is not counted.
    """

    def __init__(self) -> None:
        self.by_name: Counter[str] = Counter()

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        is_server = file.startswith(SERVER) or caller.startswith(SERVER)
        if event == "call" and file.startswith(PACKAGE) and not is_server:
            self.by_name[f"{file.removeprefix(PACKAGE).removesuffix('.py')}.{name}"] += 1

    @property
    def each(self) -> float:
        """How many there were for each object."""
        return self.by_name.total() / COUNT


class Server:
    """Be the API server of Items and ConfigMaps, as a transport sees it."""

    host = "simulated"

    def __init__(self) -> None:
        self.items = SimulatedApi(ITEMS)
        self.children = SimulatedApi(ConfigMap.resource)
        for number in range(COUNT):
            self.items.put(f"item-{number}", number=number, payload="x" * 2600)

    def of(self, path: str) -> SimulatedApi:
        return self.items if ITEMS.api_version in path else self.children

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        return await self.of(path).request(method, path, **options)

    def stream(self, path: str, **options: Any) -> Any:
        return self.of(path).stream(path, **options)

    def asked(self) -> Counter[tuple[str, str]]:
        """Return what was asked since the last time, by kind and verb."""
        found = Counter(
            (api.resource.kind, asked.verb)
            for api in (self.items, self.children)
            for asked in api.asked
        )
        self.items.asked.clear()
        self.children.asked.clear()
        return found

    async def change(self, metadata: dict[str, object]) -> None:
        """Change the metadata of every Item, as somebody else."""
        for key, item in list(self.items.objects.items()):
            body = encode({"metadata": {**metadata, "uid": item["metadata"]["uid"]}})
            path = ITEMS.object_path(key)
            await self.items.request("PATCH", path, params={"force": "true"}, body=body)


class Counted(ItemReconciler):
    """Count how often it ran."""

    runs = 0

    async def reconcile(self, request: NamespacedName) -> Any:
        result = await super().reconcile(request)
        self.runs += 1
        return result


@pytest.fixture(autouse=True)
def no_debug_lines() -> Iterator[None]:
    """Log as a process does."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    yield
    structlog.configure(**before)


@asynccontextmanager
async def settled() -> AsyncIterator[tuple[Server, Counted]]:
    """Give a controller that has reconciled every Item, and whose own writes have come back."""
    server = Server()
    options = ManagerOptions(metrics_address="0", probe_address="0", signals=())
    manager = Manager(server, options=options, registry=CollectorRegistry())  # type: ignore[arg-type]  # the part of a transport that it uses
    reconciler = Counted(manager.client, Tally(COUNT))
    controller_for(manager, Item, predicate=labels_changed).owns(ConfigMap).complete(reconciler)
    async with anyio.create_task_group() as group:
        await group.start(manager.run)
        # Once for each Item, and once for the child that came of it.
        await eventually(lambda: reconciler.runs == 2 * COUNT)
        yield server, reconciler
        group.cancel_scope.cancel()


async def test_a_first_reconcile_of_what_is_not_there_only_writes() -> None:
    async with settled() as (server, _):
        assert server.asked() == {
            ("Item", "LIST"): 1,
            ("Item", "WATCH"): 1,
            ("Item", "PATCH"): COUNT,
            ("ConfigMap", "LIST"): 1,
            ("ConfigMap", "WATCH"): 1,
            ("ConfigMap", "PATCH"): COUNT,
        }


async def test_a_reconcile_that_changes_nothing_asks_nothing() -> None:
    async with settled() as (server, reconciler):
        server.items.is_holding = True
        await server.change({"labels": {"a": "b"}})
        server.asked()
        with Calls() as calls:
            server.items.send()
            await eventually(lambda: reconciler.runs == 3 * COUNT)
        assert not server.asked()
        assert calls.by_name["cache/memo.decode"] == COUNT
        assert calls.each < 200, calls.by_name.most_common(20)


async def test_an_event_that_concerns_nobody_is_not_decoded() -> None:
    async with settled() as (server, reconciler):
        server.items.is_holding = True
        await server.change({"annotations": {"a": "b"}})
        server.asked()
        with Calls() as calls:
            server.items.send()
            await anyio.wait_all_tasks_blocked()
        assert reconciler.runs == 2 * COUNT
        assert not server.asked()
        assert calls.by_name["cache/reflector._take"] == COUNT
        assert calls.by_name["meta/envelope.decode_tree"] == 0
        assert calls.by_name["cache/memo.decode"] == 0
        assert calls.each < 35, calls.by_name.most_common(20)
