# SPDX-License-Identifier: Apache-2.0
"""Conditions are values: same input, same list, and a time that moves only with the status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer import conditions
from flexinfer.conditions import MAX_MESSAGE
from flexinfer.meta.condition import Condition, ConditionStatus

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def condition(
    type_: str, status: ConditionStatus = ConditionStatus.TRUE, **more: object
) -> Condition:
    fields: dict[str, object] = {
        "type": type_,
        "status": status,
        "last_transition_time": NOW,
        "reason": "Tested",
        "message": "",
    }
    return Condition.model_validate(fields | more)


times = st.floats(-1e8, 1e8).map(lambda seconds: NOW + timedelta(seconds=seconds))
types = st.sampled_from(["Available", "Cached", "Ready", "Schedulable"])
some_conditions = st.builds(
    condition,
    types,
    st.sampled_from(ConditionStatus),
    message=st.sampled_from(["", "short", "é" * MAX_MESSAGE, "x" * (2 * MAX_MESSAGE)]),
    reason=st.sampled_from(["A", "B"]),
    last_transition_time=times,
)


def test_a_status_that_is_a_plain_word_flips_as_the_member_does() -> None:
    found = [condition("Ready", ConditionStatus.TRUE, last_transition_time=NOW)]

    def set_to(word: str) -> datetime:
        status: Any = word
        made = conditions.set_condition(
            found, "Ready", status, reason="Other", observed_generation=2, now=LATER
        )
        return made[0].last_transition_time

    assert set_to("True") == NOW.replace(microsecond=0)
    assert set_to("False") == LATER.replace(microsecond=0)


@given(st.lists(some_conditions), some_conditions, times, times)
def test_upserting_the_same_again_changes_nothing_however_late(
    before: list[Condition], new: Condition, now: datetime, later: datetime
) -> None:
    once = conditions.upsert(before, new, now=now)
    assert conditions.upsert(once, new, now=later) == once


@given(st.lists(some_conditions), some_conditions, times)
def test_the_transition_time_moves_exactly_when_the_status_does(
    before: list[Condition], new: Condition, now: datetime
) -> None:
    old = conditions.find(conditions.normalise(before), new.type)
    found = conditions.find(conditions.upsert(before, new, now=now), new.type)
    assert found is not None
    if old is not None and old.status is new.status:
        assert found.last_transition_time == old.last_transition_time
    else:
        assert found.last_transition_time == now.replace(microsecond=0)


@given(st.lists(some_conditions), some_conditions, times)
def test_the_order_is_ready_first_and_then_by_type_whatever_came_in(
    before: list[Condition], new: Condition, now: datetime
) -> None:
    after = [c.type for c in conditions.upsert(before, new, now=now)]
    expected = {c.type for c in before} | {new.type}
    assert after == sorted(expected, key=lambda t: (t != "Ready", t))


@given(st.lists(some_conditions))
def test_normalising_is_idempotent_and_leaves_the_input_alone(before: list[Condition]) -> None:
    copy = list(before)
    once = conditions.normalise(before)
    assert conditions.normalise(once) == once
    assert before == copy
    assert all(len(c.message) <= MAX_MESSAGE for c in once)


def test_the_last_of_two_conditions_of_one_type_wins() -> None:
    old, new = condition("Ready", ConditionStatus.FALSE), condition("Ready")
    assert conditions.normalise([old, new]) == [new]


def test_a_long_message_ends_in_an_ellipsis() -> None:
    (found,) = conditions.normalise([condition("Ready", message="x" * (MAX_MESSAGE + 1))])
    assert found.message == "x" * (MAX_MESSAGE - 1) + "…"
    assert conditions.shorten("x" * MAX_MESSAGE) == "x" * MAX_MESSAGE


@pytest.mark.parametrize(
    ("message", "cut"),
    [
        ("twelve chars", "twelve chars"),
        ("one two three", "one two…"),
        ("one two\nthree", "one two…"),
        ("one two, threefold", "one two,…"),
        ("eleven char s", "eleven char…"),
        ("run it: `ls -l`", "run it:…"),
        ("`ls -l` again and", "`ls -l`…"),
        ("one: threeandfour", "one: threea…"),
        ("`ls --all -l`", "`ls --all -…"),
    ],
)
def test_a_message_is_cut_between_words_and_not_within_a_command(message: str, cut: str) -> None:
    assert conditions.shorten(message, 12) == cut


@given(st.text("ab `\n", max_size=60), st.integers(1, 40))
def test_what_is_cut_is_a_beginning_that_fits_and_is_not_cut_again(text: str, limit: int) -> None:
    found = conditions.shorten(text, limit)
    assert len(found) <= limit
    assert text.startswith(found.removesuffix("…"))
    assert (found == text) is (len(text) <= limit)
    assert conditions.shorten(found, limit) == found


def test_set_model_condition_keeps_the_time_until_the_status_flips() -> None:
    def ready(before: list[Condition], status: ConditionStatus, now: datetime) -> list[Condition]:
        return conditions.set_condition(
            before,
            "Ready",
            status,
            reason="Waiting",
            message="y" * 2000,
            observed_generation=3,
            now=now,
        )

    first = ready([], ConditionStatus.FALSE, NOW)
    assert first[0].wire() == {
        "type": "Ready",
        "status": "False",
        "observedGeneration": 3,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
        "reason": "Waiting",
        "message": "y" * (MAX_MESSAGE - 1) + "…",
    }
    assert ready(first, ConditionStatus.FALSE, LATER) == first
    (flipped,) = ready(first, ConditionStatus.TRUE, LATER)
    assert flipped.last_transition_time == LATER.replace(microsecond=0)


def test_unknown_and_absent_are_not_true() -> None:
    found = [condition("Ready"), condition("Cached", ConditionStatus.UNKNOWN)]
    assert conditions.is_true(found, "Ready")
    assert not conditions.is_true(found, "Cached")
    assert not conditions.is_true(found, "Schedulable")
