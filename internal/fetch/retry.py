# SPDX-License-Identifier: Apache-2.0
"""Patience with the hub: how long, and how often, a request that failed is made again."""

from __future__ import annotations

import random
import re
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar

from internal.fetch.errors import FetchError, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

_T = TypeVar("_T")

LIMIT = 180.0
"""Seconds without progress after which the run ends, and the Job's backoff takes over."""
_FIRST, _LONGEST = 1.0, 30.0
_WORTHWHILE = 1 << 20
"""Bytes of one request that count as progress; less could go on for ever."""

_QUOTA = re.compile(r";\s*r=0\s*;\s*t=(\d+)")
"""Nothing remains of a quota, which is renewed after so many seconds: `"api";r=0;t=55`."""


class Patience:
    """Wait between tries, twice as long each time and at random, until the limit is reached.

    The hub's own wish for a pause is heeded when it fits into the limit. *random_share* returns
    0 to 1.
    """

    def __init__(
        self,
        *,
        limit: float = LIMIT,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random_share: Callable[[], float] = random.random,
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._sleep = sleep
        self._share = random_share
        self._since: float | None = None
        self._tries = 0

    def progressed(self, count: int) -> None:
        """Begin anew when a request brought as much as it takes; *count* is in bytes."""
        if count >= _WORTHWHILE:
            self.succeeded()

    def succeeded(self) -> None:
        """Begin anew: what was wanted is there."""
        self._since, self._tries = None, 0

    def pause(self, error: TransientError) -> None:
        """Wait for the next try.

        Raises:
            FetchError: The limit would be passed
        """
        now = self._clock()
        self._since = now if self._since is None else self._since
        delay = self._delay(error)
        spent = now - self._since
        if spent + delay > self._limit:
            asked = f" and asks for {error.retry_after:.0f} s" if error.retry_after else ""
            raise FetchError(
                f"{error}{asked}; given up after {spent:.0f} s without progress, "
                "what was fetched is kept for the next try"
            ) from error
        self._tries += 1
        self._sleep(delay)

    def attempt(self, work: Callable[[], _T]) -> _T:
        """Return what *work* returns, tried again on TransientError for as long as it may be."""
        while True:
            try:
                result = work()
            except TransientError as error:
                self.pause(error)
            else:
                self.succeeded()
                return result

    def _delay(self, error: TransientError) -> float:
        """Return between half of the backoff and all of it, on top of what the hub asks for."""
        backoff = min(_LONGEST, _FIRST * 2.0 ** min(self._tries, 16))
        return (error.retry_after or 0.0) + backoff * (1 + self._share()) / 2


def retry_after(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Return the pause in seconds that an answer asks for, None when it names none.

    Read are Retry-After, as seconds or as a date, and the RateLimit of a quota that is used up.
    *now* has a time zone.
    """
    wish = headers.get("Retry-After", "")
    if wish.isascii() and wish.isdecimal():
        return float(wish)
    try:
        until = parsedate_to_datetime(wish)
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):  # no date, or one without a time zone
        quota = _QUOTA.search(headers.get("RateLimit", ""))
        return float(quota[1]) if quota else None
