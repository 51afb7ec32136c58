# SPDX-License-Identifier: Apache-2.0
"""The informers of one process: one per selection, started, watched and stopped together."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

import anyio
from anyio import TASK_STATUS_IGNORED

from flexinfer.cache.informer import Informer, InformerOptions
from flexinfer.cache.selection import Selection
from flexinfer.cache.underway import UnderWay
from flexinfer.errors import (
    CacheNotSyncedError,
    ConfigurationError,
    FlexInferError,
    NotWatchedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from anyio.abc import TaskGroup, TaskStatus

    from flexinfer.cache.listwatch import ListWatchTransport
    from flexinfer.meta.resource import Resource
    from flexinfer.meta.selector import Selector

__all__ = ["Informers"]


class Informers:
    """Make each informer once and own the tasks of all of them."""

    def __init__(
        self, transport: ListWatchTransport, *, options: InformerOptions | None = None
    ) -> None:
        self._transport = transport
        self._options = options or InformerOptions()
        self._by_resource: dict[Resource, list[Informer]] = {}
        self._whole: dict[Resource, Informer] = {}  # those that hold all objects of a kind
        self._under_way: defaultdict[Resource, UnderWay] = defaultdict(UnderWay)
        self._group: TaskGroup | None = None

    def __iter__(self) -> Iterator[Informer]:
        return chain.from_iterable(list(self._by_resource.values()))

    def informer(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        labels: Selector | None = None,
        fields: str = "",
    ) -> Informer:
        """Return the informer of this selection, making it if there is none yet.

        It is started now if the others are running, else together with them. Add indexes and
        handlers before it has synced, so that nobody reads without them.
        """
        selection = Selection(resource, namespace, labels, fields)
        for informer in self.of(resource):
            if informer.selection == selection:
                return informer
        made = Informer(
            self._transport,
            resource,
            namespace=namespace,
            labels=labels,
            fields=fields,
            options=self._options,
            under_way=self._under_way[resource],
        )
        self._by_resource.setdefault(resource, []).append(made)
        if made.selection.is_everything:
            self._whole[resource] = made
        if self._group is not None:
            self._start(self._group, made)
        return made

    def under_way(self, resource: Resource) -> UnderWay:
        """Return the writes to one kind that are under way."""
        return self._under_way[resource]

    def of(self, resource: Resource) -> Sequence[Informer]:
        """Return the informers of one kind."""
        return self._by_resource.get(resource, ())

    def reader(
        self, resource: Resource, namespace: str, labels: Selector | None = None
    ) -> Informer:
        """Return the informer to read a kind from; an empty namespace means all of them.

        One that holds everything is preferred, then one of all labels in the namespace, then one
        of exactly these labels, then the only one there is. Raises NotWatchedError when there is
        none, or several and no telling which.
        """
        whole = self._whole.get(resource)
        if whole is not None:
            return whole
        covering = []
        for informer in self.of(resource):
            selection = informer.selection
            if selection.covers(namespace):
                if not selection.is_filtered:
                    return informer
                covering.append(informer)
        exact = [i for i in covering if labels is not None and i.selection.labels == labels]
        if len(covering) == 1 or exact:
            return (exact or covering)[0]
        if covering:
            raise NotWatchedError(
                f"{len(covering)} informers hold a part of {resource}: read with the labels of one"
            )
        scope = f" in namespace {namespace}" if namespace else " in all namespaces"
        raise NotWatchedError(
            f"nothing keeps {resource.kind} ({resource}){scope} in the cache: declare it with "
            "owns() or watches(), ask informers for it before start, or read it live"
        )

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Run every informer until cancelled; report as started once each has its task.

        What an informer cannot wait out ends all of them, in an exception group.
        """
        if self._group is not None:
            raise ConfigurationError("these informers run already: run them once")
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                for informer in self:
                    self._start(group, informer)
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._group = None

    def _start(self, group: TaskGroup, informer: Informer) -> None:
        group.start_soon(_keep, informer, name=f"informer {informer.selection}")

    async def wait_synced(self, timeout: float) -> None:  # noqa: ASYNC109  # it names the reasons
        """Wait until every informer has synced, also those that are added meanwhile.

        Raises CacheNotSyncedError after *timeout* seconds, naming each one that has not, and why.
        """
        with anyio.move_on_after(timeout):
            while waiting := self._unsynced():
                await waiting[0].synced()
        if waiting := self._unsynced():
            reasons = "; ".join(f"{i.selection}: {i.health()}" for i in waiting)
            raise CacheNotSyncedError(f"not synced within {timeout:g} s: {reasons}")

    def _unsynced(self) -> Sequence[Informer]:
        return [informer for informer in self if not informer.has_synced]


async def _keep(informer: Informer) -> None:
    """Run one informer; its end by anything but the end of all is an error."""
    try:
        await informer.run()
    except anyio.get_cancelled_exc_class():
        if anyio.current_effective_deadline() == -math.inf:
            raise
        # A task group takes a task that was cancelled from outside for one that is done.
        raise FlexInferError(f"the informer of {informer.selection} was cancelled alone") from None
