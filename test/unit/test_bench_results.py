# SPDX-License-Identifier: Apache-2.0
"""What the benchmark makes of its figures: medians, ratios, marginal costs, tables, the page."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from flexinfer.errors import FlexInferError
from hack.bench import report, results, tables
from hack.bench.results import Cost, Row

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.meta.envelope import Tree

PEERS = {"ours": "flexinfer", "reference": "controller-runtime"}


def row(
    work: str, subject: str, n: int = 10, *, wall: float = 1, cpu: float = 1, rss: float = 9
) -> Row:
    return Row(work, subject, n, Cost(wall, cpu, rss, rss - 8))


def test_the_median_is_of_each_figure_for_itself() -> None:
    costs = [Cost(1, 30, 5, 2), Cost(2, 10, 7, 1), Cost(3, 20, 6, 3)]
    assert results.median(costs) == Cost(2, 20, 6, 2)


def test_rows_of_the_same_work_subject_and_size_become_one() -> None:
    rows = [row("sync", "kopf", 1, cpu=cpu) for cpu in (3, 1, 2)]
    rows.insert(1, row("sync", "kopf", 2, cpu=9))
    assert results.medians(rows) == [row("sync", "kopf", 1, cpu=2), row("sync", "kopf", 2, cpu=9)]


def test_a_row_says_what_was_measured() -> None:
    assert row("watch", "kopf", 20_000, wall=8, cpu=2).tree() == {
        "work": "watch",
        "subject": "kopf",
        "n": 20_000,
        "wall_s": 8,
        "cpu_s": 2,
        "rss_mib": 9,
        "rss_above_ready_mib": 1,
        "events_per_s": 2500,
    }


def test_ratios_are_ours_to_the_peers_with_the_goal_beside_that_of_the_reference() -> None:
    rows = [
        row("reconcile", "flexinfer", wall=2, cpu=1, rss=60),
        row("reconcile", "controller-runtime", wall=4, cpu=4, rss=50),
        row("reconcile", "kopf", wall=8, cpu=8, rss=120),
    ]
    assert results.ratios(rows, **PEERS) == [
        {"work": "reconcile", "metric": "wall", "ratio": 0.5, "goal": 0.7},
        {"work": "reconcile", "metric": "cpu", "ratio": 0.25, "goal": 0.5},
        {"work": "reconcile", "metric": "rss", "ratio": 1.2, "goal": 1.2},
        {"work": "reconcile", "metric": "wall", "peer": "kopf", "peer_ratio": 0.25},
        {"work": "reconcile", "metric": "cpu", "peer": "kopf", "peer_ratio": 0.125},
        {"work": "reconcile", "metric": "rss", "peer": "kopf", "peer_ratio": 0.5},
    ]


def test_the_memory_of_a_sync_is_that_above_the_process_before_it() -> None:
    rows = [row("sync", "flexinfer", rss=10), row("sync", "controller-runtime", rss=12)]
    (found,) = (r for r in results.ratios(rows, **PEERS) if r["metric"] == "rss")
    assert found["ratio"] == 0.5


def test_what_is_up_to_the_harness_is_not_compared() -> None:
    rows = [row(w, s) for w in ("watch", "idle") for s in PEERS.values()]
    found = results.ratios(rows, **PEERS)
    assert [(r["work"], r["metric"]) for r in found] == [
        ("watch", "cpu"),
        ("watch", "rss"),
        ("idle", "cpu"),
        ("idle", "rss"),
    ]


def test_a_work_without_us_and_a_peer_that_took_nothing_give_no_number() -> None:
    assert results.ratios([row("sync", "kopf")], **PEERS) == []
    idle = [row("idle", "flexinfer"), row("idle", "controller-runtime", cpu=0)]
    assert results.ratios(idle, **PEERS)[0]["ratio"] is None


def test_every_goal_is_of_something_that_is_compared() -> None:
    for work, metric in results.GOALS:
        assert metric in results.compared(work)


def test_marginal_costs_are_between_neighbouring_sizes_in_any_order() -> None:
    rows = [
        row("sync", "ours", 100, cpu=0.0012, rss=10 + 300 / 1024),
        row("sync", "ours", 10, cpu=0.0001, rss=10),
        row("sync", "ours", 20, cpu=0.0002, rss=10 + 20 / 1024),
    ]
    cpu, cpu_after, rss, rss_after = results.marginals(rows)
    assert (cpu["metric"], cpu["from_n"], cpu["to_n"]) == ("cpu_us", 10, 20)
    assert (cpu["per_object"], cpu["growth"], cpu["within"]) == (10, None, None)
    assert (cpu_after["per_object"], cpu_after["growth"]) == (12.5, 1.25)
    assert cpu_after["within"] is False
    assert (rss["metric"], rss["per_object"]) == ("rss_kib", 2)
    assert (rss_after["per_object"], rss_after["growth"], rss_after["within"]) == (3.5, 1.75, False)


def test_cheaper_with_size_is_within_and_a_size_that_cost_nothing_gives_no_growth() -> None:
    cheaper = [row("sync", "ours", n, cpu=math.sqrt(n)) for n in (1, 4, 9)]
    assert results.marginals(cheaper)[1]["within"] is True
    flat = [row("sync", "ours", n, cpu=1) for n in (1, 4, 9)]
    assert results.marginals(flat)[1]["growth"] is None


def test_tables_show_every_row_and_who_missed_a_goal() -> None:
    no_memory = Row("help", "flexinfer", 1, Cost(1, 1, 0, 0))
    rows = [row("sync", "flexinfer", 10_000), row("idle", "flexinfer"), no_memory]
    shown = tables.measured([r.tree() for r in rows]).splitlines()
    assert len(shown) == 5
    assert "10,000" in shown[2]
    assert "rss_mib" not in no_memory.tree()
    found: list[Tree] = [
        {"work": "sync", "metric": "cpu", "ratio": 0.1, "goal": 0.2},
        {"work": "sync", "metric": "wall", "ratio": 0.6, "goal": 0.5},
        {"work": "sync", "metric": "rss", "peer": "kopf", "peer_ratio": 0.3},
    ]
    good, missed, other = tables.ratios(found, reference="go").splitlines()[2:]
    assert [c.strip() for c in good.split("|")[3:-1]] == ["go", "0.10", "≤ 0.2", "yes"]
    assert [c.strip() for c in missed.split("|")[3:-1]] == ["go", "0.60", "≤ 0.5", "**no**"]
    assert [c.strip() for c in other.split("|")[3:-1]] == ["kopf", "0.30", "-", "-"]


def test_marginal_costs_are_shown_with_their_verdict() -> None:
    rows = [row("sync", "ours", n, cpu=n * n) for n in (1, 2, 3)]
    shown = tables.marginals(results.marginals(rows))
    assert "**no**" in shown.splitlines()[3]


def test_only_what_is_between_the_markers_is_replaced() -> None:
    page = "a\n<!-- bench: begin -->\nold\n<!-- bench: end -->\nb\n"
    once = report.between_markers(page, "bench", "new")
    assert once == "a\n<!-- bench: begin -->\n\nnew\n\n<!-- bench: end -->\nb\n"
    assert report.between_markers(once, "bench", "new") == once
    with pytest.raises(FlexInferError, match="growth: begin"):
        report.between_markers(page, "growth", "new")


def test_the_page_has_the_markers() -> None:
    page = report.PAGE.read_text()
    for name in ("bench", "growth"):
        assert report.between_markers(page, name, "x") != page


def test_one_run_keeps_what_the_other_wrote(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    report.merge(file, {"rows": [1]})
    report.merge(file, {"growth": [2]})
    assert report.merge(file, {"rows": [3]}) == {"rows": [3], "growth": [2]}
    assert json.loads(file.read_text()) == {"rows": [3], "growth": [2]}
