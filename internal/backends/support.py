# SPDX-License-Identifier: Apache-2.0
"""How well a server runs on a GPU architecture."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from internal.gpu.architecture import by_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping


class Support(Enum):
    """Rank what can be expected."""

    FULL = "full"
    EXPERIMENTAL = "experimental"
    NONE = "none"


def support_of(matrix: Mapping[str, Support], architecture: str) -> Support:
    """Return what *matrix* says by its longest fitting prefix; what it does not know runs."""
    return by_prefix(matrix, architecture) or Support.FULL
