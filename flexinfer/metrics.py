# SPDX-License-Identifier: Apache-2.0
"""The process's registry of metrics, and the families that several modules share.

Names, labels and buckets are controller-runtime's where it has the metric, so that dashboards and
alerts written for it work unchanged; what it lacks (informers) is prefixed `flexinfer_`. No label
holds an object's name: series are bounded by the program, not by what the cluster holds.

A class here stands for the series of one controller, server or informer. It resolves them once,
and every series whose labels are known exists from the start with 0, so that a rate over the first
failure is right. Families exist once for each registry, however many such objects are made.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder

from flexinfer.tally import Counts, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from flexinfer.tally import Count, Durations

__all__ = [
    "REGISTRY",
    "Exposition",
    "InformerMetrics",
    "ReconcileMetrics",
    "Registry",
    "RestClientMetrics",
    "once_per_registry",
    "render",
]

_T = TypeVar("_T")

# controller-runtime's, pkg/internal/controller/metrics.
RECONCILE_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8),
    *(0.9, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50),
    60,
)
# Those of Kubernetes' own components, k8s.io/component-base/metrics/prometheus/restclient.
REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)


class Registry(CollectorRegistry):
    """Collect without the `_created` series.

    Go's client has none, and they would add a series to every counter and histogram.
    """

    def __init__(self) -> None:
        super().__init__(auto_describe=True)

    def collect(self) -> Iterator[Metric]:
        """Yield the families, each without its `_created` samples."""
        for metric in super().collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


REGISTRY = Registry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)


class Exposition(NamedTuple):
    """Be the answer to one scrape."""

    body: bytes
    content_type: str


def render(accept: str = "", *, registry: CollectorRegistry = REGISTRY) -> Exposition:
    """Write all metrics in the format that the scraper's `Accept` header asks for.

    Call it on the thread of the event loop: queues bring their delayed keys up to date here.
    """
    encode, content_type = choose_encoder(accept)
    return Exposition(encode(registry), content_type)


def once_per_registry(
    make: Callable[[CollectorRegistry], _T],
) -> Callable[[CollectorRegistry], _T]:
    """Decorate a function that registers families, so that each registry gets them once."""
    made: WeakKeyDictionary[CollectorRegistry, _T] = WeakKeyDictionary()

    @wraps(make)
    def families(registry: CollectorRegistry) -> _T:
        if registry not in made:
            made[registry] = make(registry)
        return made[registry]

    return families


class ReconcileMetrics:
    """Be the series of one controller.

    `success`, `error`, `requeue_after` are the results of `controller_runtime_reconcile_total`;
    an exception counts in `error` and in `errors`. `panics` counts what is a bug of the reconciler
    rather than a state of the world.
    """

    def __init__(self, controller: str, *, registry: CollectorRegistry = REGISTRY) -> None:
        families = _reconcile(registry)
        self.success = families.total.labels(controller, "success")
        self.error = families.total.labels(controller, "error")
        self.requeue_after = families.total.labels(controller, "requeue_after")
        # Deprecated by controller-runtime and never counted here, but dashboards sum over it.
        families.total.labels(controller, "requeue")
        self.errors = families.errors.labels(controller)
        self.terminal_errors = families.terminal_errors.labels(controller)
        self.panics = families.panics.labels(controller)
        self.timeouts = families.timeouts.labels(controller)
        self.time = families.time.labels(controller)
        self.max_concurrent = families.max_concurrent.labels(controller)
        self.active_workers = families.active_workers.labels(controller)


class RestClientMetrics:
    """Be the series of the requests to one API server; *host* is its `host:port`.

    `code` is the HTTP status as text, or `NO_ANSWER`. Series are made as codes are seen: there are
    only as many as HTTP has.
    """

    NO_ANSWER = "<error>"
    """The code that client-go gives to a request without an answer."""

    def __init__(self, host: str, *, registry: CollectorRegistry = REGISTRY) -> None:
        self._host = host
        self._families = _rest_client(registry)
        self._requests: dict[tuple[str, str], Count] = {}
        self._durations: dict[str, Durations] = {}
        self._waits: dict[str, Durations] = {}

    def answered(self, method: str, code: str, seconds: float) -> None:
        """Count one attempt, whose answer began after *seconds*."""
        request = self._requests.get((method, code))
        if request is None:
            request = self._families.requests.labels(code, method, self._host)
            self._requests[method, code] = request
        request.inc()
        duration = self._durations.get(method)
        if duration is None:
            duration = self._families.duration.labels(method, self._host)
            self._durations[method] = duration
        duration.observe(seconds)

    def waited(self, method: str, seconds: float) -> None:
        """Count one attempt that waited *seconds* for its turn, most often none."""
        wait = self._waits.get(method)
        if wait is None:
            wait = self._waits[method] = self._families.wait.labels(method, self._host)
        wait.observe(seconds)


class InformerMetrics:
    """Be the series of one informer.

    *resource* is its kind's `plural.group`; *selector* tells two informers of one kind apart.
    `last_event` is in seconds since the epoch, 0 before the first. Reasons and event types are
    words of the program.
    """

    def __init__(
        self, resource: str, *, selector: str = "", registry: CollectorRegistry = REGISTRY
    ) -> None:
        families = _informer(registry)
        self._families = families
        self._labels = (resource, selector)
        self.synced = families.synced.labels(resource, selector)
        self.objects = families.objects.labels(resource, selector)
        self.last_event = 0.0
        families.last_event.labels(resource, selector).set_function(lambda: self.last_event)
        self.unreadable_lines = families.unreadable_lines.labels(resource, selector)
        self._events: dict[str, Count] = {}

    def event(self, kind: str) -> Count:
        """Return the counter of the watch's events of one type, such as `MODIFIED`."""
        counter = self._events.get(kind)
        if counter is None:
            counter = self._events[kind] = self._families.events.labels(*self._labels, kind)
        return counter

    def callback_failed(self, callback: str) -> None:
        """Count one exception of a function given to the informer: `handler` or `index`."""
        self._families.callback_errors.labels(*self._labels, callback).inc()

    def relisted(self, reason: str) -> None:
        """Count one list after the first, and why it was needed."""
        self._families.relists.labels(*self._labels, reason).inc()

    def watch_restarted(self, reason: str) -> None:
        """Count one watch after the first, and why the one before it ended."""
        self._families.watch_restarts.labels(*self._labels, reason).inc()


