# SPDX-License-Identifier: Apache-2.0
"""The store: objects, indexes and models stay consistent whatever happens to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.cache.memo import ModelMemo
from flexinfer.cache.store import Store, changes
from flexinfer.errors import ConfigurationError, DecodeError
from flexinfer.event import CreateEvent, DeleteEvent, UpdateEvent
from flexinfer.meta.envelope import ObjectMeta, StoredObject, decode_object, encode
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable


class WidgetSpec(Model):
    size: int = 0


class Widget(Object):
    resource: ClassVar[Resource] = Resource(GroupVersionKind("test.io", "v1", "Widget"), "widgets")
    spec: WidgetSpec = WidgetSpec()


class WidgetName(Object):
    resource: ClassVar[Resource] = Widget.resource


def item(
    name: str = "a",
    *,
    namespace: str = "ns",
    uid: str = "u",
    version: str = "1",
    size: object = 0,
    **labels: str,
) -> StoredObject:
    meta = ObjectMeta(
        name=name, namespace=namespace, uid=uid, resource_version=version, labels=labels
    )
    return StoredObject(meta, f'{{"spec":{{"size":{size}}}}}'.encode())


def put(store: Store, *items: StoredObject) -> None:
    for one in items:
        store.put(one.meta.key, one)


def by_color(one: StoredObject) -> Iterable[str]:
    return [one.meta.labels["color"]]


def test_a_name_that_was_not_there_is_a_create() -> None:
    new = item()
    assert changes(None, new, is_initial=True) == (CreateEvent(new, is_initial=True),)


def test_the_same_version_of_an_object_is_no_change() -> None:
    assert changes(item(version="5"), item(version="5")) == ()


def test_another_version_of_an_object_is_an_update() -> None:
    old, new = item(version="5"), item(version="6")
    assert changes(old, new) == (UpdateEvent(old, new),)


def test_another_uid_is_a_delete_and_a_create() -> None:
    old, new = item(uid="u1", version="5"), item(uid="u2", version="6")
    assert changes(old, new) == (DeleteEvent(old), CreateEvent(new))


def test_objects_are_found_by_key_and_by_namespace() -> None:
    store = Store()
    a, b, c = item("a"), item("b"), item("c", namespace="other")
    put(store, a, b)
    assert set(store.objects("ns")) == {a, b}
    put(store, c)
    assert store.get(NamespacedName("other", "c")) is c
    assert store.objects("other") == [c]
    assert set(store.objects()) == {a, b, c}
    store.remove(NamespacedName("ns", "a"))
    assert store.objects("ns") == [b]
    assert store.objects("nowhere") == []
    assert len(store) == 2


def test_removing_what_is_not_there_changes_nothing() -> None:
    store = Store()
    put(store, item())
    store.remove(NamespacedName("ns", "other"))
    assert len(store) == 1


def test_an_index_follows_its_objects() -> None:
    store = Store()
    put(store, item("a", color="red"))
    store.add_index("color", by_color)
    put(store, item("b", color="red"), item("a", color="blue", version="2"))
    assert [o.meta.name for o in store.by_index("color", "red")] == ["b"]
    assert [o.meta.name for o in store.by_index("color", "blue")] == ["a"]
    store.remove(NamespacedName("ns", "b"))
    assert store.by_index("color", "red") == []
    assert store.has_index("color")


def test_an_unknown_index_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="no index 'color'"):
        Store().by_index("color", "red")


def test_an_index_name_is_used_once_and_not_empty() -> None:
    store = Store()
    store.add_index("color", by_color)
    with pytest.raises(ConfigurationError, match="already"):
        store.add_index("color", by_color)
    with pytest.raises(ConfigurationError, match="name"):
        store.add_index("", by_color)


def test_c26_a_raising_index_function_is_isolated_and_reported() -> None:
    failures: list[tuple[str, NamespacedName, Exception]] = []
    store = Store(on_index_error=lambda *failure: failures.append(failure))
    store.add_index("color", by_color)
    put(store, item("a", color="red"), item("b"), item("c", color="red"))
    assert {o.meta.name for o in store.by_index("color", "red")} == {"a", "c"}
    assert [(name, key.name) for name, key, _ in failures] == [("color", "b")]
    put(store, item("a", version="2"))
    assert [o.meta.name for o in store.by_index("color", "red")] == ["c"]


def test_an_index_function_that_returns_one_string_is_a_mistake_that_is_reported() -> None:
    failures: list[Exception] = []
    store = Store(on_index_error=lambda _name, _key, error: failures.append(error))
    store.add_index("color", lambda _: "red")
    put(store, item())
    assert "several strings" in str(failures[0])


def test_a_model_is_made_once_per_state_of_an_object() -> None:
    store = Store()
    first = item(size=1)
    put(store, first)
    model = store.decode(Widget, first)
    assert model.spec.size == 1
    assert store.decode(Widget, first) is model
    other = store.decode(WidgetName, first)
    assert isinstance(other, WidgetName)
    assert store.decode(WidgetName, first) is other
    second = item(size=2, version="2")
    put(store, second)
    assert store.decode(Widget, second).spec.size == 2


def test_c37_models_leave_with_their_objects() -> None:
    store = Store()
    for number in range(50):
        one = item(str(number))
        put(store, one)
        store.decode(Widget, one)
        store.remove(one.meta.key)
    assert len(store._memo) == 0


def test_reading_more_objects_than_fit_still_finds_those_that_fit() -> None:
    memo = ModelMemo(2)
    items = [item("a"), item("b"), item("c"), item("d")]
    first = [memo.decode(Widget, one) for one in items]
    again = [memo.decode(Widget, one) for one in items]
    assert len(memo) == 2
    assert again[0] is first[0]
    assert memo.decode(Widget, items[3]) is again[3]
    memo.drop(items[0])
    assert memo.decode(Widget, items[2]) is memo.decode(Widget, items[2])
    with pytest.raises(ConfigurationError, match="memo_size"):
        ModelMemo(0)


def test_c40_an_object_that_does_not_fit_stays_and_names_its_field() -> None:
    store = Store()
    bad = item(size='"large"')
    put(store, bad)
    for _ in range(2):
        with pytest.raises(DecodeError, match=r"spec\.size"):
            store.decode(Widget, bad)
    assert store.get(bad.meta.key) is bad


def test_c39_a_model_from_the_store_cannot_be_changed() -> None:
    store = Store()
    one = item(size=1, color="red")
    put(store, one)
    model = store.decode(Widget, one)
    with pytest.raises(ValueError, match="frozen"):
        model.spec.size = 2  # type: ignore[misc]  # the point of the test
    with pytest.raises(AttributeError):
        model.metadata.name = "other"  # type: ignore[misc]  # the point of the test
    with pytest.raises(TypeError, match="shared and frozen"):
        model.metadata.labels["color"] = "blue"
    with pytest.raises(TypeError, match="shared and frozen"):
        model.metadata.annotations.update(a="b")
    assert dict(model.metadata.labels) == one.meta.labels == {"color": "red"}


@pytest.mark.parametrize("labels", [{}, {"color": "red"}])
def test_c39_not_even_by_a_label_where_there_was_none(labels: dict[str, str]) -> None:
    store = Store()
    stored = decode_object(encode({"metadata": {"name": "a", "labels": labels}, "spec": {}}))
    put(store, stored)
    with pytest.raises(TypeError, match="shared and frozen"):
        store.decode(Widget, stored).metadata.labels["color"] = "blue"


keys = st.sampled_from("abcd")
colors = st.lists(st.sampled_from(["red", "blue", "green"]), max_size=3)


@given(st.lists(st.tuples(keys, st.none() | colors), max_size=30))
def test_indexes_and_namespaces_always_equal_a_scan(
    steps: list[tuple[str, list[str] | None]],
) -> None:
    store, model = Store(), dict[str, list[str]]()
    store.add_index("color", lambda one: one.meta.labels["colors"].split())
    store.objects("ns")
    for version, (name, values) in enumerate(steps):
        if values is None:
            store.remove(NamespacedName("ns", name))
            model.pop(name, None)
        else:
            put(store, item(name, version=str(version), colors=" ".join(values)))
            model[name] = values
        for color in ("red", "blue", "green"):
            found = {one.meta.name for one in store.by_index("color", color)}
            assert found == {name for name, has in model.items() if color in has}
        assert {one.meta.name for one in store.objects("ns")} == set(model)
    for key in list(store.keys()):
        store.remove(key)
    assert not store._indexes["color"]._keys
    assert not store._indexes["color"]._values
