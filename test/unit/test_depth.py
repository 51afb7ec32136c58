# SPDX-License-Identifier: Apache-2.0
"""An object that is nested as deep as the API server allows harms nobody but itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import DecodeError
from flexinfer.meta.depth import prune
from flexinfer.meta.envelope import decode_object, decode_tree
from flexinfer.meta.wire import decode_event, decode_list

# What the API server's JSON decoder takes at most.
DEEPEST = 10_000

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def item(name: str, levels: int = 0) -> bytes:
    spec = nested(levels)
    fields = b'{"name":"%s","managedFields":[{"fieldsV1":%s}]}' % (name.encode(), spec)
    return b'{"metadata":%s,"spec":%s,"status":{"phase":"Ready"}}' % (fields, spec)


@pytest.mark.parametrize("levels", [900, DEEPEST])
def test_a_deep_object_is_read_but_for_what_is_too_deep(levels: int) -> None:
    stored = decode_object(item("deep", levels))
    assert stored.meta.name == "deep"
    tree = decode_tree(stored.body)
    assert tree["status"] == {"phase": "Ready"}
    assert tree["spec"]["a"]["a"]["a"]


def test_a_deep_object_does_not_cost_the_rest_of_a_list() -> None:
    page = decode_list(
        b'{"metadata":{"resourceVersion":"7"},"items":[%s,%s,%s]}'
        % (item("first"), item("deep", DEEPEST), item("last"))
    )
    assert [stored.meta.name for stored in page.items] == ["first", "deep", "last"]
    assert page.unreadable == 0


def test_the_going_of_a_deep_object_is_seen() -> None:
    event = decode_event(b'{"type":"DELETED","object":%s}' % item("deep", DEEPEST))
    assert event.object is not None
    assert (event.type, event.object.meta.name) == ("DELETED", "deep")


def test_a_cut_line_is_refused_however_deep_it_was() -> None:
    with pytest.raises(DecodeError):
        decode_event(b'{"type":"ADDED","object":%s' % nested(DEEPEST)[: DEEPEST * 5])


@given(_json)
def test_what_is_not_deep_stays_as_it_is(value: Any) -> None:
    data = json.dumps(value).encode()
    assert prune(data, depth=100) == data


@given(_json, st.integers(min_value=0, max_value=3))
def test_what_is_deeper_reads_as_null(value: Any, depth: int) -> None:
    data = json.dumps(value).encode()
    assert json.loads(prune(data, depth=depth)) == shallow(value, depth)


def shallow(value: Any, depth: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if depth == 0:
        return None
    if isinstance(value, list):
        return [shallow(entry, depth - 1) for entry in value]
    return {field: shallow(entry, depth - 1) for field, entry in value.items()}
