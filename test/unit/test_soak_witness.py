# SPDX-License-Identifier: Apache-2.0
"""What the witnesses of a soak see in logs, and what they do not hold against a manager."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hack.soak.witness import double_work, first_led, slope


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def line(member: str, second: float, msg: str, identifier: str = "1") -> tuple[str, dict[str, str]]:
    values = {"msg": msg, "ts": at(second).isoformat(), "namespace": "ns", "name": "a"}
    return member, values | {"reconcile_id": identifier}


ENDS = ("reconciled", "reconcile failed", "reconcile cancelled, its name stays queued")


@pytest.mark.parametrize("end", ENDS)
def test_a_key_that_two_managers_work_on_is_told(end: str) -> None:
    lines = [
        line("one", 0, "reconciling"),
        line("two", 1, "reconciling", "2"),
        line("one", 2, end),
        line("two", 3, "reconciled", "2"),
    ]
    assert double_work(lines, []) == ["ns/a: two 2 began before one 1 ended"]


@pytest.mark.parametrize("end", ENDS)
def test_work_that_has_ended_is_not_held_against_the_next(end: str) -> None:
    lines = [line("one", 0, "reconciling"), line("one", 1, end), line("one", 2, "reconciling", "2")]
    assert double_work(lines, []) == []


def test_a_manager_that_was_killed_or_stopped_works_no_longer() -> None:
    begun = line("one", 0, "reconciling")
    other = [line("two", 2, "reconciling", "2"), line("two", 3, "reconciled", "2")]
    assert double_work([begun, *other], [("one", at(1))]) == []
    resumed = [begun, *other, line("one", 4, "reconcile failed")]
    assert double_work(resumed, [], [("one", at(1))]) == []
    assert double_work(resumed, [], [("one", at(2.5)), ("two", at(1))])


def test_a_member_leads_first_when_its_own_log_says_so() -> None:
    lines = [line("one", 1, "leading"), line("two", 2, "leading"), line("one", 5, "leading")]
    assert first_led(lines, "one", at(0)) == at(1)
    assert first_led(lines, "one", at(3)) == at(5)
    assert first_led(lines, "two", at(3)) is None


def test_a_slope_needs_time_to_be_one() -> None:
    samples = [(60.0 * minute, 100.0 + 2 * minute) for minute in range(11)]
    assert slope(samples, after=120) == pytest.approx(2.0)
    assert slope(samples, after=360) is None
