# SPDX-License-Identifier: Apache-2.0
"""`flexinfer fetch hub`: the files of a repository, into one directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from internal.fetch import space, verify
from internal.fetch.errors import FetchError, HopelessError, TransientError
from internal.fetch.marker import DEFAULT_REVISION, Identity, Record
from internal.fetch.paths import check_name, locate, regular_size
from internal.fetch.patterns import normalize, select
from internal.fetch.progress import Progress
from internal.fetch.report import Outcome
from internal.fetch.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from internal.fetch.hub import Hub, Listing
    from internal.fetch.retry import Patience
    from internal.fetch.verify import RemoteFile


def identify(
    source: str, *, revision: str = "", allow: Sequence[str] = (), ignore: Sequence[str] = ()
) -> Identity:
    """Return what is asked for in the one form that equal wishes have; HopelessError for `..`."""
    return Identity(
        source=source,
        revision=revision or DEFAULT_REVISION,
        allow=normalize(allow),
        ignore=normalize(ignore),
    )


def fetch_hub(
    hub: Hub,
    identity: Identity,
    to: Path,
    *,
    patience: Patience,
    write: Callable[[str], None],
    free: Callable[[Path], int] = space.free_bytes,
) -> Outcome:
    """Bring the wanted files of *hub*'s repository into *to*, and go on where a try ended.

    *write* gets lines on how far it is. A directory that is whole is left as it is, and the hub
    is not asked.

    Raises:
        HopelessError: No try helps until somebody changes something
        FetchError: Another try may help; what was fetched is kept for it
    """
    with Workspace.open(to, identity) as workspace:
        if record := workspace.done():
            write(f"{to} is whole already")
            return Outcome.of(record)
        listing = patience.attempt(lambda: hub.list(identity.revision))
        files = _wanted(listing, identity)
        record = Record(
            identity=identity,
            commit=listing.commit,
            files={file.name: file.size for file in files},
        )
        workspace.begin(record)
        missing = _missing(workspace, files, write)
        parts = {file.name: _part(workspace, file) for file in missing}
        workspace.keep_parts(set(parts.values()))
        begun = sum(_begun(parts[file.name], file) for file in missing)
        lacking = sum(file.size for file in missing)
        space.ensure_room(lacking - begun, to, free=free)
        progress = Progress(
            "fetched", record.total, done=record.total - lacking + begun, write=write
        )
        progress.say()
        for file in missing:
            fetch = _Fetch(hub, listing.commit, file, progress, patience)
            fetch.into(parts[file.name])
            workspace.publish(parts[file.name], file.name)
        workspace.finish(record)
        progress.say()
        return Outcome.of(record)


def _wanted(listing: Listing, identity: Identity) -> tuple[RemoteFile, ...]:
    by_name = {file.name: file for file in listing.files}
    names = select(by_name, allow=identity.allow, ignore=identity.ignore)
    if not names:
        wish = ", ".join((*identity.allow, *(f"not {pattern}" for pattern in identity.ignore)))
        raise HopelessError(
            f"{identity.source} has no file that is wanted ({wish or 'any'}); "
            "correct spec.cache.allowPatterns and spec.cache.ignorePatterns"
        )
    return tuple(by_name[check_name(name)] for name in names)


def _missing(
    workspace: Workspace, files: Sequence[RemoteFile], write: Callable[[str], None]
) -> list[RemoteFile]:
    """Return the files that are not there, or not as the source names them; drop the latter."""
    found = {
        file.name: path
        for file in files
        if regular_size(path := locate(workspace.root, file.name)) == file.size
    }
    total = sum(file.size for file in files if file.name in found)
    progress = Progress("verified", total, write=write)
    missing = []
    for file in files:
        if file.name in found:
            digest = verify.digest_for(file)
            verify.feed(digest, found[file.name], advance=progress.advance)
            if digest.hexdigest() == file.checksum:
                continue
            found[file.name].unlink()
        missing.append(file)
    return missing


def _part(workspace: Workspace, file: RemoteFile) -> Path:
    return workspace.part(file.name, f"{file.algorithm}:{file.checksum}")


def _begun(part: Path, file: RemoteFile) -> int:
    return min(regular_size(part) or 0, file.size)


@dataclass(frozen=True, slots=True)
class _Fetch:
    """Be the fetch of one file at one commit."""

    hub: Hub
    commit: str
    file: RemoteFile
    progress: Progress
    patience: Patience

    def into(self, path: Path) -> None:
        """Fill *path* with the file, or drop it when it turns out to be another one."""
        with _Part(path, self.file, self.progress) as part:
            while part.size < self.file.size:
                before = part.size
                try:
                    self._read_on(part)
                    break
                except TransientError as error:
                    self.patience.progressed(part.size - before)
                    self.patience.pause(error)
            self.patience.succeeded()
            try:
                verify.check(self.file, part.digest, part.size)
            except FetchError:
                path.unlink()
                raise
            part.sync()

    def _read_on(self, part: _Part) -> None:
        with self.hub.open(self.commit, self.file.name, offset=part.size) as content:
            if content.offset != part.size:
                part.restart()
            for chunk in content.chunks:
                part.append(chunk)
                if part.size > self.file.size:
                    return  # another file, however long it goes on


class _Part:
    """Be a file that grows, with its checksum so far."""

    def __init__(self, path: Path, file: RemoteFile, progress: Progress) -> None:
        self._file = file
        self._progress = progress
        self._content = path.open("ab", buffering=0)
        self.digest = verify.digest_for(file)
        self.size = verify.feed(self.digest, path, advance=lambda _: progress.advance(0))
        if self.size > file.size:
            self.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._content.close()

    def append(self, chunk: bytes) -> None:
        """Write *chunk* to the end."""
        view = memoryview(chunk)
        while view:
            view = view[self._content.write(view) :]
        self.digest.update(chunk)
        self.size += len(chunk)
        self._progress.advance(len(chunk))

    def restart(self) -> None:
        """Forget what is there."""
        self._content.truncate(0)
        self._progress.advance(-min(self.size, self._file.size))
        self.digest, self.size = verify.digest_for(self._file), 0

    def sync(self) -> None:
        """Bring the content to the disk."""
        os.fsync(self._content.fileno())
