# SPDX-License-Identifier: Apache-2.0
"""What events.k8s.io/v1 accepts, and how whatever comes is made to fit.

The limits are the API server's (`pkg/apis/core/validation/events.go`), and count bytes.
"""

from __future__ import annotations

import re
from hashlib import blake2b

__all__ = ["controller_name", "event_name", "fit", "instance_name", "required"]

NOTE = 1024
WORD = 128  # reason, action and reportingInstance
_ELLIPSIS = "…"
_UNSPECIFIED = "Unspecified"

_PREFIX = 253  # the domain of a qualified name
_NAME = 63  # what stands behind its slash
_EVENT_NAME = 253
_HASH = 8  # hex digits: enough to tell the names of one cluster's controllers apart

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_NOT_IN_A_DOMAIN = re.compile(r"[^a-z0-9.-]+")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_EDGES = "-._"


def fit(text: str, limit: int) -> str:
    """Return *text* in at most *limit* bytes of UTF-8, with an ellipsis where it was cut.

    Never cut inside a character; what is no text at all (lone surrogates) becomes `?`.
    """
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    kept = data[: limit - len(_ELLIPSIS.encode())]
    return kept.decode("utf-8", "ignore") + _ELLIPSIS


def required(text: str, default: str = "") -> str:
    """Return a reason or an action that the server accepts; *default* stands in for an empty one.

    An event with a poor word is worth more than none.
    """
    return fit(text.strip() or default.strip() or _UNSPECIFIED, WORD)


def controller_name(name: str) -> str:
    """Return *name* as a qualified name: `name` or `domain/name`.

    What does not fit is replaced or cut, and ends in a hash, so that two names stay two.
    """
    prefix, slash, tail = name.rpartition("/")
    if slash and not (len(prefix) <= _PREFIX and _DOMAIN.fullmatch(prefix)):
        prefix, slash, tail = "", "", name
    plain = _NOT_IN_A_NAME.sub("-", tail).strip(_EDGES)
    if plain != tail or len(plain) > _NAME:
        plain = _hashed(plain, tail, _NAME)
    return f"{prefix}{slash}{plain}"


def instance_name(name: str) -> str:
    """Return *name* in at most 128 bytes, ending in a hash where it was longer."""
    plain = fit(name, WORD)
    return _hashed(_NOT_IN_A_NAME.sub("-", name), name, WORD) if plain != name else name


def event_name(regarding: str, unique: str) -> str:
    """Return a name for an event about an object, as `kubectl get events` shows it.

    Names of some kinds (`system:node`) are none for an event, and some are too long.
    """
    plain = _NOT_IN_A_DOMAIN.sub("-", regarding.lower())[: _EVENT_NAME - len(unique) - 1]
    labels = (label.strip("-") for label in plain.split("."))
    return ".".join([*(label for label in labels if label), unique])


def _hashed(plain: str, original: str, limit: int) -> str:
    digest = blake2b(original.encode("utf-8", "replace"), digest_size=_HASH // 2).hexdigest()
    kept = plain[: limit - _HASH - 1].strip(_EDGES)
    return f"{kept}-{digest}" if kept else digest
