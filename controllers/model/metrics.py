# SPDX-License-Identifier: Apache-2.0
"""What the Model controller counts and measures of each Model.

What happened is told from two statuses, the one that was read and the one that was written, and
every duration from times that the API server keeps. So a manager that starts anew counts and
measures nothing twice. Of two runs that compute the same status one writes it; the other's
ConflictError keeps it from telling. When the answer to a write is lost, what happened is not
counted at all.

Series hold the names of Models, so there is a limit. Models beyond it share the series of
OVERFLOW, whose gauges hold how many of them there are. The series of a Model go with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import Counter, Gauge, Histogram

from api.flexinfer.v1alpha2.reasons import ConditionType, Phase
from controllers.model.cache_state import job_failed
from flexinfer.conditions import find
from flexinfer.errors import ConfigurationError
from flexinfer.meta.condition import ConditionStatus
from flexinfer.meta.resource import NamespacedName
from flexinfer.metrics import REGISTRY, once_per_registry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from prometheus_client import CollectorRegistry

    from api.flexinfer.v1alpha2.model_status import ModelStatus

LIMIT = 2000
OVERFLOW = "_overflow"

# Seconds until a backend serves: from a small model in memory to a large one off a slow disk.
_BUCKETS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200)
_GROUP_STATES = ("Active", "Queued")

_Labels = tuple[str, ...]


class Start(NamedTuple):
    """Be what no status says of a start: when the newest pod was made, by which backend.

    `swapped` is when the Model got the GPUs of its group from another one, None for never.
    """

    backend: str
    pod_made: datetime | None = None
    swapped: datetime | None = None


class ModelMetrics:
    """Be the series of all Models in one registry; at most *limit* of them have their own."""

    def __init__(self, *, registry: CollectorRegistry = REGISTRY, limit: int = LIMIT) -> None:
        if limit < 0:
            raise ConfigurationError(f"limit must be a number of Models, 0 or more, not {limit}")
        self._families = _families(registry)
        self._limit = limit
        self._known: dict[NamespacedName, _Known] = {}
        self._named = 0

    def observe(
        self, key: NamespacedName, previous: ModelStatus, new: ModelStatus, start: Start
    ) -> None:
        """Tell what became of a Model when its status went from *previous* to *new*.

        Call it after each `StatusWriter.write`, with *new* for both when that changed nothing.
        """
        known = self._admit(key)
        known.show(self._states(known, new))
        self._count(known, previous, new)
        self._count_preemption(key.namespace, known, previous, new)
        self._measure(known, previous, new, start)

    def forget(self, key: NamespacedName) -> None:
        """Remove the series of a Model that is gone."""
        known = self._known.pop(key, None)
        if known is not None:
            known.show({})
            known.remove()
            self._named -= known.is_named

    def _admit(self, key: NamespacedName) -> _Known:
        known = self._known.get(key)
        if known is None:
            is_named = self._named < self._limit
            self._named += is_named
            known = self._known[key] = _Known(key if is_named else None)
        return known

    def _states(self, known: _Known, new: ModelStatus) -> dict[tuple[Gauge, _Labels], int]:
        """Return the value of every gauge of the Model."""
        states: dict[tuple[Gauge, _Labels], int] = {}
        for phase in Phase:
            states[self._families.phase, (*known.labels, phase)] = int(phase is new.phase)
        group = new.shared_group
        if group is not None and group.group_name and group.state:
            name = known.own(group.group_name)
            for state in dict.fromkeys((*_GROUP_STATES, group.state)):
                labels = (name, *known.labels, state)
                states[self._families.group_state, labels] = int(state == group.state)
        return states

    def _count(self, known: _Known, previous: ModelStatus, new: ModelStatus) -> None:
        if new.phase is not None and new.phase is not previous.phase:
            labels = (*known.labels, previous.phase or "", new.phase, _reason(new, "Ready"))
            known.counter(self._families.transitions, *labels).inc()
        if job_failed(previous, new):
            reason = _reason(new, "Cached")
            known.counter(self._families.cache_failures, *known.labels, reason).inc()

    def _count_preemption(
        self, namespace: str, known: _Known, previous: ModelStatus, new: ModelStatus
    ) -> None:
        """Count that a Model lost the GPUs of its group; the series is both Models'."""
        old, group = previous.shared_group, new.shared_group
        if group is None or group.preempted_at is None or not group.preempted_by:
            return
        if old is not None and old.preempted_at == group.preempted_at:
            return
        winner = self._admit(NamespacedName(namespace, group.preempted_by))
        (loser, where), (by, _) = known.labels, winner.labels
        labels = (known.own(group.group_name or ""), where, loser, by)
        for one in (known, winner):
            series = one.counter(self._families.preemptions, *labels)
        series.inc()

    def _measure(
        self, known: _Known, previous: ModelStatus, new: ModelStatus, start: Start
    ) -> None:
        """Measure a start, if the Model turned Ready; times are whole seconds."""
        before, ready = (find(s.conditions, ConditionType.READY) for s in (previous, new))
        if before is None or ready is None or start.pod_made is None:
            return
        if before.status is ConditionStatus.TRUE or ready.status is not ConditionStatus.TRUE:
            return
        families, labels = self._families, (*known.labels, start.backend)
        unready, now = before.last_transition_time, ready.last_transition_time
        latency = now - max(unready, start.pod_made)
        known.histogram(families.ready_latency, *labels).observe(latency.total_seconds())
        if start.pod_made >= unready:
            strategy = (new.cache and new.cache.strategy) or ""
            cold = known.histogram(families.cold_start, *labels, strategy)
            cold.observe(latency.total_seconds())
        if start.swapped is not None and start.swapped >= unready:
            group = (new.shared_group and new.shared_group.group_name) or ""
            swap = known.histogram(families.swap, *labels, known.own(group))
            swap.observe((now - start.swapped).total_seconds())


