# SPDX-License-Identifier: Apache-2.0
"""Write the generated manifests, or check that they are fresh."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FRESH, DRIFTED, MISUSED = 0, 1, 2
_CURE = "run `make manifests` and commit the result"


def run(outputs: Mapping[str, str], *, output: Path = Path("config"), check: bool = False) -> int:
    """Write *outputs* below the folder *output*, or with *check* compare and change nothing.

    Args:
        outputs: What is generated: paths below *output* and their texts.
        output: The folder to write to.
        check: Only compare; every file that differs is printed with the head of a diff.

    Returns:
        0 when all is written or fresh, 1 when *check* found a difference, 2 when *output* cannot
        be used.
    """
    from flexinfer.crd import drift

    if check and not output.is_dir():
        print(f"{output} is no folder: name the one that holds the manifests", file=sys.stderr)
        return MISUSED
    try:
        if not check:
            for path in drift.write(outputs, output):
                print(f"{'wrote' if path.exists() else 'removed'} {path}")
            return FRESH
        drifted = drift.check(outputs, output)
    except (OSError, UnicodeDecodeError) as error:
        print(f"{output} cannot be used: {error}", file=sys.stderr)
        return MISUSED
    for found in drifted:
        print(found.diff, file=sys.stderr)
        print(f"{found.path} is not what would be generated: {_CURE}", file=sys.stderr)
    return DRIFTED if drifted else FRESH
