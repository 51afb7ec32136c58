# SPDX-License-Identifier: Apache-2.0
"""`make bench` and `make bench-growth`: measure, print the tables, write them down."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.envtest.controlplane import ControlPlane, Options
from flexinfer.errors import FlexInferError
from hack.bench import fixture, growth, idle, peers, report, results, works
from hack.bench.works import World, in_turn, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flexinfer.meta.envelope import Tree
    from hack.bench.results import Row

_TERMINATED = 128 + signal.SIGTERM
WORKS = ("sync", "reconcile", "watch", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything."""

    rounds: int = 3
    sync: int = 10_000
    reconcile: int = 2_000
    watch: int = 1_000
    models: int = 1_000
    quiet: float = idle.QUIET_SECONDS
    growth_reconcile: tuple[int, ...] = growth.RECONCILE
    growth_sync: tuple[int, ...] = growth.SYNC


QUICK = Sizes(
    rounds=1,
    sync=500,
    reconcile=200,
    watch=100,
    models=50,
    quiet=3.0,
    growth_reconcile=(50, 100, 200),
    growth_sync=(100, 300, 1000),
)


@contextmanager
def world() -> Iterator[World]:
    """Run the API server that everything is measured on, with nothing beside it."""
    # No audit log, and deletes between runs that do not take longer than the runs.
    flags = ("--audit-log-path=", "--delete-collection-workers=16")
    options = Options(kwok=False, apiserver_flags=flags)
    with (
        tempfile.TemporaryDirectory(prefix="flexinfer-bench-") as scratch,
        ControlPlane.start(options=options) as plane,
    ):
        for component in ("kube-scheduler", "kube-controller-manager"):
            plane.processes.stop(component)
        folder = Path(scratch, "subject")
        fixture.install(plane)
        plane.write_service_account(folder, fixture.NAMESPACE, fixture.SERVICE_ACCOUNT)
        yield World(plane, folder)


def bench(at: World, sizes: Sizes, chosen: Sequence[str]) -> list[Row]:
    """Measure the chosen works, every subject in turn in each round."""
    ours, go = peers.ours(), peers.controller_runtime()
    both, rounds = [ours, go], sizes.rounds
    everyone = [*both, peers.kopf()]
    found: list[Row] = []
    if "sync" in chosen:
        say(f"Creating {sizes.sync} objects")
        at.renew(sizes.sync)
        found += in_turn(at, works.sync, both, sizes.sync, rounds=rounds)
    if "reconcile" in chosen:
        found += in_turn(at, works.reconcile, everyone, sizes.reconcile, rounds=rounds)
    if "watch" in chosen:
        found += in_turn(at, works.watch, everyone, sizes.watch, rounds=rounds)
    if "idle" in chosen:
        fixture.clear(at.plane)
        with idle.managers(at, ours, sizes.models) as managers:
            found += idle.rows(managers, both, rounds=rounds, seconds=sizes.quiet)
        found += idle.help_rows(3 * rounds)
    return found


def grow(at: World, sizes: Sizes) -> list[Row]:
    """Measure ours and the Go peer at every size."""
    subjects = [peers.ours(), peers.controller_runtime()]
    return growth.rows(
        at,
        subjects,
        reconcile=sizes.growth_reconcile,
        sync=sizes.growth_sync,
        rounds=sizes.rounds,
    )


def outcome(at: World, options: argparse.Namespace) -> Tree:
    """Measure, and return the part of the results that this is."""
    sizes = QUICK if options.quick else Sizes()
    if options.rounds:
        sizes = replace(sizes, rounds=options.rounds)
    if options.growth:
        rows = grow(at, sizes)
        found = [*(row.tree() for row in rows), *results.marginals(rows)]
        return {"growth_facts": report.facts(at.plane), "growth": found}
    rows = bench(at, sizes, options.only or WORKS)
    ratios = results.ratios(rows, ours=peers.OURS, reference=peers.GO)
    return {"facts": report.facts(at.plane), "rows": [*(row.tree() for row in rows), *ratios]}


def write(part: Tree, options: argparse.Namespace) -> None:
    """Print the tables, and write down those of a whole run at full size."""
    name = "growth" if options.growth else "bench"
    section = report.growth_section if options.growth else report.bench_section
    print(f"\n{section(part)}\n")
    if options.quick or options.only or options.rounds:
        say("Not written down: this was not a whole run")
        return
    report.merge(report.RESULTS, part)
    page = report.PAGE.read_text()
    report.PAGE.write_text(report.between_markers(page, name, section(part)))
    say(f"Wrote {report.RESULTS.name} and {report.PAGE.relative_to(peers.ROOT)}")


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench", description=__doc__)
    parser.add_argument("--growth", action="store_true", help="three sizes instead of peers")
    parser.add_argument("--quick", action="store_true", help="small numbers, to try it")
    parser.add_argument("--rounds", type=int, help="so many, not three")
    parser.add_argument("--only", action="append", choices=WORKS, help="this work, not all")
    options = parser.parse_args()
    began = time.monotonic()
    # As Ctrl-C does: what was started is ended, and what was written is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    try:
        with world() as at:
            part = outcome(at, options)
        write(part, options)
    except FlexInferError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    say(f"Took {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
