# SPDX-License-Identifier: Apache-2.0
"""`flexinfer fetch copy`: a directory of one claim, into a directory of another."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from internal.fetch import space
from internal.fetch.errors import FetchError, HopelessError
from internal.fetch.marker import Identity, Record
from internal.fetch.paths import OWN_PREFIX, check_name, locate
from internal.fetch.progress import Progress
from internal.fetch.report import Outcome
from internal.fetch.verify import CHUNK
from internal.fetch.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LOST_AND_FOUND = "lost+found"
"""What a file system keeps at its root for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """Be a file to copy; `modified` is in nanoseconds, as the file system has it."""

    name: str
    path: Path
    size: int
    modified: int


def fetch_copy(
    source: str,
    origin: Path,
    to: Path,
    *,
    write: Callable[[str], None],
    free: Callable[[Path], int] = space.free_bytes,
) -> Outcome:
    """Copy the files below *origin*, or *origin* itself if it is a file, into *to*.

    *source* is what the marker names. Files that an earlier try brought are not copied again.

    Raises:
        HopelessError: *origin* is missing or empty, or a symbolic link leads out of it
        FetchError: Another try may help
    """
    identity = Identity(source=source)
    with Workspace.open(to, identity) as workspace:
        if record := workspace.done():
            write(f"{to} is whole already")
            return Outcome.of(record)
        files = source_files(origin, to)
        record = Record(identity=identity, files={file.name: file.size for file in files})
        workspace.begin(record)
        missing = [file for file in files if not _is_there(workspace, file)]
        lacking = sum(file.size for file in missing)
        space.ensure_room(lacking, to, free=free)
        progress = Progress("copied", record.total, done=record.total - lacking, write=write)
        progress.say()
        for file in missing:
            part = workspace.part(file.name, "copy")
            _copy(file, part, progress)
            workspace.publish(part, file.name)
        workspace.finish(record)
        progress.say()
        return Outcome.of(record)


def source_files(origin: Path, to: Path) -> Sequence[SourceFile]:
    """Return the files to copy, in the order of their names.

    Symbolic links to files inside *origin* count as those files.

    Raises:
        HopelessError: Nothing is there, or something that cannot be copied
    """
    if not origin.exists():
        raise HopelessError(f"{origin} does not exist; correct the path in spec.source")
    if origin.is_file():
        found = [_describe(origin, origin.parent)]
    else:
        if to.resolve().is_relative_to(origin.resolve()):
            raise HopelessError(f"{to} lies inside {origin}; correct the path in spec.source")
        found = [_describe(path, origin) for path in _walk(origin)]
    if not any(file.size for file in found):
        raise HopelessError(f"{origin} is empty; put the weights there, or correct spec.source")
    return sorted(found, key=lambda file: file.name)


def _walk(origin: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(origin, onerror=_refuse):
        here = Path(folder)
        folders[:] = [name for name in folders if here != origin or not _is_foreign(name)]
        for name in folders:
            if (here / name).is_symlink():
                raise HopelessError(
                    f"{here / name} is a symbolic link to a directory; put the directory there"
                )
        yield from (here / name for name in names if here != origin or not _is_foreign(name))


def _is_foreign(name: str) -> bool:
    """Tell what at the root of a source is not of the source: a file system's own, or ours."""
    return name == LOST_AND_FOUND or name.startswith(OWN_PREFIX)


def _refuse(error: OSError) -> None:
    raise error


def _describe(path: Path, origin: Path) -> SourceFile:
    """Look at one file; raise HopelessError when it is none, or one from outside."""
    target = path.resolve()
    if not target.is_relative_to(origin.resolve()):
        raise HopelessError(
            f"{path} is a symbolic link that leaves {origin}; put the file itself there"
        )
    try:
        found = target.stat()
    except FileNotFoundError:
        raise HopelessError(
            f"{path} is a symbolic link to nothing; remove it or put the file there"
        ) from None
    if not stat.S_ISREG(found.st_mode):
        raise HopelessError(f"{path} is neither a file nor a directory; remove it")
    return SourceFile(
        name=check_name(path.relative_to(origin).as_posix()),
        path=target,
        size=found.st_size,
        modified=found.st_mtime_ns,
    )


def _is_there(workspace: Workspace, file: SourceFile) -> bool:
    try:
        found = locate(workspace.root, file.name).lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and (found.st_size, found.st_mtime_ns) == (
        file.size,
        file.modified,
    )


def _copy(file: SourceFile, part: Path, progress: Progress) -> None:
    """Copy the content and its time of change, and make sure of the size."""
    size = 0
    with file.path.open("rb") as origin, part.open("wb") as content:
        while chunk := origin.read(CHUNK):
            content.write(chunk)
            size += len(chunk)
            progress.advance(len(chunk))
        content.flush()
        os.fsync(content.fileno())
    if size != file.size:
        part.unlink()
        raise FetchError(
            f"{file.name} had {file.size} bytes and {size} were copied: it changed meanwhile; "
            "the next try copies it anew"
        )
    os.utime(part, ns=(file.modified, file.modified))
