# SPDX-License-Identifier: Apache-2.0
"""The shared families: their names, labels, buckets, and what a scrape returns."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flexinfer.metrics import (
    REGISTRY,
    InformerMetrics,
    ReconcileMetrics,
    Registry,
    RestClientMetrics,
    once_per_registry,
    render,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


@pytest.fixture
def registry() -> CollectorRegistry:
    return Registry()


def families(registry: CollectorRegistry) -> dict[str, tuple[str, set[str]]]:
    """Return type and labels of each family, without the bucket label."""
    text = render(registry=registry).body.decode()
    return {
        family.name: (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in text_string_to_metric_families(text)
    }


def test_reconcile_metrics_are_controller_runtimes(registry: CollectorRegistry) -> None:
    ReconcileMetrics("model", registry=registry)
    prefix = "controller_runtime_"
    assert families(registry) == {
        f"{prefix}reconcile": ("counter", {"controller", "result"}),
        f"{prefix}reconcile_errors": ("counter", {"controller"}),
        f"{prefix}terminal_reconcile_errors": ("counter", {"controller"}),
        f"{prefix}reconcile_panics": ("counter", {"controller"}),
        f"{prefix}reconcile_timeouts": ("counter", {"controller"}),
        f"{prefix}reconcile_time_seconds": ("histogram", {"controller"}),
        f"{prefix}max_concurrent_reconciles": ("gauge", {"controller"}),
        f"{prefix}active_workers": ("gauge", {"controller"}),
    }


def test_reconcile_series_exist_with_0_before_the_first_reconcile(
    registry: CollectorRegistry,
) -> None:
    metrics = ReconcileMetrics("model", registry=registry)
    for result in ("success", "error", "requeue", "requeue_after"):
        labels = {"controller": "model", "result": result}
        assert registry.get_sample_value("controller_runtime_reconcile_total", labels) == 0
    metrics.success.inc()
    metrics.errors.inc()
    metrics.time.observe(0.2)
    for name, labels in (
        ("reconcile_total", {"result": "success"}),
        ("reconcile_errors_total", {}),
        ("reconcile_time_seconds_count", {}),
    ):
        value = registry.get_sample_value(
            f"controller_runtime_{name}", {"controller": "model", **labels}
        )
        assert value == 1


def test_reconcile_time_has_controller_runtimes_buckets(registry: CollectorRegistry) -> None:
    ReconcileMetrics("model", registry=registry)
    bounds = [
        sample.labels["le"]
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "controller_runtime_reconcile_time_seconds_bucket"
    ]
    assert len(bounds) == 41
    assert bounds[:4] == ["0.005", "0.01", "0.025", "0.05"]
    assert bounds[-3:] == ["50.0", "60.0", "+Inf"]


def test_controllers_share_their_families(registry: CollectorRegistry) -> None:
    ReconcileMetrics("model", registry=registry).success.inc()
    ReconcileMetrics("cluster", registry=registry)
    ReconcileMetrics("model", registry=registry).success.inc()
    labels = {"controller": "model", "result": "success"}
    assert registry.get_sample_value("controller_runtime_reconcile_total", labels) == 2


def test_requests_are_counted_by_code_method_and_host(registry: CollectorRegistry) -> None:
    metrics = RestClientMetrics("10.0.0.1:443", registry=registry)
    metrics.answered("GET", "200", 0.02)
    metrics.answered("GET", "200", 0.03)
    metrics.answered("GET", RestClientMetrics.NO_ANSWER, 30.0)
    metrics.waited("GET", 0.5)
    metrics.waited("GET", 0.0)
    assert families(registry) == {
        "rest_client_requests": ("counter", {"code", "method", "host"}),
        "rest_client_request_duration_seconds": ("histogram", {"verb", "host"}),
        "rest_client_rate_limiter_duration_seconds": ("histogram", {"verb", "host"}),
    }
    host = "10.0.0.1:443"
    for name, labels, expected in (
        ("requests_total", {"code": "200", "method": "GET"}, 2),
        ("requests_total", {"code": "<error>", "method": "GET"}, 1),
        ("request_duration_seconds_count", {"verb": "GET"}, 3),
        ("rate_limiter_duration_seconds_count", {"verb": "GET"}, 2),
    ):
        value = registry.get_sample_value(f"rest_client_{name}", {"host": host, **labels})
        assert value == expected


def test_informers_are_told_apart_by_kind_and_selector(registry: CollectorRegistry) -> None:
    pods = InformerMetrics("pods", registry=registry)
    ours = InformerMetrics("pods", selector="app=x", registry=registry)
    pods.synced.set(1)
    pods.objects.set(5)
    pods.last_event = 1_700_000_000
    ours.event("ADDED").inc()
    ours.event("ADDED").inc(2)
    ours.relisted("expired")
    ours.watch_restarted("closed")
    ours.unreadable_lines.inc()
    ours.callback_failed("handler")
    plain = {"resource", "selector"}
    prefix = "flexinfer_informer_"
    assert families(registry) == {
        f"{prefix}synced": ("gauge", plain),
        f"{prefix}objects": ("gauge", plain),
        f"{prefix}last_event_timestamp_seconds": ("gauge", plain),
        f"{prefix}events": ("counter", plain | {"type"}),
        f"{prefix}relists": ("counter", plain | {"reason"}),
        f"{prefix}watch_restarts": ("counter", plain | {"reason"}),
        f"{prefix}unreadable_lines": ("counter", plain),
        f"{prefix}callback_errors": ("counter", plain | {"callback"}),
    }
    for selector, synced in (("", 1), ("app=x", 0)):
        labels = {"resource": "pods", "selector": selector}
        assert registry.get_sample_value(f"{prefix}synced", labels) == synced
    labels = {"resource": "pods", "selector": "app=x", "type": "ADDED"}
    assert registry.get_sample_value(f"{prefix}events_total", labels) == 3


@pytest.mark.parametrize(
    ("accept", "content_type", "end"),
    [
        ("", "text/plain; version=0.0.4", b"\n"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", b"# EOF\n"),
    ],
)
def test_a_scrape_gets_the_format_it_asks_for_without_created_series(
    registry: CollectorRegistry, accept: str, content_type: str, end: bytes
) -> None:
    ReconcileMetrics("model", registry=registry)
    RestClientMetrics("host", registry=registry).answered("GET", "200", 0.1)
    exposition = render(accept, registry=registry)
    assert exposition.content_type.startswith(content_type)
    assert exposition.body.endswith(end)
    assert b"_created" not in exposition.body


def test_the_process_registry_tells_of_the_process() -> None:
    text = render().body.decode()
    for name in ("process_cpu_seconds_total", "python_info", "python_gc_collections_total"):
        assert name in text
    assert render.__kwdefaults__ == {"registry": REGISTRY}


def test_families_are_made_once_and_go_with_their_registry() -> None:
    @once_per_registry
    def make(registry: CollectorRegistry) -> list[str]:
        return [type(registry).__name__]

    registry = Registry()
    assert make(registry) is make(registry)
    assert make(Registry()) is not make(registry)
    ReconcileMetrics("model", registry=registry)
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None
