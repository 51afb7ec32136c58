# SPDX-License-Identifier: Apache-2.0
"""Read `spec.source`: where a model's weights come from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Scheme(StrEnum):
    """Name the kinds of source, spelled as users write them."""

    HUGGING_FACE = "HF"
    OLLAMA = "ollama"
    FILE = "file"
    PVC = "pvc"


@dataclass(frozen=True, slots=True)
class Source:
    """Be a source that was read.

    `reference` is the repository (`HF`), the model with its tag (`ollama`), the absolute path
    (`file`) or the path inside the claim without a leading slash (`pvc`); `claim` is set for
    `pvc` alone.
    """

    scheme: Scheme
    reference: str
    claim: str = ""

    def __str__(self) -> str:
        claim = f"{self.claim}/" if self.claim else ""
        return f"{self.scheme}://{claim}{self.reference}".rstrip("/")


class SourceError(ValueError):
    """Refuse a source that cannot be read, in one sentence that shows what is allowed."""


FORMS = "HF://org/name, ollama://name:tag, file:///path or pvc://claim/path"

_HF = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_OLLAMA = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)*(:[\w.-]+)?", re.ASCII)
_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def parse_source(text: str) -> Source:
    """Read a source; raise SourceError naming the form that was expected.

    `..` is refused in paths, so that no source leaves the volume it names.
    """
    name, separator, rest = text.partition("://")
    if not separator or name not in set(Scheme):
        raise SourceError(f"spec.source {text!r} has no known scheme; write {FORMS}")
    if ".." in rest.split("/"):
        raise SourceError(f"spec.source {text!r} must not contain '..'; write {FORMS}")
    scheme = Scheme(name)
    match scheme:
        case Scheme.HUGGING_FACE if _HF.fullmatch(rest):
            return Source(scheme, rest)
        case Scheme.OLLAMA if _OLLAMA.fullmatch(rest):
            return Source(scheme, rest)
        case Scheme.FILE if rest.startswith("/") and rest.strip("/"):
            return Source(scheme, rest)
        case Scheme.PVC:
            claim, _, path = rest.partition("/")
            if _CLAIM.fullmatch(claim):
                return Source(scheme, path.strip("/"), claim)
    raise SourceError(f"spec.source {text!r} is incomplete; write {FORMS}")
