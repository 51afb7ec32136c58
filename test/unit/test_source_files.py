# SPDX-License-Identifier: Apache-2.0
"""Every source file says under which licence it is, and no module has grown past its concept."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / line for line in listing.stdout.splitlines()]


@pytest.mark.parametrize("path", tracked("*.py", "*.sh"), ids=lambda path: str(path.name))
def test_the_licence_is_named_at_the_top(path: Path) -> None:
    assert any(
        "SPDX-License-Identifier: Apache-2.0" in line for line in path.open().readlines()[:2]
    )


@pytest.mark.parametrize(
    "path",
    tracked("flexinfer/*.py", "api/*.py", "controllers/*.py", "internal/*.py"),
    ids=lambda path: str(path.name),
)
def test_a_module_is_one_concept(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500
