# SPDX-License-Identifier: Apache-2.0
"""Where a file may land: below the target directory, and nowhere else."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from internal.fetch.errors import FetchError, HopelessError

if TYPE_CHECKING:
    from pathlib import Path

OWN_PREFIX = ".flexinfer_"

# What file systems over a network or in user space answer that sync files only.
_NOT_FOR_DIRECTORIES = {errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP}


def check_name(name: str) -> str:
    """Return *name*, a file's path in its source with slashes between its parts.

    Raises:
        HopelessError: The name is absolute, leaves the source, or is one of the fetcher's own
    """
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts) or not name.isprintable() or "\\" in name:
        raise HopelessError(
            f"the source has a file named {name!r}, which leaves its directory; "
            "use a source that can be trusted"
        )
    if parts[0].startswith(OWN_PREFIX):
        raise HopelessError(
            f"the source has a file named {name!r}, a name of the fetcher's own; leave it out "
            "with spec.cache.ignorePatterns"
        )
    return name


def locate(root: Path, name: str) -> Path:
    """Return where the file *name* is, or would be, below *root*.

    Raises:
        HopelessError: As `check_name`
        FetchError: A symbolic link on the way leads out of *root*
    """
    path = root / check_name(name)
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise FetchError(f"{path.parent} leads out of {root}; remove the symbolic link")
    return path


def place(root: Path, name: str) -> Path:
    """Do as `locate`, and make the directories that the file needs."""
    path = locate(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def regular_size(path: Path) -> int | None:
    """Return the bytes of a regular file; None for anything else, a symbolic link included."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def sync(directory: Path) -> None:
    """Bring the names in *directory* to the disk, where the file system can be asked to."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_FOR_DIRECTORIES:
            raise
    finally:
        os.close(descriptor)
