# SPDX-License-Identifier: Apache-2.0
"""What the fault cases share: a namespace behind a fault proxy, and an informer that looks at it.

Waits are a tenth of what they are in use, all of them, so that their ratios stay; soak cases take
the real ones.
"""

from __future__ import annotations

import itertools
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar

import anyio
from prometheus_client import CollectorRegistry
from pydantic import Field

from flexinfer.cache.informer import InformerOptions
from flexinfer.cache.informers import Informers
from flexinfer.cache.timing import Timing
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.protocol import Patch
from flexinfer.client.retry import RetryPolicy
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.controller import ControllerOptions
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import Footprint
from flexinfer.event import CreateEvent, DeleteEvent
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from flexinfer.cache.informer import Informer
    from flexinfer.client.auth import Credentials
    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.envtest.faults import FaultProxy, Traffic
    from flexinfer.event import Event
    from flexinfer.meta.envelope import StoredObject, Tree
    from flexinfer.meta.selector import Selector

SCALE = 0.1
TENTH = Timing().scaled(SCALE)
RETRY_TENTH = RetryPolicy(first_wait=0.05, longest_wait=0.8)
WRITERS = 8


class ConfigMap(Object):
    """Be what the cases write and watch."""

    resource: ClassVar = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")
    data: dict[str, str] = Field(default_factory=dict)


class Secret(Object):
    """Be the child where a case needs one."""

    resource: ClassVar = Resource(GroupVersionKind("", "v1", "Secret"), "secrets")


class Heard(list["Event"]):
    """Be a handler that keeps what it hears."""

    def __call__(self, event: Event) -> None:
        """Keep an event."""
        self.append(event)

    def names(self, *kinds: type[Event]) -> list[str]:
        """Return the names of the events of these kinds, in their order."""
        return [_subject(event).meta.name for event in self if not kinds or type(event) in kinds]


def _subject(event: Event) -> StoredObject:
    return event.object if isinstance(event, CreateEvent | DeleteEvent) else event.new


@dataclass(frozen=True)
class Watched:
    """An informer that was in sync behind the proxy when the case began."""

    informer: Informer
    heard: Heard
    transport: Transport
    registry: CollectorRegistry
    proxy: FaultProxy
    path: str
    began: float

    @property
    def traffic(self) -> Traffic:
        """Return what was asked since the case began."""
        return self.proxy.traffic.select(since=self.began)

    def data(self, name: str) -> Mapping[str, str]:
        """Return what the informer knows of one object."""
        for item in self.informer.list():
            if item.meta.name == name:
                return self.informer.decode(ConfigMap, item).data
        raise LookupError(name)

    def is_watching(self) -> bool:
        """Tell whether a watch is open."""
        watches = self.proxy.traffic.watches(self.path)
        return any(exchange.is_open and exchange.status == HTTPStatus.OK for exchange in watches)

    def metric(self, name: str, **labels: str) -> float:
        """Return one of the informer's numbers, 0 when it was never counted."""
        own = {"resource": "configmaps", "selector": self.informer.selection.label}
        full = f"flexinfer_informer_{name}"
        return self.registry.get_sample_value(full, {**own, **labels}) or 0.0


