# SPDX-License-Identifier: Apache-2.0
"""Whatever comes fits what events.k8s.io/v1 accepts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.recorder.limits import (
    controller_name,
    event_name,
    fit,
    instance_name,
    required,
)

# The API server's own rules.
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
anything = st.text(st.characters(exclude_categories=[]))


def is_qualified(name: str) -> bool:
    prefix, slash, tail = name.rpartition("/")
    domain = not slash or (len(prefix) <= 253 and SUBDOMAIN.fullmatch(prefix))
    return bool(domain and len(tail) <= 63 and NAME.fullmatch(tail))


@given(text=anything, limit=st.integers(3, 40))
def test_a_text_fits_and_is_whole_characters(text: str, limit: int) -> None:
    fitted = fit(text, limit)
    assert len(fitted.encode()) <= limit
    if len(text.encode("utf-8", "replace")) > limit:
        assert fitted.endswith("…")
        assert text.encode("utf-8", "replace").decode().startswith(fitted[:-1])


def test_a_short_text_stays_and_a_long_one_ends_in_an_ellipsis() -> None:
    assert fit("grün", 5) == "grün"
    assert fit("grüner", 5) == "gr…"
    assert fit("\ud800x", 9) == "?x"


@given(text=anything, default=anything)
def test_a_word_is_never_empty_nor_long(text: str, default: str) -> None:
    assert 1 <= len(required(text, default).encode()) <= 128


def test_an_empty_word_has_a_stand_in() -> None:
    assert (required(" ", "Created"), required("", "")) == ("Created", "Unspecified")


@given(name=anything.filter(str.strip))
def test_c65_a_controller_name_is_qualified(name: str) -> None:
    assert is_qualified(controller_name(name))
    if is_qualified(name):
        assert controller_name(name) == name


@pytest.mark.parametrize("name", ["model-controller", "flexinfer.ai/model", "a" * 63, "X_y.z"])
def test_a_good_controller_name_stays(name: str) -> None:
    assert controller_name(name) == name


def test_c65_long_names_that_differ_at_their_end_stay_two() -> None:
    first, second = controller_name("c" * 200 + "1"), controller_name("c" * 200 + "2")
    assert first != second
    assert len(first) == len(second) == 63
    first, second = instance_name("i" * 200 + "1"), instance_name("i" * 200 + "2")
    assert first != second
    assert len(first) == len(second) == 128


@given(name=anything.filter(bool))
def test_c65_an_instance_name_fits(name: str) -> None:
    assert 1 <= len(instance_name(name).encode()) <= 128


@given(name=st.one_of(anything, st.text("aA.-:", min_size=200, max_size=260)))
def test_an_event_name_is_a_subdomain(name: str) -> None:
    made = event_name(name, "0123456789abcdef")
    assert len(made) <= 253
    assert SUBDOMAIN.fullmatch(made)
    assert made.endswith("0123456789abcdef")
