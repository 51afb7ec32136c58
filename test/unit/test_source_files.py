# SPDX-License-Identifier: Apache-2.0
"""Files name their licence, modules stay with one concept, packages say what is in them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[2]
SPECIAL = {"__init__", "__main__"}
SPDX = "SPDX-License-Identifier: Apache-2.0"
LONGEST = 410  # the spec of a Model, which is mostly what `kubectl explain` says


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


def test_reading_a_packages_docstring_is_reading_what_is_in_it() -> None:
    files = lines_of("flexinfer/*.py", "controllers/*.py", "internal/*.py", "hack/*.py")
    packages = {str(PurePath(name).parent) for name in files if name.endswith("/__init__.py")}
    inside = [PurePath(name) for name in files if PurePath(name).stem not in SPECIAL]
    inside += [PurePath(package) for package in packages if "/" in package]
    missing = [
        str(path)
        for path in sorted(inside)
        if str(path.parent) in packages
        and not named(path.stem, "\n".join(files[f"{path.parent}/__init__.py"]))
    ]
    assert missing == []
    listed = {
        f"{package}/{name}"
        for package in packages
        for line in files[f"{package}/__init__.py"]
        if (item := re.match(r"- ((`\w+`(, )?)+):", line))
        for name in re.findall(r"\w+", item[1])
    }
    assert listed - {str(path.with_suffix("")) for path in inside} == set()


def named(module: str, text: str) -> bool:
    """Tell whether a docstring names a module: `this`, or all that begin alike: `cache_*`."""
    stars = re.findall(r"`(\w+)\*`", text)
    return f"`{module}`" in text or any(module.startswith(star) for star in stars)
