# SPDX-License-Identifier: Apache-2.0
"""How long a container that ended waits for its next run."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

_JITTER = 0.1  # share of the wait, added: two containers that crash together part


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Wait as the kubelet does: not at all at first, then `first` seconds, doubled up to `most`.

    The defaults are the kubelet's. `jitter` gives numbers from 0 to 1. Raises ConfigurationError
    for impossible settings.
    """

    first: float = 10.0
    most: float = 300.0
    jitter: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.most < math.inf:
            raise ConfigurationError(
                f"backoff from {self.first} to {self.most} s: use two positive numbers of seconds,"
                " the smaller one first"
            )

    @property
    def forgets_after(self) -> float:
        """Return how many seconds a run has to last for its end to count as the first again."""
        return 2 * self.most

    def nominal(self, crashes: int) -> float:
        """Return the seconds before the next run, after so many ends in a row, without jitter."""
        if crashes <= 1:
            return 0.0
        doublings = min(crashes - 2, 30)  # 2 ** 30 is above any `most` in use, and no overflow
        return min(self.first * float(2**doublings), self.most)

    def wait(self, crashes: int) -> float:
        """Return the seconds before the next run, after so many ends in a row."""
        return self.nominal(crashes) * (1 + _JITTER * self.jitter())
