# SPDX-License-Identifier: Apache-2.0
"""CustomResourceDefinitions in files, as generators write them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flexinfer.meta.envelope import Tree

__all__ = ["read_crds"]


def read_crds(paths: Iterable[str | Path]) -> list[Tree]:
    """Return the CustomResourceDefinitions of YAML files, and of the YAML files of folders.

    Raises ConfigurationError when there are none, OSError for what cannot be read.
    """
    files = [file for path in paths for file in _files(Path(path))]
    trees = [tree for file in files for tree in yaml.safe_load_all(file.read_text("utf-8"))]
    crds = [tree for tree in trees if tree and tree.get("kind") == "CustomResourceDefinition"]
    if not crds:
        names = ", ".join(str(path) for path in paths)
        raise ConfigurationError(f"no CustomResourceDefinition in {names}: generate them first")
    return crds


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(path.rglob("*.yaml"))
    else:
        yield path
