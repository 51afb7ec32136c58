# SPDX-License-Identifier: Apache-2.0
"""Selectors read kubectl's syntax and API fields, and agree with the API server's matching."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import ConfigurationError
from flexinfer.meta.selector import (
    LabelSelector,
    LabelSelectorRequirement,
    Operator,
    Requirement,
    Selector,
)

names = st.sampled_from(["a", "b", "in", "notin", "ex.io/a", "A_1.b"])
values = st.sampled_from(["", "x", "y", "in", "1"])
requirements = st.one_of(
    st.builds(
        Requirement,
        names,
        st.sampled_from([Operator.IN, Operator.NOT_IN]),
        st.lists(values, min_size=1, max_size=3).map(tuple),
    ),
    st.builds(Requirement, names, st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST])),
)
selectors = st.builds(Selector, st.lists(requirements, max_size=4).map(tuple))
labels = st.dictionaries(names, values, max_size=4)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("  ", ""),
        ("a=b", "a=b"),
        ("a==b", "a=b"),
        (" a = b , c ", "a=b,c"),
        ("a=b,c in (x,y),!d", "a=b,c in (x,y),!d"),
        ("z=1,a=2", "a=2,z=1"),
        ("a!=b", "a!=b"),
        ("! a", "!a"),
        ("a notin (y, x)", "a notin (x,y)"),
        ("a in(x,x)", "a=x"),
        ("a=", "a="),
        ("a=,b", "a=,b"),
        ("a in ()", "a="),
        ("a in (x,,y)", "a in (,x,y)"),
        ("in in (in)", "in=in"),
        ("notin", "notin"),
        ("!in", "!in"),
        ("ex.io/d=e", "ex.io/d=e"),
        ("a=b,a=b", "a=b"),
    ],
)
def test_the_query_form_is_read_and_written(text: str, canonical: str) -> None:
    assert str(Selector.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a,", "''"),
        (",a", "''"),
        ("a b", "'a b'"),
        ("a in x", "'a in x'"),
        ("a in (x", "'a in (x'"),
        ("a!b", "'a!b'"),
        ("!a=b", "'!a=b'"),
        ("a=b=c", "'a=b=c'"),
        ("a>1", "'a>1'"),
        ("ok,-a=b", "'-a'"),
        ("a=-b", "'-b'"),
        ("A_b.c/d=e", "'A_b.c/d'"),
        ("a/b/c", "'a/b/c'"),
        ("/a", "'/a'"),
        ("a=" + "x" * 64, "x" * 64),
        ("x" * 64, "x" * 64),
        ("p" * 254 + "/a", "/a"),
    ],
)
def test_what_the_server_would_refuse_is_named(text: str, part: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Selector.parse(text)
    assert part in str(caught.value)


@given(selectors)
def test_writing_and_reading_is_a_round_trip(selector: Selector) -> None:
    assert Selector.parse(str(selector)) == selector


@given(selectors, selectors, labels)
def test_joining_texts_joins_requirements(
    one: Selector, other: Selector, on: dict[str, str]
) -> None:
    joined = Selector.parse(",".join(filter(None, map(str, (one, other)))))
    assert joined.matches(on) == (one.matches(on) and other.matches(on))


@given(names, st.lists(values, min_size=1).map(tuple), labels)
def test_the_negative_is_the_opposite(key: str, among: tuple[str, ...], on: dict[str, str]) -> None:
    inside = Requirement(key, Operator.IN, among)
    outside = Requirement(key, Operator.NOT_IN, among)
    assert inside.matches(on) != outside.matches(on)
    there = Requirement(key, Operator.EXISTS)
    absent = Requirement(key, Operator.DOES_NOT_EXIST)
    assert there.matches(on) != absent.matches(on)


@given(labels)
def test_an_object_is_selected_by_its_own_labels(on: dict[str, str]) -> None:
    selector = Selector.from_labels(on)
    assert selector.matches(on)
    assert selector.matches({**on, "more": "x"})
    assert Selector().matches(on)
    if on:
        assert not selector.matches({})


def test_an_absent_label_is_not_an_empty_one() -> None:
    assert not Selector.parse("a=").matches({})
    assert Selector.parse("a=").matches({"a": ""})
    assert Selector.parse("a!=b").matches({})


def test_values_belong_to_in_and_not_in() -> None:
    with pytest.raises(ConfigurationError, match="Exists requirement on 'a' takes no values"):
        Requirement("a", Operator.EXISTS, ("b",))
    with pytest.raises(ConfigurationError, match="In requirement on 'a' takes at least one"):
        Requirement("a", Operator.IN)


def test_the_api_field_selects_too() -> None:
    field = LabelSelector.model_validate(
        {
            "matchLabels": {"a": "b"},
            "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["x", "y"]}],
        }
    )
    assert str(field.selector()) == "a=b,c notin (x,y)"
    assert field.matches({"a": "b"})
    assert not field.matches({"a": "b", "c": "x"})
    assert LabelSelector().matches({})
    assert field.wire()["matchExpressions"][0]["operator"] == "NotIn"


def test_a_malformed_api_field_is_named() -> None:
    wrong = LabelSelector(match_expressions=(LabelSelectorRequirement(key="a b", operator="In"),))
    with pytest.raises(ConfigurationError, match="'a b' is no label key"):
        wrong.matches({})
