# SPDX-License-Identifier: Apache-2.0
"""JSON that is nested too deep to be decoded, cut to a depth that can be.

The API server takes 10,000 levels, the decoder about as many as Python has frames left. Whoever
may write one object could otherwise keep everybody from reading a whole list.
"""

from __future__ import annotations

import re

MAX_DEPTH = 200
"""Levels that are kept: ten times as many as any API type has."""

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_OPEN, _CLOSE = {b"{", b"["}, {b"}", b"]"}


def prune(data: bytes, *, depth: int = MAX_DEPTH) -> bytes:
    """Return JSON in which every list and object below *depth* levels is null.

    Works by brackets alone: JSON that was broken before is broken after.
    """
    kept = []
    level = start = 0
    for match in _TOKEN.finditer(data):
        if match[0] in _OPEN:
            if level == depth:
                kept.append(data[start : match.start()])
            level += 1
        elif match[0] in _CLOSE:
            level -= 1
            if level == depth:
                kept.append(b"null")
                start = match.end()
    if level <= depth:
        kept.append(data[start:])
    return b"".join(kept)
