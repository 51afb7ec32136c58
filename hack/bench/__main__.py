# SPDX-License-Identifier: Apache-2.0
"""`make bench`: measure, print the table, write `bench-results.json`."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import anyio

from flexinfer.envtest.controlplane import ControlPlane, Options
from hack.bench import fixture, measure, results

ROOT = Path(__file__).resolve().parents[2]
COUNT = 10_000
ROUNDS = 3


def main() -> None:
    """Run every work for `ROUNDS` rounds, in turn, against one API server."""
    with (
        tempfile.TemporaryDirectory(prefix="flexinfer-bench-") as scratch,
        ControlPlane.start(options=Options(kwok=False)) as plane,
    ):
        folder = Path(scratch)
        fixture.install(plane)
        plane.write_service_account(folder, fixture.NAMESPACE, fixture.SERVICE_ACCOUNT)
        print(f"==> Creating {COUNT} objects", flush=True)
        anyio.run(lambda: fixture.populate(folder, plane.url, count=COUNT))
        costs: dict[str, list[results.Cost]] = {"idle": [], "sync": []}
        for number in range(ROUNDS):
            for work, measured in costs.items():
                args = (work, str(folder), plane.url, str(COUNT))
                cost = measure.run("hack.bench.subject", *args)
                measured.append(cost)
                print(f"==> round {number + 1}, {work}: {cost.wall_s:.2f} s", flush=True)
    medians = {work: results.median(measured) for work, measured in costs.items()}
    rows = [results.row("sync", "flexinfer", COUNT, medians["sync"] - medians["idle"])]
    print(results.table(rows))
    output = ROOT / "bench-results.json"
    output.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    print(f"==> {output.name}")


main()
