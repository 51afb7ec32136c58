# SPDX-License-Identifier: Apache-2.0
"""How long a key waits before it is tried again.

A limiter only answers with a delay in seconds; the queue does the waiting. Semantics and defaults
are client-go's, with jitter added, so that keys which failed together do not come back together.
"""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["ExponentialBackoff", "MaxOf", "RateLimiter", "TokenBucket"]

_K_contra = TypeVar("_K_contra", bound="Hashable", contravariant=True)
K = TypeVar("K", bound="Hashable")


class RateLimiter(Protocol[_K_contra]):
    """Decide when a key may be tried again."""

    def when(self, key: _K_contra) -> float:
        """Charge one attempt to *key* and return its delay in seconds."""
        ...

    def forget(self, key: _K_contra) -> None:
        """Start over for *key*: it succeeded, or is gone."""
        ...

    def requeues(self, key: _K_contra) -> int:
        """Return how many attempts were charged to *key* since it was last forgotten."""
        ...


class ExponentialBackoff(Generic[K]):
    """Double the delay of a key with each of its failures.

    The n-th failure in a row waits `base * 2**(n-1)` seconds, at most *maximum*, less a random
    part of up to *jitter* of it; so the maximum holds, and keys at the maximum still spread. The
    defaults of base and maximum are client-go's. One number is kept for each key that failed and
    was not forgotten.
    """

    def __init__(
        self,
        *,
        base: float = 0.005,
        maximum: float = 1000.0,
        jitter: float = 0.5,
        random: Callable[[], float] = random.random,
    ) -> None:
        if not 0 < base <= maximum < math.inf:
            raise ConfigurationError(
                f"base {base} and maximum {maximum} are no backoff: "
                "give finite seconds with 0 < base <= maximum"
            )
        if not 0 <= jitter < 1:
            raise ConfigurationError(f"jitter {jitter} is no share: give 0 <= jitter < 1")
        self._base = base
        self._maximum = maximum
        self._jitter = jitter
        self._random = random
        # From this many doublings on the delay is the maximum: 2**n is not computed, nor can it
        # overflow, however often a key fails.
        self._doublings = math.ceil(math.log2(maximum / base))
        self._failures: dict[K, int] = {}

    def when(self, key: K) -> float:
        """Return the next delay of *key*, longer than the last one but for jitter."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = self._maximum
        if failures < self._doublings:
            delay = math.ldexp(self._base, failures)
        return delay * (1 - self._jitter * self._random())

    def forget(self, key: K) -> None:
        """Let the next failure of *key* wait for the base again."""
        self._failures.pop(key, None)

    def requeues(self, key: K) -> int:
        """Return the number of failures of *key* in a row."""
        return self._failures.get(key, 0)


class TokenBucket(Generic[K]):
    """Limit the retries of all keys together to *qps* a second, after *burst* at once.

    Each attempt reserves its token, also one that is not there yet, and waits until it is due:
    n attempts at once end up 1/qps apart. The defaults are client-go's.
    """

    def __init__(
        self,
        *,
        qps: float = 10.0,
        burst: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < qps < math.inf:
            raise ConfigurationError(f"qps {qps} is no rate: give a finite number above 0")
        if burst < 1:
            raise ConfigurationError(f"burst {burst} lets nothing through: give at least 1")
        self._qps = qps
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at = clock()

    def when(self, key: K) -> float:  # noqa: ARG002 - one bucket for all keys
        """Reserve a token and return the seconds until it is there."""
        now = self._clock()
        refill = (now - self._filled_at) * self._qps
        self._tokens = min(self._tokens + refill, float(self._burst)) - 1
        self._filled_at = now
        return max(-self._tokens / self._qps, 0.0)

    def forget(self, key: K) -> None:
        """Do nothing: a token that was reserved stays reserved."""

    def requeues(self, key: K) -> int:  # noqa: ARG002 - the bucket does not tell keys apart
        """Return 0: the bucket does not tell keys apart."""
        return 0


class MaxOf(Generic[K]):
    """Ask several limiters, charge each of them, and let the longest delay win."""

    def __init__(self, *limiters: RateLimiter[K]) -> None:
        if not limiters:
            raise ConfigurationError("MaxOf has no limiter: give at least one")
        self._limiters = limiters

    def when(self, key: K) -> float:
        """Return the longest of the delays."""
        return max([limiter.when(key) for limiter in self._limiters])

    def forget(self, key: K) -> None:
        """Make every limiter forget *key*."""
        for limiter in self._limiters:
            limiter.forget(key)

    def requeues(self, key: K) -> int:
        """Return the largest of the counts."""
        return max(limiter.requeues(key) for limiter in self._limiters)
