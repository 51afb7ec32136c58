# SPDX-License-Identifier: Apache-2.0
"""Quantities are exact, ordered by value, and print as Go's resource.Quantity does."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from flexinfer.errors import ConfigurationError
from flexinfer.meta.quantity import (
    NON_NEGATIVE_PATTERN,
    PATTERN,
    ZERO,
    NonNegativeQuantity,
    Quantity,
)

SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "e3": Fraction(10**3),
    "E-3": Fraction(1, 1000),
    "e+0": Fraction(1),
}
suffixes = st.sampled_from(sorted(SUFFIXES))
quantities = st.builds(
    lambda number, suffix: Quantity.parse(f"{number}{suffix}"),
    st.integers(-(10**6), 10**6),
    suffixes,
)


# Printed by k8s.io/apimachinery v0.37.2 for the same inputs.
@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0Ki", "0"),
        ("0e5", "0"),
        ("+1", "1"),
        ("-1", "-1"),
        ("1.", "1"),
        ("01", "1"),
        (".5", "500m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1.500", "1500m"),
        ("1024Mi", "1Gi"),
        ("1025Mi", "1025Mi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("0.3Ki", "307200m"),
        ("1.1Ki", "1126400m"),
        ("-1.1Ki", "-1126400m"),
        ("-2Ki", "-2Ki"),
        ("1000Ki", "1000Ki"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("1000k", "1M"),
        ("1e3", "1e3"),
        ("1e5", "100e3"),
        ("12E6", "12e6"),
        ("1e-1", "100e-3"),
        ("1.5e-3", "1500e-6"),
        ("1E", "1E"),
        ("1e20", "100e18"),
        ("5e0", "5"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1e-10", "1e-9"),
        ("1.0000000001", "1000000001n"),
        ("0.000000001Gi", "1073741824n"),
        ("9223372036854775808", "9223372036854775808"),
        ("16Pi", "16Pi"),
        ("1Ei", "1Ei"),
        ("100Ei", "9223372036854775807"),
        ("-9Ei", "-9223372036854775807"),
    ],
)
def test_the_canonical_form_is_that_of_go(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


def test_more_than_the_largest_suffix_keeps_its_value() -> None:
    # Go prints 1 here, having no suffix for 10²¹.
    assert str(Quantity.parse("1000E")) == "1000E"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "+",
        "abc",
        "1i",
        "1K",
        "1ki",
        "1 Gi",
        " 1",
        "1e",
        "1e1.5",
        "1_000",
        "٣",
        "1\n",
        "1mm",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no quantity: write it like"):
        Quantity.parse(text)


def test_absurd_texts_cost_nothing() -> None:
    with pytest.raises(ConfigurationError, match="exponent 1000000000"):
        Quantity.parse("1e1000000000")
    with pytest.raises(ConfigurationError, match="no quantity"):
        Quantity.parse("9" * 1000)
    with pytest.raises(ConfigurationError) as caught:
        Quantity.parse("x" * 1000)
    assert len(str(caught.value)) < 100


@given(quantities)
def test_printing_and_parsing_is_a_round_trip(quantity: Quantity) -> None:
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert str(again) == str(quantity)
    assert hash(again) == hash(quantity)


@given(st.integers(-(10**9), 10**9), suffixes, st.integers(-(10**9), 10**9), suffixes)
@example(2**23, "Ti", 2**23 + 1, "Ti")
def test_order_is_by_value(a: int, unit: str, b: int, other: str) -> None:
    left, right = Quantity.parse(f"{a}{unit}"), Quantity.parse(f"{b}{other}")
    exact_left, exact_right = capped(a, unit), capped(b, other)
    assert (left < right) == (exact_left < exact_right)
    assert (left == right) == (exact_left == exact_right)
    assert (left >= right) == (exact_left >= exact_right)


def capped(number: int, unit: str) -> Fraction:
    """What resource.Quantity makes of an amount: binary ones end at the largest int64."""
    amount, largest = number * SUFFIXES[unit], Fraction(2**63 - 1)
    return max(-largest, min(amount, largest)) if unit.endswith("i") else amount


@given(quantities, quantities, st.integers(0, 1000))
def test_arithmetic_is_exact(a: Quantity, b: Quantity, times: int) -> None:
    assert (a + b).nanos == a.nanos + b.nanos
    assert a + b - b == a
    assert a * times == sum((a for _ in range(min(times, 50))), ZERO) + a * max(times - 50, 0)
    assert max(a, b) in {a, b}


def test_zero_takes_the_form_of_what_is_added() -> None:
    assert str(ZERO + Quantity.parse("2Gi")) == "2Gi"
    assert str(Quantity.parse("1Gi") + Quantity.parse("1G")) == "2073741824"
    assert not ZERO
    assert Quantity.parse(1)


def test_numbers_out() -> None:
    assert int(Quantity.parse("1500m")) == 2
    assert int(Quantity.parse("-1500m")) == -1
    assert float(Quantity.parse("1500m")) == 1.5
    assert repr(Quantity.parse("1024Mi")) == "Quantity('1Gi')"


def test_other_types_do_not_compare() -> None:
    assert Quantity.parse(1) != 1
    with pytest.raises(TypeError):
        assert Quantity.parse(1) < 1


def test_a_model_field_takes_numbers_and_strings() -> None:
    adapter = TypeAdapter(Quantity)
    assert adapter.validate_python(3) == adapter.validate_python("3")
    assert adapter.validate_json('"1024Mi"') == Quantity.parse("1Gi")
    assert adapter.validate_python(Quantity.parse(3)) == Quantity.parse(3)
    assert adapter.dump_python(Quantity.parse("1024Mi"), mode="json") == "1Gi"


@pytest.mark.parametrize("value", [True, 1.5, None, [], "x"])
def test_a_model_field_refuses_the_rest(value: object) -> None:
    with pytest.raises(ValidationError, match="no quantity"):
        TypeAdapter(Quantity).validate_python(value)


def test_the_schema_says_int_or_string() -> None:
    assert TypeAdapter(Quantity).json_schema() == {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": 128,
        "pattern": PATTERN,
        "x-kubernetes-int-or-string": True,
    }


def test_a_field_may_refuse_negative_ones() -> None:
    adapter: TypeAdapter[Quantity] = TypeAdapter(NonNegativeQuantity)
    assert adapter.validate_python("0") == ZERO
    with pytest.raises(ValidationError, match="-5Gi is negative"):
        adapter.validate_python("-5Gi")
    assert adapter.json_schema()["pattern"] == NON_NEGATIVE_PATTERN


@given(quantities)
def test_the_patterns_are_those_of_what_is_printed(quantity: Quantity) -> None:
    assert re.fullmatch(PATTERN, str(quantity))
    assert bool(re.fullmatch(NON_NEGATIVE_PATTERN, str(quantity))) == (quantity >= ZERO)


@pytest.mark.parametrize(("text", "fits"), [("1e99", True), ("1E-007", True), ("1e100", False)])
def test_the_pattern_knows_the_largest_exponent(text: str, fits: bool) -> None:  # noqa: FBT001
    assert bool(re.fullmatch(PATTERN, text)) is fits
