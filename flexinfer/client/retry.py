# SPDX-License-Identifier: Apache-2.0
"""When a call is tried again inside the transport, and how long it waits before that."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.errors import ApiError

__all__ = ["NEVER", "RetryPolicy"]

_BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
# The share of a wait that is added at random, so that those who were refused together return apart.
_JITTER = 0.25
# No caller is made to wait longer by a header.
_LONGEST_RETRY_AFTER = 3600.0
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bound the tries of one call; the deadline of the call bounds them further.

    `attempts` counts all tries of a call that a server asks to come back later with (429, and
    503 with Retry-After). `resets` counts the tries after a connection was lost before an answer:
    at once, and only for calls that can be repeated. `first_wait` and `longest_wait` are seconds
    of the exponential backoff for a 429 that names no time.
    """

    attempts: int = 5
    resets: int = 2
    first_wait: float = 0.5
    longest_wait: float = 8.0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.attempts < 1 or self.resets < 0:
            raise ConfigurationError("attempts must be at least 1 and resets at least 0")
        if not 0 < self.first_wait <= self.longest_wait < math.inf:
            raise ConfigurationError("first_wait must be above 0 and at most longest_wait")

    def wait(self, error: ApiError, *, attempt: int) -> float | None:
        """Return the seconds to wait after try number *attempt*, or None to give up.

        The wait is never shorter than what the server asked for.
        """
        if error.status not in _BUSY or attempt >= self.attempts:
            return None
        if error.retry_after:
            return error.retry_after * (1 + _random.uniform(0, _JITTER))
        if error.retry_after is None and error.status != HTTPStatus.TOO_MANY_REQUESTS:
            return None
        ceiling = min(self.longest_wait, self.first_wait * 2.0 ** (attempt - 1))
        return ceiling * _random.uniform(0.5, 1)


NEVER = RetryPolicy(attempts=1, resets=0)


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a Retry-After header asks for, at most an hour; None without one.

    The names of *headers* are in small letters.
    A date is compared with the answer's own Date when it has one, so that a difference between
    the clocks does not matter.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return min(float(value), _LONGEST_RETRY_AFTER)
    then = _date(value)
    if then is None:
        return None
    now = _date(headers.get("date", "")) or datetime.now(UTC)
    return min(max((then - now).total_seconds(), 0.0), _LONGEST_RETRY_AFTER)


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