class _Known:
    """Be the series of one Model; without a *name* they are everybody's, and stay."""

    def __init__(self, name: NamespacedName | None) -> None:
        self.is_named = name is not None
        self.labels = (OVERFLOW, OVERFLOW) if name is None else (name.name, name.namespace)
        self._states: Mapping[tuple[Gauge, _Labels], int] = {}
        self._series: set[tuple[Counter | Histogram, _Labels]] = set()

    def own(self, value: str) -> str:
        """Return the value of a label that only a Model with its own series may set."""
        return value if self.is_named else OVERFLOW

    def show(self, states: Mapping[tuple[Gauge, _Labels], int]) -> None:
        """Bring the gauges from what they hold of the Model to *states*."""
        for series in dict.fromkeys((*self._states, *states)):
            gauge, labels = series
            if self.is_named and series not in states:
                gauge.remove(*labels)
            else:
                gauge.labels(*labels).inc(states.get(series, 0) - self._states.get(series, 0))
        self._states = states

    def counter(self, family: Counter, *labels: str) -> Counter:
        """Return one counter of the Model."""
        self._series.add((family, labels))
        return family.labels(*labels)

    def histogram(self, family: Histogram, *labels: str) -> Histogram:
        """Return one histogram of the Model."""
        self._series.add((family, labels))
        return family.labels(*labels)

    def remove(self) -> None:
        """Remove all counters and histograms, unless they are everybody's."""
        if self.is_named:
            for family, labels in self._series:
                family.remove(*labels)


def _reason(status: ModelStatus, type_: str) -> str:
    condition = find(status.conditions, type_)
    return condition.reason if condition else ""


class _Families:
    def __init__(self, registry: CollectorRegistry) -> None:
        model = ("model", "namespace")

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"flexinfer_{name}_total", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"flexinfer_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            name = f"flexinfer_model_{name}_seconds"
            labels = (*model, "backend", *labels)
            return Histogram(name, text, labels, buckets=_BUCKETS, registry=registry)

        self.phase = gauge("model_phase", "1 for the phase that the Model is in", *model, "phase")
        self.transitions = counter(
            "model_transitions",
            "Changes of the phase, by the reason of Ready afterwards",
            *(*model, "from", "to", "reason"),
        )
        self.cache_failures = counter(
            "model_cache_failures", "Jobs that failed to prepare the weights", *model, "reason"
        )
        self.cold_start = histogram(
            "cold_start_duration",
            "Time from a new pod of a Model that did not serve until it served",
            "cache_strategy",
        )
        self.ready_latency = histogram(
            "ready_latency",
            "Time for which pods were there and the Model did not serve, until it served",
        )
        self.swap = histogram(
            "swap_duration",
            "Time from getting the GPUs of a shared group from another Model until it served",
            "group",
        )
        self.group_state = gauge(
            "sharedgroup_state",
            "1 for the state of the Model in its shared group",
            *("group", *model, "state"),
        )
        self.preemptions = counter(
            "sharedgroup_preemptions",
            "Times that a Model lost the GPUs of its group to another one",
            *("group", "namespace", "from", "to"),
        )


_families = once_per_registry(_Families)
