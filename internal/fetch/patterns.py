# SPDX-License-Identifier: Apache-2.0
"""Which files of a source are wanted."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from internal.fetch.errors import HopelessError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LEADING = re.compile(r"^[/\s]+")


def normalize(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns trimmed, without leading slashes, each once, in a fixed order.

    Equal sets of patterns give equal tuples. Blank ones are dropped.

    Raises:
        HopelessError: A pattern has a `..`, so it would name files outside the source
    """
    trimmed = {_LEADING.sub("", pattern).rstrip() for pattern in patterns}
    for pattern in trimmed:
        if ".." in pattern.split("/"):
            raise HopelessError(
                f"the pattern {pattern!r} leaves the source; write the patterns of spec.cache "
                "without '..'"
            )
    return tuple(sorted(trimmed - {""}))


def select(names: Iterable[str], *, allow: Sequence[str], ignore: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a pattern of *allow* matches and none of *ignore*, in their order.

    An empty *allow* wants every name. Matching heeds case, `*` also matches slashes, and a
    pattern that ends in a slash means all below it: the rules of the hub's own client.
    """
    return tuple(
        name
        for name in names
        if (not allow or _matches(name, allow)) and not _matches(name, ignore)
    )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, f"{p}*" if p.endswith("/") else p) for p in patterns)
