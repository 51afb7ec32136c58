# SPDX-License-Identifier: Apache-2.0
"""Which Models have to look again when a node comes, goes or changes. Pure.

All those that nodes have a say in: on GPUs, or with more than one replica. Looking again moves no
pod of a Model that runs; it brings up what waited for the node, and Schedulable stays true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_types import Model
from flexinfer.errors import DecodeError
from flexinfer.event import UpdateEvent
from flexinfer.kinds.condition import is_true
from flexinfer.kinds.node import Node
from internal.gpu.inventory import gpus_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flexinfer.cache.informer import Informer
    from flexinfer.event import Event
    from flexinfer.meta.envelope import StoredObject
    from flexinfer.reconcile import Request


def offer_changed(event: Event) -> bool:
    """Pass what changes which pods a node can take; heartbeats do not."""
    if not isinstance(event, UpdateEvent):
        return True
    return _offer(event.old) != _offer(event.new)


class Placements:
    """Find the Models in *models* in whose placement nodes have a say."""

    def __init__(self, models: Informer) -> None:
        self._models = models

    def of_node(self, _node: StoredObject) -> Iterable[Request]:
        """Return the Models to look at when a node has changed."""
        return [stored.meta.key for stored in self._models.list() if self._is_placed(stored)]

    def _is_placed(self, stored: StoredObject) -> bool:
        try:
            model = self._models.decode(Model, stored)
        except DecodeError:
            return False  # whatever the nodes, its spec has to change first
        return model.is_placed_by_nodes


def _offer(stored: StoredObject) -> object:
    try:
        node = Node.decode(stored)
    except DecodeError:
        return None
    is_ready = is_true(node.status.conditions, "Ready")
    return stored.meta.labels, node.spec, gpus_of(node), is_ready
