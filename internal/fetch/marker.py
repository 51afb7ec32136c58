# SPDX-License-Identifier: Apache-2.0
"""The record of what a directory holds: whether it is whole, and of which source.

Two files have this form. The marker is written last and says that all its files are there; the
plan is written first and says which fetch the files belong to that are there already.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from internal.fetch.errors import HopelessError
from internal.fetch.paths import check_name, regular_size, sync

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MARKER = ".flexinfer_cached"
PLAN = ".flexinfer_fetching"

DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Say what was asked for; directories of different identities share no file.

    Patterns are normalized ones.
    """

    source: str
    revision: str = ""
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Be what a marker or a plan says; `files` has the bytes of each file by its name.

    `commit` is the one that `revision` meant at the time, and empty for a copy.
    """

    identity: Identity
    commit: str = ""
    files: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Return the bytes of all files."""
        return sum(self.files.values())

    def holds(self, root: Path) -> bool:
        """Tell whether every file is below *root* with its size; contents are not read."""
        return all(regular_size(root / name) == size for name, size in self.files.items())


def write(path: Path, record: Record) -> None:
    """Put *record* at *path* at once and for good: a reader meets it whole or not at all."""
    identity = record.identity
    text = json.dumps(
        {
            "source": identity.source,
            "revision": identity.revision,
            "commit": record.commit,
            "allow": identity.allow,
            "ignore": identity.ignore,
            "bytes": record.total,
            "files": record.files,
        },
        indent=1,
    )
    beside = path.with_name(f"{path.name}.new")
    with beside.open("w", encoding="utf-8") as content:
        content.write(text)
        content.flush()
        os.fsync(content.fileno())
    beside.replace(path)
    sync(path.parent)


def read(path: Path) -> Record | None:
    """Return the record at *path*; None when what is there is not one.

    Raises:
        FileNotFoundError: Nothing is there
    """
    try:
        content = json.loads(path.read_bytes())
        return Record(
            identity=Identity(
                source=_text(content["source"]),
                revision=_text(content["revision"]),
                allow=tuple(map(_text, content["allow"])),
                ignore=tuple(map(_text, content["ignore"])),
            ),
            commit=_text(content["commit"]),
            files={check_name(name): _size(size) for name, size in content["files"].items()},
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, HopelessError):
        return None  # whoever wrote it, nothing about the directory can be relied on


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _size(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value
