# SPDX-License-Identifier: Apache-2.0
"""Ties an informer to a queue: event -> predicate -> handler -> requests.

Runs inside the informer's loop, so nothing here waits. A predicate that raises lets the event
pass, and a handler that raises loses only this event: both are counted and logged, and the
informer goes on.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import Counter

from flexinfer import log
from flexinfer.event import CreateEvent, DeleteEvent, Event, UpdateEvent
from flexinfer.handler import priority_of
from flexinfer.metrics import REGISTRY, once_per_registry
from flexinfer.predicate import Predicate, admits
from flexinfer.tally import Counts

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from flexinfer.cache.informer import Informer
    from flexinfer.handler import Handler
    from flexinfer.meta.envelope import ObjectMeta, StoredObject
    from flexinfer.reconcile import Request
    from flexinfer.workqueue import WorkQueue

__all__ = ["Reasons", "Source"]

_log = log.get_logger(__name__)

_MAX_REASONS = 10_000  # keys, some 3 MB; nobody reads the reasons of a longer queue

_VERBS = {CreateEvent: "create", UpdateEvent: "update", DeleteEvent: "delete"}


class Reason:
    """Say why a key is reconciled, such as `update of pods default/web`, when somebody reads it."""

    __slots__ = ("_kind", "_meta", "_verb")

    def __init__(self, verb: str, kind: str, meta: ObjectMeta) -> None:
        self._verb, self._kind, self._meta = verb, kind, meta

    def __repr__(self) -> str:
        return f"{self._verb} of {self._kind} {self._meta.key}"


class Reasons:
    """Remember which event enqueued a key, until the key is reconciled.

    Keeps the first event of each waiting key, and of at most 10,000 keys.
    """

    def __init__(self) -> None:
        self._first: dict[Request, Reason] = {}

    def __len__(self) -> int:
        return len(self._first)

    def note(self, request: Request, kind: str, event: Event) -> None:
        """Remember that *event*, of an object of *kind*, enqueued *request*."""
        if len(self._first) < _MAX_REASONS:
            seen = event.object if isinstance(event, DeleteEvent) else _seen(event)
            self._first.setdefault(request, Reason(_VERBS[type(event)], kind, seen.meta))

    def take(self, request: Request) -> Reason | str:
        """Forget the reason of *request* and return it, `requeue` when no event was."""
        return self._first.pop(request, "requeue")


class Source:
    """Feed the queue of one controller from one informer.

    `handler` says whom an event concerns, `predicate` which events are worth it (None: all). With
    *echoes* False a name is not queued for the very state that its own reconcile wrote.
    """

    def __init__(
        self,
        informer: Informer,
        handler: Handler,
        *,
        predicate: Predicate | None = None,
        echoes: bool = True,
    ) -> None:
        self._informer = informer
        self._handler = handler
        self._predicate = predicate
        self._echoes = echoes

    def start(
        self,
        queue: WorkQueue[Request],
        *,
        controller: str,
        reasons: Reasons,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """Begin to enqueue; what the informer holds already arrives as creates."""
        metrics = _families(registry)
        filtered = metrics.filtered.labels(controller)
        failures = _Failures(controller, self._informer, metrics.failed)
        kind = str(self._informer.resource)
        feed = _Feed(queue, controller=controller, kind=kind, reasons=reasons)

        def on_event(event: Event) -> None:
            try:
                if not admits(self._predicate, event):
                    filtered.inc()
                    return
            except Exception as error:  # noqa: BLE001 - better a reconcile too many than one too few
                failures.note("predicate", error)
            try:
                requests = dict.fromkeys(self._handler(event))
            except Exception as error:  # noqa: BLE001 - the author's code must not end the informer
                failures.note("handler", error)
                return
            for request in requests:
                if self._echoes or isinstance(event, DeleteEvent):
                    feed.add(request, event)
                else:
                    feed.add_news(request, event)

        if not self._echoes:
            self._informer.under_way.is_asked = True
        self._informer.add_handler(on_event)


class _Feed:
    """Queue names for one controller, each with why."""

    def __init__(
        self, queue: WorkQueue[Request], *, controller: str, kind: str, reasons: Reasons
    ) -> None:
        self._queue = queue
        self._controller = controller
        self._kind = kind
        self._reasons = reasons

    def add(self, request: Request, event: Event) -> None:
        self._reasons.note(request, self._kind, event)
        self._queue.add(request, priority=priority_of(event))

    def add_news(self, request: Request, event: CreateEvent | UpdateEvent) -> None:
        """Queue a name unless its own reconcile wrote the state.

        That may be what a write of it that is under way turns out to have done: then the name is
        being reconciled, and nothing is lost by waiting for the answer.
        """
        if event.echo_of is not None and event.echo_of.is_of(self._controller, request):
            return
        for write in event.under_way:
            if write.run.is_of(self._controller, request):
                write.when_ended(partial(self._add_unless_answered, request, event))
                return
        self.add(request, event)

    def _add_unless_answered(
        self, request: Request, event: CreateEvent | UpdateEvent, answer: StoredObject | None
    ) -> None:
        if answer is None or not answer.is_of(_seen(event).meta):
            self.add(request, event)


def _seen(event: CreateEvent | UpdateEvent) -> StoredObject:
    return event.new if isinstance(event, UpdateEvent) else event.object


class _Failures:
    """Count what the author's functions raise, and log the first of each minute."""

    def __init__(self, controller: str, informer: Informer, counter: Counter) -> None:
        self._controller = controller
        self._selection = str(informer.selection)
        self._burst = log.Burst(time.monotonic)
        self._counts = {what: counter.labels(controller, what) for what in ("predicate", "handler")}

    def note(self, what: str, error: Exception) -> None:
        self._counts[what].inc()
        if self._burst.admit():
            _log.error(
                "a predicate or handler raised",
                what=what,
                controller=self._controller,
                selection=self._selection,
                left_out=self._burst.take_suppressed(),
                exc_info=error,
            )


class _Families(NamedTuple):
    filtered: Counts
    failed: Counter


@once_per_registry
def _families(registry: CollectorRegistry) -> _Families:
    return _Families(
        filtered=Counts(
            "flexinfer_events_filtered_total",
            "Events that a predicate kept from a controller",
            ["controller"],
            registry=registry,
        ),
        failed=Counter(
            "flexinfer_event_failures_total",
            "Events at which a predicate or a handler of a controller raised",
            ["controller", "what"],
            registry=registry,
        ),
    )