class _Reconcile:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(
                f"controller_runtime_{name}_total", text, ["controller"], registry=registry
            )

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"controller_runtime_{name}", text, ["controller"], registry=registry)

        self.total = Counts(
            "controller_runtime_reconcile_total",
            "Reconciles, by result",
            ["controller", "result"],
            registry=registry,
        )
        self.errors = counter("reconcile_errors", "Reconciles that failed")
        self.terminal_errors = counter(
            "terminal_reconcile_errors", "Reconciles that failed and are not retried"
        )
        self.panics = counter("reconcile_panics", "Reconciles that failed by a bug")
        self.timeouts = counter("reconcile_timeouts", "Reconciles cancelled at their timeout")
        self.time = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconcile",
            ["controller"],
            bounds=RECONCILE_BUCKETS,
            registry=registry,
        )
        self.max_concurrent = gauge("max_concurrent_reconciles", "Number of workers")
        self.active_workers = gauge("active_workers", "Number of workers at work")


class _RestClient:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counts(
            "rest_client_requests_total",
            "Attempts of HTTP requests, by status code, method and host",
            ["code", "method", "host"],
            registry=registry,
        )
        self.wait = Histogram(
            "rest_client_rate_limiter_duration_seconds",
            "Time that an attempt waited for a connection, of which there are only so many",
            ["verb", "host"],
            bounds=REQUEST_BUCKETS,
            registry=registry,
        )
        self.duration = Histogram(
            "rest_client_request_duration_seconds",
            "Duration of one attempt, until its answer began or it failed",
            ["verb", "host"],
            bounds=REQUEST_BUCKETS,
            registry=registry,
        )


class _Informer:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            name = f"flexinfer_informer_{name}_total"
            return Counter(name, text, ["resource", "selector", *labels], registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            name = f"flexinfer_informer_{name}"
            return Gauge(name, text, ["resource", "selector"], registry=registry)

        self.synced = gauge("synced", "1 once the first list is in the store")
        self.objects = gauge("objects", "Number of objects in the store")
        self.last_event = gauge(
            "last_event_timestamp_seconds", "When the API server was last heard of, Unix time"
        )
        self.events = Counts(
            "flexinfer_informer_events_total",
            "Events of the watch, by type",
            ["resource", "selector", "type"],
            registry=registry,
        )
        self.relists = counter("relists", "Lists after the first, by reason", "reason")
        self.watch_restarts = counter(
            "watch_restarts", "Watches after the first, by the reason the last one ended", "reason"
        )
        self.callback_errors = counter(
            "callback_errors", "Exceptions of event handlers and index functions", "callback"
        )
        self.unreadable_lines = counter(
            "unreadable_lines",
            "Lines of the watch that could not be read, and were skipped",
        )


_reconcile = once_per_registry(_Reconcile)
_rest_client = once_per_registry(_RestClient)
_informer = once_per_registry(_Informer)
