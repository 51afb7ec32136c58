# SPDX-License-Identifier: Apache-2.0
"""Generated text to files, and files that are no longer what would be generated.

Outputs map a path below a folder to its text. In the folders of the outputs, a file that says it
was generated and is no output is stale: it is drift, and writing removes it.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from flexinfer.crd.document import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["Drift", "check", "write"]

_DIFF_LINES = 20


@dataclass(frozen=True, slots=True)
class Drift:
    """Be one file that differs; `diff` is the head of a unified diff toward what it should be."""

    path: Path
    diff: str


def check(outputs: Mapping[str, str], folder: Path) -> tuple[Drift, ...]:
    """Return what differs from *outputs* in *folder*; nothing is changed.

    Raises OSError when a file is there and cannot be read.
    """
    changed = (
        _drift(folder / name, text)
        for name, text in sorted(outputs.items())
        if _read(folder / name) != text
    )
    return (*changed, *(_drift(path, None) for path in _stale(outputs, folder)))


def write(outputs: Mapping[str, str], folder: Path) -> tuple[Path, ...]:
    """Make *folder* hold *outputs* and no stale file; return the paths that changed.

    Files that are right are not touched. Raises OSError when a file cannot be written.
    """
    changed = []
    for drift in check(outputs, folder):
        text = outputs.get(drift.path.relative_to(folder).as_posix())
        if text is None:
            drift.path.unlink()
        else:
            drift.path.parent.mkdir(parents=True, exist_ok=True)
            drift.path.write_text(text, encoding="utf-8")
        changed.append(drift.path)
    return tuple(changed)


def _stale(outputs: Mapping[str, str], folder: Path) -> Iterator[Path]:
    wanted = {folder / name for name in outputs}
    for parent in sorted({path.parent for path in wanted}):
        for path in sorted(parent.glob("*")):
            if path not in wanted and path.is_file() and _says_generated(path):
                yield path


def _says_generated(path: Path) -> bool:
    with path.open("rb") as file:
        return HEADER.encode() in file.readline(len(HEADER) * 2)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _drift(path: Path, text: str | None) -> Drift:
    old, new = ((version or "").splitlines(keepends=True) for version in (_read(path), text))
    lines = difflib.unified_diff(old, new, f"{path}", f"{path} (generated)")
    return Drift(path, "".join(islice(lines, _DIFF_LINES)))
