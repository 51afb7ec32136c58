# SPDX-License-Identifier: Apache-2.0
"""Write `bench-results.json`, and the tables of `docs/performance.md` between their markers."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.errors import FlexInferError
from hack.bench import tables
from hack.bench.peers import GO, KOPF, OURS, ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree

RESULTS = ROOT / "bench-results.json"
PAGE = ROOT / "docs" / "performance.md"
_GIB = 1 << 30
_GO_VERSION = r"controller-runtime v(\S+)"
_KOPF_VERSION = r"(?m)^kopf==([^ ;]+)"


def facts(plane: ControlPlane) -> dict[str, str]:
    """Return on what, with what and when was measured."""
    go_mod = (ROOT / "hack/bench/peer/go.mod").read_text()
    locked = (ROOT / "requirements/bench.txt").read_text()
    python = f"on Python {platform.python_version()}"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": _machine(),
        "Kubernetes": str(plane.admin.get("/version")["gitVersion"]),
        OURS: f"{version('flexinfer')} {python}",
        GO: f"{_found(_GO_VERSION, go_mod)} with {_go()}",
        KOPF: f"{_found(_KOPF_VERSION, locked)} {python}",
    }


def _machine() -> str:
    processor = _found(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {processor}, {memory:.0f} GiB, Linux {platform.release()}"


def _go() -> str:
    answer = subprocess.run(
        ["go", "env", "GOVERSION"], capture_output=True, text=True, timeout=30, check=True
    )
    return answer.stdout.strip()


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1].strip() if found else "unknown"


def merge(path: Path, part: Mapping[str, object]) -> Tree:
    """Replace *part* of the results in the file, keep the rest, and return all."""
    results: Tree = json.loads(path.read_text()) if path.exists() else {}
    results.update(part)
    path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    return results


def bench_section(results: Tree) -> str:
    """Return the tables of `make bench`."""
    rows = results["rows"]
    return "\n\n".join(
        [
            tables.ratios([row for row in rows if "metric" in row], reference=GO),
            tables.measured([row for row in rows if "subject" in row]),
            tables.facts(results["facts"]),
        ]
    )


def growth_section(results: Tree) -> str:
    """Return the tables of `make bench-growth`."""
    rows = results["growth"]
    return "\n\n".join(
        [
            tables.marginals([row for row in rows if "metric" in row]),
            tables.measured([row for row in rows if "metric" not in row]),
            tables.facts(results["growth_facts"]),
        ]
    )


def between_markers(page: str, name: str, text: str) -> str:
    """Return *page* with *text* between its markers of that name; FlexInferError without them."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, found, rest = page.partition(begin)
    _, also_found, tail = rest.partition(end)
    if not found or not also_found:
        raise FlexInferError(f"the page has no markers {begin} and {end}: put them back")
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"
