# SPDX-License-Identifier: Apache-2.0
"""How many events were sent, and how many were not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter

from flexinfer.metrics import REGISTRY, once_per_registry
from flexinfer.recorder.series import Drop

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class EventMetrics:
    """Be the series of one process's events; every one exists from the start."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        families = _families(registry)
        self.created = families.sent.labels("create")
        self.patched = families.sent.labels("patch")
        self._dropped = {reason: families.dropped.labels(reason.value) for reason in Drop}

    def dropped(self, reason: Drop, count: int = 1) -> None:
        """Count events that nobody will see."""
        self._dropped[reason].inc(count)


class _Families:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.sent = Counter(
            "flexinfer_events_sent_total",
            "Events that the API server took: new ones, and counts of those it had",
            ["verb"],
            registry=registry,
        )
        self.dropped = Counter(
            "flexinfer_events_dropped_total",
            "Events that were dropped, by reason",
            ["reason"],
            registry=registry,
        )


_families = once_per_registry(_Families)
