# SPDX-License-Identifier: Apache-2.0
"""A dict of strings that many readers may share, because nobody can change it."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["EMPTY", "FrozenDict"]


class FrozenDict(dict[str, str]):
    """Be a dict that refuses to change, because many objects or many readers share it."""

    __slots__ = ()

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("labels and annotations are shared and frozen: change a copy, dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


EMPTY = FrozenDict()
"""What an object without labels or annotations has: one for all of them."""
