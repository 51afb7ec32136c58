# SPDX-License-Identifier: Apache-2.0
"""The repositories of the stand-in: made up, the same in every run, a few MiB each.

| repository | what is special |
| --- | --- |
| acme/tiny-chat | nothing; revision `v2` has other files than `main` |
| acme/tiny-gguf | one file for each of two quantizations |
| acme/gated | needs READER_TOKEN |
| acme/cut | the first transfer of its large file breaks off halfway |
| acme/cut-whole | the same, and ranges are not heeded: a file is sent from its beginning |
| acme/silent | the first transfer of its large file stops halfway, and nothing more comes |
| acme/throttled | the first request of each kind is told to come back in a second |
| acme/failing | the first request of each kind is answered with 503 |
| acme/swapped | the first transfer of its large file has the right size and a wrong content |
| acme/short | its large file always ends too early |
| acme/long | its large file always goes on for too long |
| acme/huge | says that it has more bytes than any disk |
| acme/outside | names a file outside its directory |
| acme/unsized | tells neither sizes nor checksums |
| Qwen/Qwen2.5-0.5B-Instruct-GGUF | what the sample on CPUs fetches, by its real name |
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

READER_TOKEN = "hf_reader"  # noqa: S105 - opens nothing but the stand-in
"""May read acme/gated."""
STRANGER_TOKEN = "hf_stranger"  # noqa: S105 - nor does this one
"""Is a token of somebody who may not."""

MAIN = "main"
LARGE = "model-00001-of-00002.safetensors"
_MIB = 1 << 20
_HUGE = 1 << 60


class Fault(StrEnum):
    """Name what a repository does that it should not."""

    CUT = "cut"
    CUT_WHOLE = "cut-whole"
    SILENT = "silent"
    THROTTLED = "throttled"
    FAILING = "failing"
    SWAPPED = "swapped"
    SHORT = "short"
    LONG = "long"
    HUGE = "huge"
    OUTSIDE = "outside"
    UNSIZED = "unsized"


@dataclass(frozen=True, slots=True)
class File:
    """Be a file of a repository; `large` ones are kept by Git LFS and served from elsewhere."""

    content: bytes = field(repr=False)
    large: bool = False
    claimed: int | None = None

    @property
    def size(self) -> int:
        """Return the bytes that the hub says it has."""
        return len(self.content) if self.claimed is None else self.claimed

    @property
    def blob(self) -> str:
        """Return the checksum by which git names it, or the pointer in its place."""
        stored = self._pointer if self.large else self.content
        header = f"blob {len(stored)}\0".encode()
        return hashlib.sha1(header + stored, usedforsecurity=False).hexdigest()

    @property
    def sha256(self) -> str:
        """Return the checksum by which Git LFS names it."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def pointer_size(self) -> int:
        """Return the bytes of what git keeps in the place of a large file."""
        return len(self._pointer)

    @property
    def _pointer(self) -> bytes:
        return (
            "version https://git-lfs.github.com/spec/v1\n"
            f"oid sha256:{self.sha256}\nsize {self.size}\n"
        ).encode()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Be the files of a repository at one commit."""

    files: Mapping[str, File]

    @property
    def commit(self) -> str:
        """Return a hash that changes with any file."""
        names = "".join(f"{name} {file.blob}\n" for name, file in sorted(self.files.items()))
        return hashlib.sha1(names.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Repository:
    """Be a repository: its snapshots by the names of their revisions."""

    revisions: Mapping[str, Snapshot]
    fault: Fault | None = None
    gated: bool = False

    def find(self, revision: str) -> Snapshot | None:
        """Return the snapshot of a branch, a tag or a commit."""
        commits = {snapshot.commit: snapshot for snapshot in self.revisions.values()}
        return self.revisions.get(revision) or commits.get(revision)


def _bytes(seed: str, size: int) -> bytes:
    return hashlib.shake_128(seed.encode()).digest(size)


def _text(**settings: object) -> File:
    return File(json.dumps(settings, indent=2).encode())


def _weights(seed: str) -> dict[str, File]:
    return {
        "README.md": File(f"# {seed}\n\nMade up, for tests.\n".encode()),
        "config.json": _text(architectures=["TinyForCausalLM"], name=seed, hidden_size=64),
        "generation_config.json": _text(temperature=0.7),
        LARGE: File(_bytes(f"{seed}/1", 3 * _MIB), large=True),
        "model-00002-of-00002.safetensors": File(_bytes(f"{seed}/2", _MIB // 2), large=True),
        "model.safetensors.index.json": _text(metadata={"total_size": 3 * _MIB + _MIB // 2}),
        "original/params.json": _text(dim=64),
        "tokenizer/vocab.json": _text(hello=0, world=1),
        "tokenizer/merges.txt": File(b""),
    }


def _repository(name: str, fault: Fault | None = None, *, gated: bool = False) -> Repository:
    return Repository({MAIN: Snapshot(_weights(name))}, fault=fault, gated=gated)


def _tiny_chat() -> Repository:
    newer = _weights("acme/tiny-chat v2")
    del newer["original/params.json"]
    newer["chat_template.jinja"] = File(b"{{ messages }}\n")
    main = Snapshot(_weights("acme/tiny-chat"))
    return Repository({MAIN: main, "v2": Snapshot(newer)})


def _tiny_gguf() -> Repository:
    files = {
        "README.md": File(b"# tiny-gguf\n"),
        "tiny-q4_k_m.gguf": File(b"GGUF" + _bytes("q4", _MIB), large=True),
        "tiny-q8_0.gguf": File(b"GGUF" + _bytes("q8", 2 * _MIB), large=True),
    }
    return Repository({MAIN: Snapshot(files)})


def _sample() -> Repository:
    file = File(b"GGUF" + _bytes("sample", _MIB), large=True)
    return Repository({MAIN: Snapshot({"qwen2.5-0.5b-instruct-q4_k_m.gguf": file})})


def _odd(name: str, fault: Fault, odd: Mapping[str, File]) -> Repository:
    return Repository({MAIN: Snapshot({**_weights(name), **odd})}, fault=fault)


def catalog() -> dict[str, Repository]:
    """Return every repository by its name."""
    plain = (
        Fault.CUT,
        Fault.CUT_WHOLE,
        Fault.SILENT,
        Fault.THROTTLED,
        Fault.FAILING,
        Fault.SWAPPED,
        Fault.SHORT,
        Fault.LONG,
        Fault.UNSIZED,
    )
    huge = {LARGE: File(_bytes("huge", _MIB), large=True, claimed=_HUGE)}
    outside = {"../../outside.json": _text(outside=True)}
    return {
        "acme/tiny-chat": _tiny_chat(),
        "acme/tiny-gguf": _tiny_gguf(),
        "acme/gated": _repository("acme/gated", gated=True),
        **{f"acme/{fault}": _repository(f"acme/{fault}", fault) for fault in plain},
        "acme/huge": _odd("acme/huge", Fault.HUGE, huge),
        "acme/outside": _odd("acme/outside", Fault.OUTSIDE, outside),
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF": _sample(),
    }
