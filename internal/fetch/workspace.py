# SPDX-License-Identifier: Apache-2.0
"""The directory that is filled: one fetch at a time, and never files of two sources in it.

A plan is written before the first file and a marker after the last. What lies there under the
plan or the marker of something else goes first. Files that came before any plan are not the
fetcher's: they stay, unless the source has files of their names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from internal.fetch import marker
from internal.fetch.errors import FetchError, HopelessError
from internal.fetch.paths import OWN_PREFIX, locate, place, sync

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from internal.fetch.marker import Identity, Record

LOCK = f"{OWN_PREFIX}lock"
PARTS = f"{OWN_PREFIX}parts"
LOCK_WAIT = 45
"""Seconds that a predecessor has to go: the 30 of a pod's grace period, and some to spare."""

_KEPT = {LOCK, marker.PLAN, "lost+found"}


class Workspace:
    """Be a directory that no other fetch works in; make one with `open`."""

    def __init__(self, root: Path, identity: Identity) -> None:
        self.root = root
        self._identity = identity
        self._marker = root / marker.MARKER
        self._plan = root / marker.PLAN
        self._parts = root / PARTS

    @classmethod
    @contextmanager
    def open(
        cls, root: Path, identity: Identity, *, sleep: Callable[[float], None] = time.sleep
    ) -> Iterator[Workspace]:
        """Make the directory when it is missing, and keep other fetches out of it.

        Raises:
            HopelessError: *root* is no directory that could be filled
            FetchError: Another fetch is at work in it, and does not end
        """
        if not root.is_absolute() or ".." in root.parts or root == root.parent:
            raise HopelessError(f"{root} cannot be filled; name a directory below a volume's mount")
        if root.is_symlink() or (root.exists() and not root.is_dir()):
            raise HopelessError(f"{root} is no directory; remove it from the volume")
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            _lock(descriptor, root, sleep)
            yield cls(root, identity)
        finally:
            os.close(descriptor)

    def done(self) -> Record | None:
        """Return the marker when it is of this identity and its files are there."""
        record = self._read(self._marker)
        whole = record and record.identity == self._identity and record.holds(self.root)
        return record if whole else None

    def begin(self, record: Record) -> None:
        """Remove what is stale, and say from now on that the files of *record* are fetched.

        Raises:
            FetchError: A symbolic link would have led the removal out of the directory
        """
        if os.path.lexists(self._marker):
            # Under its new name it says whose files these are, however far the removal comes.
            self._marker.replace(self._plan)
            sync(self.root)
        if os.path.lexists(self._plan):
            previous = self._read(self._plan)
            if previous is None or previous.identity != record.identity:
                self._wipe()
            else:
                for name in previous.files.keys() - record.files.keys():
                    locate(self.root, name).unlink(missing_ok=True)
        marker.write(self._plan, record)
        self._parts.mkdir(exist_ok=True)

    def part(self, name: str, version: str) -> Path:
        """Return where the file *name* grows until it is whole; other versions get other places."""
        place_of = hashlib.sha256(f"{name}\0{version}".encode()).hexdigest()
        return self._parts / place_of

    def keep_parts(self, parts: Collection[Path]) -> None:
        """Remove the parts of an earlier try but for *parts*: they would only take room."""
        for path in self._parts.iterdir():
            if path not in parts:
                path.unlink()

    def publish(self, part: Path, name: str) -> None:
        """Give a whole part its name, in place of what bore it."""
        path = place(self.root, name)
        part.replace(path)
        sync(path.parent)

    def finish(self, record: Record) -> None:
        """Say that all files are there."""
        shutil.rmtree(self._parts)
        marker.write(self._marker, record)
        self._plan.unlink()

    def _wipe(self) -> None:
        """Remove everything below the directory; symbolic links are removed, not followed."""
        for entry in self.root.iterdir():
            if entry.name in _KEPT:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    @staticmethod
    def _read(path: Path) -> Record | None:
        try:
            return marker.read(path)
        except FileNotFoundError:
            return None


def _lock(descriptor: int, root: Path, sleep: Callable[[float], None]) -> None:
    for _ in range(LOCK_WAIT):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sleep(1.0)
        except OSError:
            return  # a volume without locks: the Job alone keeps fetches apart
        else:
            return
    raise FetchError(f"another fetch is at work in {root}; wait for its pod to end")