@dataclass(frozen=True)
class Case:
    """One namespace of a control plane, and the proxy in front of it."""

    plane: ControlPlane
    proxy: FaultProxy
    namespace: str

    def path(self, name: str = "", *, plural: str = "configmaps") -> str:
        """Return the path of the collection, or of one object in it."""
        return f"/api/v1/namespaces/{self.namespace}/{plural}{'/' if name else ''}{name}"

    @asynccontextmanager
    async def transport(
        self,
        *,
        credentials: Credentials | None = None,
        retry: RetryPolicy = RETRY_TENTH,
        max_connections: int = 100,
        observe_wait: Callable[[str, float], None] | None = None,
    ) -> AsyncIterator[Transport]:
        """Give a transport through the proxy, as administrator unless *credentials* are given."""
        credentials = credentials or StaticCredentials(
            self.proxy.url,
            token=self.plane.admin_token,
            context=client_context(self.proxy.ca_pem),
        )
        async with Transport(
            credentials,
            retry=retry,
            max_connections=max_connections,
            observe_wait=observe_wait,
        ) as transport:
            yield transport

    @asynccontextmanager
    async def watching(
        self, *, timing: Timing = TENTH, labels: Selector | None = None
    ) -> AsyncIterator[Watched]:
        """Watch the ConfigMaps; afterwards the fault is over and must have left nothing behind."""
        registry = CollectorRegistry()
        async with self.transport() as transport:
            informers = Informers(
                transport, options=InformerOptions(timing=timing, registry=registry)
            )
            informer = informers.informer(
                ConfigMap.resource, namespace=self.namespace, labels=labels
            )
            heard = Heard()
            informer.add_handler(heard)
            async with anyio.create_task_group() as group:
                await group.start(informers.run)
                await informer.wait_synced(30)
                watched = Watched(
                    informer, heard, transport, registry, self.proxy, self.path(), began=0.0
                )
                await eventually(watched.is_watching)
                watched = replace(watched, began=time.monotonic())
                before = Footprint.take(self.proxy)
                yield watched
                self.proxy.heal()
                await self.leaves_nothing(before)
                group.cancel_scope.cancel()

    async def leaves_nothing(self, before: Footprint) -> None:
        """Wait until no more is held open than before."""
        await eventually(lambda: before.assert_no_growth(Footprint.take(self.proxy)), within=30)

    @asynccontextmanager
    async def direct(self) -> AsyncIterator[DirectClient]:
        """Give an administrator's client that goes past the proxy."""
        context = client_context(self.plane.ca_file.read_text())
        token = self.plane.admin_token
        async with Transport(StaticCredentials(self.plane.url, token=token, context=context)) as t:
            yield DirectClient(t)

    async def write(
        self, names: Iterable[str], *, labels: Mapping[str, str] | None = None, **data: str
    ) -> None:
        """Create or change ConfigMaps past the proxy, several at a time."""

        async def apply(client: DirectClient, name: str) -> None:
            metadata = {"name": name, "namespace": self.namespace, "labels": dict(labels or {})}
            intent: Tree = {"metadata": metadata, "data": data}
            await client.apply(ConfigMap.resource, intent, field_manager="case")

        await self._each(apply, names)

    async def touch(self, names: Iterable[str]) -> None:
        """Change ConfigMaps that are there, in some order, as fast as it goes."""
        numbers = itertools.count()

        async def patch(client: DirectClient, name: str) -> None:
            await client.patch(
                ConfigMap.resource,
                NamespacedName(self.namespace, name),
                {"data": {"number": str(next(numbers))}},
                content_type=Patch.MERGE,
                field_manager="case",
            )

        await self._each(patch, names)

    async def delete(self, names: Iterable[str]) -> None:
        """Delete ConfigMaps past the proxy, several at a time."""

        async def delete(client: DirectClient, name: str) -> None:
            await client.delete(ConfigMap.resource, NamespacedName(self.namespace, name))

        await self._each(delete, names)

    async def _each(
        self, do: Callable[[DirectClient, str], Awaitable[None]], names: Iterable[str]
    ) -> None:
        left = iter(names)

        async def work(client: DirectClient) -> None:
            for name in left:
                await do(client, name)

        async with self.direct() as client, anyio.create_task_group() as workers:
            for _ in range(WRITERS):
                workers.start_soon(work, client)

    @asynccontextmanager
    async def managing(
        self,
        *,
        credentials: Credentials | None = None,
        timing: Timing = TENTH,
        request_timeout: float = 3.0,
        cache_sync_timeout: float = 60.0,
        workers: int = 1,
    ) -> AsyncIterator[Manager]:
        """Give a manager behind the proxy, to be run with `running`."""
        options = ManagerOptions(
            metrics_address="0",
            probe_address="0",
            grace=10,
            controller=ControllerOptions(workers=workers),
            timing=timing,
            request_timeout=request_timeout,
            cache_sync_timeout=cache_sync_timeout,
            signals=(),
        )
        async with self.transport(credentials=credentials) as transport:
            yield Manager(transport, options=options, registry=CollectorRegistry())


@asynccontextmanager
async def running(manager: Manager, *, within: float = 100.0) -> AsyncIterator[None]:
    """Run a manager until the block ends, and stop it in order.

    The block begins once everything has started, so that it can tell growth from a start.
    """
    counts = [0]

    def is_steady() -> bool:
        counts.append(len(anyio.get_running_tasks()))
        return counts[-1] == counts[-2]

    with anyio.fail_after(within):
        async with anyio.create_task_group() as group:
            await group.start(manager.run)
            await eventually(lambda: manager.readyz.report().healthy, within=30)
            await eventually(is_steady, every=0.3)
            yield
            manager.stop()


def bounded(traffic: Traffic, *, total: int, per_second: int) -> None:
    """Fail when there were more requests than that, naming where they went."""
    told = f"{len(traffic)} requests, {traffic.peak_per_second()}/s: {traffic.routes()}"
    if len(traffic) > total or traffic.peak_per_second() > per_second:
        raise AssertionError(f"more than {total} or {per_second}/s: {told}")
