# SPDX-License-Identifier: Apache-2.0
"""Predicates: what passes, and what always passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import ConfigurationError
from flexinfer.event import CreateEvent, DeleteEvent, Event, UpdateEvent
from flexinfer.meta.envelope import ObjectMeta, StoredObject
from flexinfer.predicate import (
    Predicate,
    admits,
    all_of,
    annotations_changed,
    any_of,
    generation_changed,
    labels_changed,
    negate,
    resource_version_changed,
)

BUILT_IN = (
    generation_changed,
    resource_version_changed,
    labels_changed,
    annotations_changed,
)


def stored(meta: ObjectMeta) -> StoredObject:
    return StoredObject(meta, b"{}")


def update(old: ObjectMeta, new: ObjectMeta) -> UpdateEvent:
    return UpdateEvent(stored(old), stored(new))


maps = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)
metas = st.builds(
    ObjectMeta,
    uid=st.sampled_from(["1", "2"]),
    resource_version=st.sampled_from(["7", "8"]),
    generation=st.integers(0, 2),
    labels=maps,
    annotations=maps,
)
objects = st.builds(stored, metas)
updates = st.builds(UpdateEvent, objects, objects)
events = st.one_of(st.builds(CreateEvent, objects), st.builds(DeleteEvent, objects), updates)
predicates = st.recursive(
    st.sampled_from(BUILT_IN),
    lambda inner: st.one_of(
        st.builds(negate, inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: all_of(*some)),
        st.lists(inner, min_size=1, max_size=3).map(lambda some: any_of(*some)),
    ),
    max_leaves=5,
)


@given(predicates, events)
def test_no_combination_drops_a_create_or_a_delete(predicate: Predicate, event: Event) -> None:
    if not isinstance(event, UpdateEvent):
        assert predicate(event)


@given(predicates, metas, metas)
def test_no_combination_drops_another_object_of_the_same_name(
    predicate: Predicate, old: ObjectMeta, new: ObjectMeta
) -> None:
    if old.uid != new.uid and old.resource_version != new.resource_version:
        assert predicate(update(old, new))


@given(events)
def test_nothing_an_author_writes_drops_a_delete_or_a_uid_change(event: Event) -> None:
    other = isinstance(event, UpdateEvent) and event.old.meta.uid != event.new.meta.uid
    must_pass = other or isinstance(event, DeleteEvent)
    assert admits(lambda _: False, event) == must_pass


@given(events)
def test_no_predicate_admits_everything(event: Event) -> None:
    assert admits(None, event)


@pytest.mark.parametrize(
    ("predicate", "old", "new"),
    [
        (generation_changed, ObjectMeta(generation=1), ObjectMeta(generation=2)),
        (
            generation_changed,
            ObjectMeta(generation=1),
            ObjectMeta(generation=1, deletion_timestamp="2026-01-01T00:00:00Z"),
        ),
        (
            resource_version_changed,
            ObjectMeta(resource_version="1"),
            ObjectMeta(resource_version="2"),
        ),
        (labels_changed, ObjectMeta(), ObjectMeta(labels={"a": "b"})),
        (annotations_changed, ObjectMeta(), ObjectMeta(annotations={"a": "b"})),
    ],
)
def test_a_change_of_what_it_looks_at_passes(
    predicate: Predicate, old: ObjectMeta, new: ObjectMeta
) -> None:
    assert predicate(update(old, new))
    assert not predicate(update(new, new))
    assert not negate(predicate)(update(old, new))


def test_a_status_write_does_not_change_the_generation() -> None:
    old = ObjectMeta(generation=3, resource_version="1")
    new = ObjectMeta(generation=3, resource_version="2", labels={"a": "b"})
    assert not generation_changed(update(old, new))


def test_a_kind_without_generation_passes_every_change() -> None:
    old, new = ObjectMeta(resource_version="1"), ObjectMeta(resource_version="2")
    assert generation_changed(update(old, new))
    assert not generation_changed(update(new, new))


def test_combinators_combine() -> None:
    old = ObjectMeta(generation=1)
    relabelled = ObjectMeta(generation=1, labels={"a": "b"})
    event = update(old, relabelled)
    assert any_of(generation_changed, labels_changed)(event)
    assert not all_of(generation_changed, labels_changed)(event)


def test_combining_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"all_of\(\) has no predicates"):
        all_of()
    with pytest.raises(ConfigurationError, match=r"any_of\(\) has no predicates"):
        any_of()
