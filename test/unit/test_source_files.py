# SPDX-License-Identifier: Apache-2.0
"""Every source file says under which licence it is, and no module has grown past its concept."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPDX = "SPDX-License-Identifier: Apache-2.0"
LONGEST = 500


def lines_of(*patterns: str) -> dict[str, list[str]]:
    """The lines of the tracked files that match."""
    listing = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [name for name in listing.stdout.splitlines() if (ROOT / name).exists()]
    assert names, f"git lists no {patterns}"
    return {name: (ROOT / name).read_text().splitlines() for name in names}


def test_every_source_file_names_its_licence_at_the_top() -> None:
    files = lines_of("*.py", "*.sh", ".ci/run", "Makefile", "Dockerfile")
    assert [name for name, lines in files.items() if SPDX not in "".join(lines[:2])] == []


def test_every_module_is_one_concept() -> None:
    files = lines_of("flexinfer/*.py", "api/*.py", "controllers/*.py", "internal/*.py")
    assert {name: len(lines) for name, lines in files.items() if len(lines) > LONGEST} == {}
