# SPDX-License-Identifier: Apache-2.0
"""Conditions follow metav1.Condition and survive the way to the server and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flexinfer.meta.condition import MAX_MESSAGE, Condition, ConditionStatus

NOON = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


def condition(**fields: Any) -> Condition:
    given_fields = {
        "type": "Ready",
        "status": "True",
        "last_transition_time": NOON,
        "reason": "AllGood",
        "message": "",
    }
    return Condition(**given_fields | fields)


def test_the_wire_form_is_that_of_the_api() -> None:
    assert condition(observed_generation=3).wire() == {
        "type": "Ready",
        "status": "True",
        "observedGeneration": 3,
        "lastTransitionTime": "2026-01-31T12:00:00Z",
        "reason": "AllGood",
        "message": "",
    }
    assert "observedGeneration" not in condition().wire()


@pytest.mark.parametrize("generation", [None, 0, 3])
def test_the_wire_form_is_what_the_model_says(generation: int | None) -> None:
    found = condition(observed_generation=generation)
    said = found.model_dump(by_alias=True, exclude_none=True, mode="json")
    assert list(found.wire().items()) == list(said.items())


@given(
    st.datetimes(
        min_value=datetime(1000, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
        max_value=datetime(9998, 12, 30),  # noqa: DTZ001 - as above
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
    )
)
def test_a_time_survives_the_round_trip(moment: datetime) -> None:
    first = condition(last_transition_time=moment)
    again = Condition.model_validate(first.wire())
    assert again == first
    assert again.wire() == first.wire()
    assert timedelta() <= moment - again.last_transition_time < timedelta(seconds=1)


def test_fractions_and_zones_are_read() -> None:
    read = condition(last_transition_time="2026-01-31T13:00:00.987+01:00")
    assert read.last_transition_time == NOON


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs a time zone"):
        condition(last_transition_time=NOON.replace(tzinfo=None))


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-10:00"])
def test_a_time_that_utc_has_no_year_for_is_refused(moment: str) -> None:
    with pytest.raises(ValidationError, match="years 1 to 9999"):
        condition(last_transition_time=moment)


def test_the_status_is_one_of_three() -> None:
    assert condition(status=ConditionStatus.UNKNOWN).status == "Unknown"
    with pytest.raises(ValidationError, match="'True', 'False' or 'Unknown'"):
        condition(status="Maybe")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", ""),
        ("type", "Not Ready"),
        ("type", "x" * 317),
        ("type", "Ready\n"),
        ("reason", ""),
        ("reason", "two words"),
        ("reason", "9Lives"),
        ("reason", "x" * 1025),
        ("message", "x" * (MAX_MESSAGE + 1)),
        ("observed_generation", -1),
    ],
)
def test_what_the_server_would_refuse_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        condition(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "example.com/Ready"),
        ("type", "Ready_2.x"),
        ("reason", "A"),
        ("reason", "Half_done:x,y"),
        ("message", "ü" * MAX_MESSAGE),
    ],
)
def test_what_the_server_would_take_is_taken(field: str, value: str) -> None:
    assert getattr(condition(**{field: value}), field) == value
