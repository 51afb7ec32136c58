# SPDX-License-Identifier: Apache-2.0
"""`flexinfer fetch check`: whether the path of a claim holds anything to load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from internal.fetch.errors import HopelessError
from internal.fetch.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator


def fetch_check(source: str, path: Path) -> Outcome:
    """Count the files with content at or below *path*.

    Raises:
        HopelessError: *path* does not exist, or no file below it has a byte
    """
    if not path.exists():
        raise HopelessError(
            f"{source}: the claim has nothing at {path}; correct the path in spec.source"
        )
    sizes = [size for size in _sizes(path) if size]
    if not sizes:
        raise HopelessError(
            f"{source}: the claim has no file with content at {path}; put the weights there, "
            "or correct spec.source"
        )
    return Outcome(size=sum(sizes), files=len(sizes))


def _sizes(path: Path) -> Iterator[int]:
    if path.is_file():
        yield path.stat().st_size
    for folder, _, names in os.walk(path):  # what may not be read holds nothing for a server either
        yield from (file.stat().st_size for name in names if (file := Path(folder, name)).is_file())
