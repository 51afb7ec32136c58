# SPDX-License-Identifier: Apache-2.0
"""The waits of informers, and how they grow."""

from __future__ import annotations

import pytest

from flexinfer.cache.timing import Backoff, Timing
from flexinfer.errors import ConfigurationError


def test_backoff_doubles_up_to_its_cap_and_starts_over_once_something_worked() -> None:
    backoff = Backoff(Timing(random=lambda: 0.5))
    delays = [backoff.next_delay() for _ in range(8)]
    assert delays == pytest.approx([1.2, 2.4, 4.8, 9.6, 19.2, 38.4, 45.0, 45.0])
    assert backoff.next_delay(at_least=60.0) == pytest.approx(75.0)
    backoff.reset()
    assert backoff.next_delay() == pytest.approx(1.2)


@pytest.mark.parametrize("name", ["list_timeout", "watch_timeout", "idle_timeout", "backoff_first"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_waits_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Timing(**{name: value})  # type: ignore[arg-type]  # names of floats only


def test_a_cap_below_the_first_wait_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="backoff_most"):
        Timing(backoff_first=2.0, backoff_most=1.0)
