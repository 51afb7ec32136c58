# SPDX-License-Identifier: Apache-2.0
"""Handlers: whom an event concerns, and how urgently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.event import CreateEvent, DeleteEvent, UpdateEvent
from flexinfer.handler import enqueue_mapped, enqueue_owner, enqueue_self, priority_of
from flexinfer.meta.envelope import ObjectMeta, OwnerReference, StoredObject
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.reconcile import Request
from flexinfer.workqueue import LOW_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Iterable

MODEL = Resource(GroupVersionKind("example.org", "v1", "Model"), "models")
CLUSTER = Resource(GroupVersionKind("example.org", "v1", "Cluster"), "clusters", namespaced=False)


def owned(
    owner: str, *, kind: str = "Model", api_version: str = "example.org/v1", **reference: object
) -> StoredObject:
    fields: dict[str, object] = {"controller": True, "uid": "u1"} | reference
    ref = OwnerReference(api_version=api_version, kind=kind, name=owner, **fields)  # type: ignore[arg-type] # a test varies single fields
    return StoredObject(ObjectMeta(namespace="ns", name="child", owner_references=(ref,)), b"{}")


def test_an_object_concerns_itself() -> None:
    a = StoredObject(ObjectMeta(namespace="ns", name="a"), b"{}")
    key = [Request("ns", "a")]
    assert list(enqueue_self(CreateEvent(a))) == key
    assert list(enqueue_self(UpdateEvent(a, a))) == key
    assert list(enqueue_self(DeleteEvent(a))) == key


def test_a_child_concerns_its_owner() -> None:
    handler = enqueue_owner(MODEL)
    assert list(handler(CreateEvent(owned("m")))) == [Request("ns", "m")]
    assert list(handler(DeleteEvent(owned("m")))) == [Request("ns", "m")]


def test_the_version_of_the_owner_does_not_matter() -> None:
    child = owned("m", api_version="example.org/v1beta7")
    assert list(enqueue_owner(MODEL)(CreateEvent(child))) == [Request("ns", "m")]


@pytest.mark.parametrize(
    "child",
    [
        owned("m", kind="Other"),
        owned("m", api_version="other.org/v1"),
        owned("m", api_version="v1"),
        owned("m", controller=False),
        StoredObject(ObjectMeta(namespace="ns", name="free"), b"{}"),
    ],
)
def test_a_child_of_others_concerns_nobody(child: StoredObject) -> None:
    assert list(enqueue_owner(MODEL)(CreateEvent(child))) == []


def test_a_cluster_scoped_owner_has_no_namespace() -> None:
    child = owned("c", kind="Cluster")
    assert list(enqueue_owner(CLUSTER)(CreateEvent(child))) == [Request("", "c")]


def test_an_owner_that_lost_a_child_hears_of_it() -> None:
    event = UpdateEvent(owned("before"), owned("after"))
    assert list(enqueue_owner(MODEL)(event)) == [Request("ns", "before"), Request("ns", "after")]


def test_an_old_child_does_not_concern_a_new_owner_of_the_same_name() -> None:
    asked: list[tuple[Request, str]] = []

    def is_current_uid(request: Request, uid: str) -> bool:
        asked.append((request, uid))
        return uid == "new"

    handler = enqueue_owner(MODEL, is_current_uid=is_current_uid)
    assert list(handler(CreateEvent(owned("m", uid="old")))) == []
    assert list(handler(CreateEvent(owned("m", uid="new")))) == [Request("ns", "m")]
    adopted = UpdateEvent(owned("m", uid="old"), owned("m", uid="new"))
    assert list(handler(adopted)) == [Request("ns", "m")]
    assert asked[0] == (Request("ns", "m"), "old")


def test_both_sides_of_an_update_are_mapped() -> None:
    def by_label(stored: StoredObject) -> Iterable[Request]:
        return [Request("ns", name) for name in stored.meta.labels.values()]

    old = StoredObject(ObjectMeta(labels={"model": "a"}), b"{}")
    new = StoredObject(ObjectMeta(labels={"model": "b"}), b"{}")
    handler = enqueue_mapped(by_label)
    assert list(handler(UpdateEvent(old, new))) == [Request("ns", "a"), Request("ns", "b")]
    assert list(handler(DeleteEvent(old))) == [Request("ns", "a")]


def test_what_is_no_news_has_low_priority() -> None:
    a = StoredObject(ObjectMeta(resource_version="1"), b"{}")
    b = StoredObject(ObjectMeta(resource_version="2"), b"{}")
    assert priority_of(CreateEvent(a, is_initial=True)) == LOW_PRIORITY == -100
    assert priority_of(UpdateEvent(a, a)) == LOW_PRIORITY
    assert priority_of(CreateEvent(a)) == 0
    assert priority_of(UpdateEvent(a, b)) == 0
    assert priority_of(DeleteEvent(a)) == 0
