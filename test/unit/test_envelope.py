# SPDX-License-Identifier: Apache-2.0
"""What is read of an object, and what many objects share."""

from __future__ import annotations

import pytest

from flexinfer.errors import DecodeError
from flexinfer.meta.envelope import ObjectMeta, decode_object
from flexinfer.meta.frozendict import EMPTY
from flexinfer.meta.wire import decode_event, decode_list

PLAIN = b'{"metadata":{"name":"a","namespace":"ns","creationTimestamp":"2026-01-01T00:00:00Z"}}'


@pytest.mark.parametrize("item", [b"5", b'"text"', b"null", b"[]", b"[{}]", b'{"metadata":7}'])
def test_an_item_that_is_no_object_is_left_out_and_counted(item: bytes) -> None:
    page = decode_list(b'{"metadata":{"resourceVersion":"7"},"items":[%s,%s]}' % (PLAIN, item))
    assert [stored.meta.name for stored in page.items] == ["a"]
    assert (page.resource_version, page.unreadable) == ("7", 1)


@pytest.mark.parametrize("item", [b"5", b'{"sp\xffec":1}', b'{"metadata":{"name":"\xff"}}'])
def test_one_item_is_not_all_of_a_list_that_says_little(item: bytes) -> None:
    page = decode_list(b'{"items":[%s,%s]}' % (PLAIN, item))
    assert [stored.meta.name for stored in page.items] == ["a"]
    assert (page.resource_version, page.unreadable) == ("", 1)


@pytest.mark.parametrize("data", [b'{"items":{}}', b'{"items":[{}],"metadata":[]}', b"[]"])
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="unreadable list"):
        decode_list(data)


def test_the_items_of_a_list_share_what_is_the_same() -> None:
    one, two = decode_list(b'{"items":[%s,%s]}' % (PLAIN, PLAIN)).items
    assert one.meta == two.meta
    assert one.meta.namespace is two.meta.namespace
    assert one.meta.creation_timestamp is two.meta.creation_timestamp
    assert one.meta.labels is two.meta.annotations is ObjectMeta().labels is EMPTY
    with pytest.raises(TypeError, match="frozen"):
        one.meta.labels["a"] = "b"


def test_a_part_is_a_field_of_the_object_and_not_one_inside_it() -> None:
    stored = decode_object(b'{"metadata":{},"spec":{"status":1},"a\\"status\\"":2}')
    assert stored.part("status") is None
    assert stored.part("spec") == {"status": 1}
    assert stored.part("data") is None


@pytest.mark.parametrize("line", [b'{"type":"ADDED"}', b'{"type":"ADDED","object":7}', b"[]"])
def test_a_line_that_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(DecodeError, match="unreadable watch line"):
        decode_event(line)


def test_an_event_whose_metadata_cannot_be_read_says_so() -> None:
    with pytest.raises(DecodeError, match="unreadable object") as caught:
        decode_event(b'{"type":"ADDED","object":{"metadata":{"labels":null}}}')
    assert caught.value.field == "metadata"


def test_an_event_of_what_is_known_is_that_very_object() -> None:
    known = decode_object(PLAIN)
    line = b'{"type":"ADDED","object":%s}' % PLAIN
    assert decode_event(line, known=lambda _: known).object is known
    event = decode_event(line, known=lambda _: None).object
    assert event is not None
    assert event is not known
    assert (event.meta, event.body) == (known.meta, known.body)
