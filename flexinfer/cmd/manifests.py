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


def manifests(
    *,
    output: Path = Path("config"),
    reference: Path = Path("docs/reference"),
    check: bool = False,
) -> int:
    """Write CRDs, roles and the API reference, or check that they are fresh.

    Exits 0 when all is written or fresh, 1 when the check found a difference, 2 on misuse.

    Args:
        output: The folder of the manifests.
        reference: The folder of the API reference.
        check: Change nothing; print each file that differs with the head of a diff.
    """
    results = (
        run(manifest_texts(), output=output, check=check),
        run(reference_texts(), output=reference, check=check),
    )
    return max(results)


def manifest_texts() -> dict[str, str]:
    """Return the paths below `config` of all generated manifests, and their texts."""
    from api.flexinfer.v1alpha2.model_types import Model
    from controllers.model.rights import RULES
    from flexinfer.crd.document import render
    from flexinfer.crd.generate import crd_for
    from flexinfer.crd.rbac import cluster_role

    return {
        "crd/bases/ai.flexinfer_models.yaml": render(crd_for(Model)),
        "rbac/role.yaml": render(cluster_role("manager-role", RULES)),
    }


def reference_texts() -> dict[str, str]:
    """Return the paths below `docs/reference` of all generated pages, and their texts."""
    from api.flexinfer.v1alpha2.model_types import Model
    from flexinfer.crd.reference import reference_for

    return {"model.md": reference_for(Model)}


def run(outputs: Mapping[str, str], *, output: Path, check: bool = False) -> int:
    """Write *outputs* below the folder *output*, or with *check* compare and change nothing.

    Returns FRESH when all is written or fresh, DRIFTED when *check* found a difference, MISUSED
    when *output* cannot be used.
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
