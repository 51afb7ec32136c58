# SPDX-License-Identifier: Apache-2.0
"""The controllers of our subject, as an author would write them; `peer/` has the same in Go."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio

from flexinfer.apply import Applier, StatusWriter
from flexinfer.conditions import set_condition
from flexinfer.meta.condition import ConditionStatus
from flexinfer.reconcile import Request, Result
from hack.bench.kinds import ITEMS, LABELS, LAST_ROUND, MANAGER, ConfigMap, Item

if TYPE_CHECKING:
    from flexinfer.cache.client import CacheClient
    from flexinfer.meta.envelope import Tree

WORKERS = 16


class Tally:
    """Be reached when so many different names were counted."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._names: set[Request] = set()
        self.reached = anyio.Event()

    def count(self, name: Request) -> None:
        """Count a name, once."""
        self._names.add(name)
        if len(self._names) >= self._wanted:
            self.reached.set()


class ItemReconciler:
    """Apply a ConfigMap for every Item, and say so in its status."""

    def __init__(self, client: CacheClient, everything: Tally) -> None:
        self._client = client
        self._applier = Applier(client, field_manager=MANAGER)
        self._status = StatusWriter(client, field_manager=MANAGER)
        self._everything = everything

    async def reconcile(self, request: Request) -> Result:
        """Bring one Item to what it asks for."""
        item = await self._client.get(Item, request)
        if item is None:
            self._applier.forget(Item.resource, request)
            self._status.forget(Item.resource, request)
            return Result()
        await self._applier.apply(ConfigMap.resource, child_of(item), owner=item)
        await self._status.write(ITEMS, item.metadata, status_of(item))
        self._everything.count(request)
        return Result()


def child_of(item: Item) -> Tree:
    """Return the ConfigMap that an Item asks for."""
    return {
        "apiVersion": ConfigMap.resource.api_version,
        "kind": ConfigMap.resource.kind,
        "metadata": {"name": item.key.name, "namespace": item.key.namespace, "labels": LABELS},
        "data": {"number": str(item.spec.number), "size": str(len(item.spec.payload))},
    }


def status_of(item: Item) -> Tree:
    """Return the status of an Item whose child is applied."""
    generation = item.metadata.generation
    conditions = set_condition(
        item.status.conditions,
        "Ready",
        ConditionStatus.TRUE,
        reason="Applied",
        message="the child is applied",
        observed_generation=generation,
        now=datetime.now(UTC),
    )
    return {
        "observedGeneration": generation,
        "conditions": [condition.wire() for condition in conditions],
    }


class RoundReconciler:
    """Read every Item and write nothing; take note of each at its first and at its last round."""

    def __init__(self, client: CacheClient, seen: Tally, ended: Tally) -> None:
        self._client = client
        self._seen = seen
        self._ended = ended

    async def reconcile(self, request: Request) -> Result:
        """Look at one Item."""
        item = await self._client.get(Item, request)
        if item is not None:
            self._seen.count(request)
            if item.spec.round == LAST_ROUND:
                self._ended.count(request)
        return Result()
