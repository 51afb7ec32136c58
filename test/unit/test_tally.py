# SPDX-License-Identifier: Apache-2.0
"""What is counted in plain numbers reads at a scrape as if prometheus_client had counted it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.metrics import RECONCILE_BUCKETS, REQUEST_BUCKETS, Registry, render
from flexinfer.tally import Counts, Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence

BOUNDS = st.sampled_from([RECONCILE_BUCKETS, REQUEST_BUCKETS, (1e-8, 1e-7, 1000.0)])
SECONDS = st.one_of(
    st.floats(0, 100), st.sampled_from([*RECONCILE_BUCKETS, 1e-8, math.inf, -1.0, 0])
)


def written(registry: Registry, accept: str = "") -> bytes:
    return render(accept, registry=registry).body


@given(BOUNDS, st.lists(st.tuples(st.sampled_from("ab"), SECONDS)))
def test_a_histogram_reads_like_prometheus_clients(
    bounds: Sequence[float], observed: list[tuple[str, float]]
) -> None:
    ours, theirs = Registry(), Registry()
    one = Histogram("wait_seconds", "A wait", ["who"], bounds=bounds, registry=ours)
    other = prometheus_client.Histogram(
        "wait_seconds", "A wait", ["who"], buckets=bounds, registry=theirs
    )
    for who, seconds in observed:
        one.labels(who).observe(seconds)
        other.labels(who).observe(seconds)
    assert written(ours) == written(theirs)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5))))
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_a_counter_reads_like_prometheus_clients(
    accept: str, counted: list[tuple[str, int]]
) -> None:
    ours, theirs = Registry(), Registry()
    one = Counts("runs_total", "Runs", ["of"], registry=ours)
    other = prometheus_client.Counter("runs_total", "Runs", ["of"], registry=theirs)
    for of, amount in counted:
        one.labels(of).inc(amount)
        other.labels(of).inc(amount)
    assert written(ours, accept) == written(theirs, accept)


def test_a_series_has_a_value_for_each_label() -> None:
    counts = Counts("runs_total", "Runs", ["of", "by"], registry=Registry())
    for values in ((), ("a",), ("a", "b", "c")):
        with pytest.raises(ValueError, match="runs_total has the labels"):
            counts.labels(*values)


def test_a_name_is_taken_once() -> None:
    registry = Registry()
    Counts("runs_total", "Runs", ["of"], registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Counts("runs_total", "Runs", ["of"], registry=registry)
