# SPDX-License-Identifier: Apache-2.0
"""`flexinfer manifests`: write what is generated from the types, or check that it is fresh."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FRESH, DRIFTED, MISUSED = 0, 1, 2
_CURE = "run `make manifests` and commit the result"
_CURE_OF_OTHERS = "run the same command without --check and commit the result"


def manifests(
    *,
    output: Path = Path(),
    check: bool = False,
    module: list[str] | None = None,
    role: str = "",
) -> int:
    """Write CRDs and roles, or exit 1 when --check finds a difference.

    With --module they are those of your own modules, which are looked for in the current folder
    too: a CRD for each kind, and a role of the RULES. Without it they are FlexInfer's own, with
    the API reference.

    Args:
        output: The folder to write to; without --module a checkout of FlexInfer
        check: Only compare, and show what differs
        module: A module of kinds and RULES; may be given several times
        role: The name of the ClusterRole; the first module's unless given
    """
    if module:
        return _manifests_of(module, role=role, output=output, check=check)
    if not (output / "config").is_dir():
        print(
            f"{output} is no checkout: name one with --output, or your modules with --module",
            file=sys.stderr,
        )
        return MISUSED
    return run(generated(), output=output, check=check)


def _manifests_of(names: list[str], *, role: str, output: Path, check: bool) -> int:
    from flexinfer.crd.modules import manifests_of
    from flexinfer.errors import ConfigurationError

    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    role = role or names[0].replace(".", "-").replace("_", "-")
    try:
        outputs = manifests_of([import_module(name) for name in names], role=role)
    except (ConfigurationError, ModuleNotFoundError) as error:
        print(f"flexinfer manifests: {error}", file=sys.stderr)
        return MISUSED
    return run(outputs, output=output, check=check, cure=_CURE_OF_OTHERS)


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


def run(outputs: Mapping[str, str], *, output: Path, check: bool = False, cure: str = _CURE) -> int:
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
        print(f"{found.path} is not what would be generated: {cure}", file=sys.stderr)
    return DRIFTED if drifted else FRESH
