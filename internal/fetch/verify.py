# SPDX-License-Identifier: Apache-2.0
"""Sizes and checksums: whether a file is the one that its source names."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from internal.fetch.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHUNK = 1 << 20
"""Bytes that are read at once."""


class Algorithm(StrEnum):
    """Name how a source sums a file up."""

    SHA256 = "sha256"
    """Of the content: large files, kept by Git LFS."""
    GIT_BLOB = "git-blob"
    """SHA-1 of a header and the content, as git does: small files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """Be a file that a source names: its path, its size in bytes, and its checksum in hex."""

    name: str
    size: int
    algorithm: Algorithm
    checksum: str


class Digest(Protocol):
    """Be a running checksum."""

    def update(self, data: bytes, /) -> None:
        """Take in the next bytes."""

    def hexdigest(self) -> str:
        """Return the checksum of what was taken in."""


def digest_for(file: RemoteFile) -> Digest:
    """Return an empty running checksum of the file's kind."""
    if file.algorithm is Algorithm.SHA256:
        return hashlib.sha256()
    # What git, not anybody's security, is built on.
    return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)


def feed(digest: Digest, path: Path, *, advance: Callable[[int], None]) -> int:
    """Take the file at *path* into *digest*, and return its bytes; tell *advance* on the way."""
    total = 0
    with path.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
            total += len(chunk)
            advance(len(chunk))
    return total


def check(file: RemoteFile, digest: Digest, size: int) -> None:
    """Compare what came with what the source names.

    Raises:
        FetchError: The size or the checksum is another; the message names the file
    """
    if size != file.size:
        raise FetchError(
            f"{file.name} has {size} bytes where the source names {file.size}; it was dropped, "
            "and the next try fetches it anew"
        )
    if digest.hexdigest() != file.checksum:
        raise FetchError(
            f"{file.name} does not have the {file.algorithm} checksum {file.checksum} that the "
            "source names; it was dropped, and the next try fetches it anew"
        )
