# SPDX-License-Identifier: Apache-2.0
"""Durations read and print as Go's time.Duration does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from flexinfer.errors import ConfigurationError
from flexinfer.meta.duration import (
    NON_NEGATIVE_PATTERN,
    PATTERN,
    Duration,
    NonNegativeDuration,
)


# Printed by Go 1.26 for the same inputs.
@pytest.mark.parametrize(
    ("text", "canonical", "nanoseconds"),
    [
        ("0", "0s", 0),
        ("300ms", "300ms", 300_000_000),
        ("1h30m", "1h30m0s", 5_400_000_000_000),
        ("90m", "1h30m0s", 5_400_000_000_000),
        ("-1.5h", "-1h30m0s", -5_400_000_000_000),
        ("+5s", "5s", 5_000_000_000),
        ("1.5s", "1.5s", 1_500_000_000),
        ("1us", "1µs", 1000),
        ("1µs", "1µs", 1000),
        ("1\u03bcs", "1µs", 1000),
        ("100ns", "100ns", 100),
        ("1.5ms", "1.5ms", 1_500_000),
        ("2h45m30.5s", "2h45m30.5s", 9_930_500_000_000),
        (".5s", "500ms", 500_000_000),
        ("1.s", "1s", 1_000_000_000),
        ("1h1h", "2h0m0s", 7_200_000_000_000),
        ("0.0000000001s", "0s", 0),
        ("1.0005us", "1µs", 1000),
        ("60s", "1m0s", 60_000_000_000),
        ("1m0.05s", "1m0.05s", 60_050_000_000),
        ("9223372036854775807ns", "2562047h47m16.854775807s", 2**63 - 1),
        ("-9223372036854775808ns", "-2562047h47m16.854775808s", -(2**63)),
    ],
)
def test_the_forms_are_those_of_go(text: str, canonical: str, nanoseconds: int) -> None:
    duration = Duration.parse(text)
    assert duration.nanoseconds == nanoseconds
    assert str(duration) == canonical


@pytest.mark.parametrize("text", ["", "-", "s", ".s", "5", "1d", "1h 2m", "1h-2m", "5s\n", "٣s"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no duration: write it like"):
        Duration.parse(text)


@pytest.mark.parametrize("text", ["9223372036854775808ns", "-2562048h", "9" * 100 + "h"])
def test_what_go_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="out of range"):
        Duration.parse(text)


def test_absurd_texts_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no duration"):
        Duration.parse("1s" * 1000)


@given(st.integers(-(2**63), 2**63 - 1))
def test_printing_and_parsing_is_a_round_trip(nanoseconds: int) -> None:
    duration = Duration(nanoseconds)
    assert Duration.parse(str(duration)) == duration
    assert re.fullmatch(PATTERN, str(duration))
    assert bool(re.fullmatch(NON_NEGATIVE_PATTERN, str(duration))) == (nanoseconds >= 0)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_order_is_by_length(a: int, b: int) -> None:
    assert (Duration(a) < Duration(b)) == (a < b)


def test_seconds_in_and_out() -> None:
    assert Duration.parse("1m30s").seconds == 90.0
    assert Duration.from_seconds(0.3) == Duration.parse("300ms")
    assert repr(Duration.parse("90s")) == "Duration('1m30s')"
    assert not Duration()
    assert Duration(1)


def test_a_model_field_takes_and_gives_strings() -> None:
    adapter = TypeAdapter(Duration)
    assert adapter.validate_json('"90s"') == Duration.parse("90s")
    assert adapter.validate_python(Duration(5)) == Duration(5)
    assert adapter.dump_python(Duration.parse("90s"), mode="json") == "1m30s"
    with pytest.raises(ValidationError, match="no duration"):
        adapter.validate_python(90)
    assert adapter.json_schema()["pattern"] == PATTERN


def test_a_field_may_refuse_negative_ones() -> None:
    adapter: TypeAdapter[Duration] = TypeAdapter(NonNegativeDuration)
    assert adapter.validate_python("0s") == Duration()
    with pytest.raises(ValidationError, match="-5s is negative"):
        adapter.validate_python("-5s")
    assert adapter.json_schema()["pattern"] == NON_NEGATIVE_PATTERN
