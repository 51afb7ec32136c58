# SPDX-License-Identifier: Apache-2.0
"""`flexinfer manifests`: write what is generated from the types, or check that it is fresh."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FRESH, DRIFTED, MISUSED = 0, 1, 2
_CURE = "run `make manifests` and commit the result"


def manifests(*, output: Path = Path(), check: bool = False) -> int:
    """Write CRDs, roles and the API reference; exit 1 when --check finds a difference.

    Args:
        output: The checkout to write to
        check: Only compare, and show what differs
    """
    if not (output / "config").is_dir():
        print(f"{output} is no checkout: name one with --output", file=sys.stderr)
        return MISUSED
    return run(generated(), output=output, check=check)


def generated() -> dict[str, str]:
    """Return every generated file of the checkout: its path and its text."""
    from api.flexinfer.v1alpha2.model_types import Model
    from api.flexinfer.v1alpha2.reasons import MEANINGS
    from controllers.model import RULES
    from flexinfer.crd import document, generate, rbac, reference

    return {
        "config/crd/bases/ai.flexinfer_models.yaml": document.render(generate.crd_for(Model)),
        "config/rbac/role.yaml": document.render(rbac.cluster_role("manager-role", RULES)),
        "docs/reference/model.md": reference.reference_for(Model, reasons=MEANINGS),
    }


def run(outputs: Mapping[str, str], *, output: Path, check: bool = False) -> int:
    """Write *outputs* below the folder *output*, or with *check* compare and change nothing.

    Returns 0 when all is written or fresh, 1 when *check* found a difference, 2 when *output*
    cannot be used.
    """
    from flexinfer.crd import drift

    if check and not output.is_dir():
        print(f"{output} is no folder: name the one that holds what was generated", file=sys.stderr)
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
