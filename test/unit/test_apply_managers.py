# SPDX-License-Identifier: Apache-2.0
"""What `managedFields` say: entries folded into our own, and list entries that others hold too."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.apply.managers import _union, co_owners, duplicated, folding_patch
from flexinfer.apply.plan import Child, Kind
from flexinfer.errors import Cause
from flexinfer.kinds.service import Service
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

DATA: Tree = {"f:data": {".": {}, "f:a": {}}}


class Plain(Object):
    resource: ClassVar[Resource] = Resource(GroupVersionKind("x.org", "v1", "Plain"), "plains")


def entry(manager: str, operation: str, fields: Tree, **more: str) -> Tree:
    head = {"manager": manager, "operation": operation, "apiVersion": "v1"}
    return {**head, "fieldsType": "FieldsV1", "fieldsV1": fields, **more}


def live(*entries: Tree) -> Tree:
    return {"metadata": {"resourceVersion": "7", "managedFields": list(entries)}}


def folded(*entries: Tree, former: tuple[str, ...] = ()) -> list[Tree] | None:
    patch = folding_patch(live(*entries), field_manager="us", former=former)
    if not patch:
        return None
    managers, version = patch
    assert version == {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}
    assert (managers["op"], managers["path"]) == ("replace", "/metadata/managedFields")
    found: list[Tree] = managers["value"]
    return found


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (entry("us", "Apply", DATA),),
        (entry("other", "Update", DATA), entry("us", "Apply", DATA)),
        (entry("us", "Update", DATA, subresource="status"),),
        (entry("us", "Apply", DATA, subresource="scale"), entry("other", "Apply", DATA)),
    ],
)
def test_nothing_is_sent_where_all_is_as_it_should_be(entries: tuple[Tree, ...]) -> None:
    assert folded(*entries) is None
    assert folding_patch({"metadata": {"resourceVersion": "1"}}, field_manager="us") == []


def test_an_update_becomes_part_of_the_apply() -> None:
    other = entry("other", "Update", DATA)
    ours = entry("us", "Apply", DATA, time="2")
    update = entry("us", "Update", {"f:data": {"f:b": {}}}, time="3")
    status = entry("us", "Update", {"f:status": {}}, subresource="status")
    expected = ours | {"fieldsV1": {"f:data": {".": {}, "f:a": {}, "f:b": {}}}}
    assert folded(other, update, ours, status) == [other, status, expected]


def test_without_an_apply_the_latest_entry_becomes_it() -> None:
    older = entry("us", "Update", {"f:data": {"f:a": {}}}, time="1")
    newer = entry("us", "Update", {"f:data": {"f:b": {}}}, time="2")
    expected: Tree = {"f:data": {"f:b": {}, "f:a": {}}}
    assert folded(newer, older) == [newer | {"operation": "Apply", "fieldsV1": expected}]


def test_former_names_are_folded_whatever_they_did() -> None:
    entries = (
        entry("v1", "Apply", {"f:data": {"f:a": {}}}, time="1"),
        entry("v2", "Update", {"f:data": {"f:b": {}}}, time="2"),
    )
    assert folded(*entries) is None
    (result,) = folded(*entries, former=("v1", "v2")) or []
    assert (result["manager"], result["operation"]) == ("us", "Apply")
    assert result["fieldsV1"] == {"f:data": {"f:a": {}, "f:b": {}}}


def test_fields_of_another_version_are_given_up() -> None:
    ours = entry("us", "Apply", DATA)
    beta = entry("us", "Update", {"f:old": {}}, apiVersion="v1beta1")
    assert folded(ours, beta) == [ours]


FIELDS: st.SearchStrategy[Tree] = st.recursive(
    st.just({}),
    lambda below: st.dictionaries(
        st.sampled_from(["f:a", "f:b", "k:{}", "v:1"]), below, max_size=3
    ),
    max_leaves=8,
)


def members(fields: Tree, at: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the paths that a fieldsV1 stands for."""
    if not fields:
        return {at}
    found = {at} if "." in fields else set()
    for key, below in fields.items():
        if key != ".":
            found |= members(below, (*at, key))
    return found


@given(FIELDS, FIELDS)
def test_a_union_holds_what_either_held(one: Tree, other: Tree) -> None:
    united = _union({"f:top": one}, {"f:top": other})
    assert members(united) == members({"f:top": one}) | members({"f:top": other})
    assert members(_union(united, united)) == members(united)
    assert _union({}, {}) == {}


def test_lists_with_duplicates_are_found_by_the_causes() -> None:
    causes = [
        Cause("FieldValueDuplicate", "spec.template.spec.containers[0].ports[1].name", ""),
        Cause("FieldValueDuplicate", "spec.ports[1].name", ""),
        Cause("FieldValueDuplicate", "spec.ports[2].name", ""),
        Cause("FieldValueInvalid", "spec.other[1]", ""),
    ]
    assert duplicated(causes) == [
        ("spec", "ports"),
        ("spec", "template", "spec", "containers", "ports"),
    ]


def test_who_holds_an_entry_that_we_do_without_is_named() -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "ns"},
        "spec": {"ports": [{"port": 81}, {"port": 53, "protocol": "UDP"}]},
    }
    child = Child(Kind.of(Service.resource), service, None)

    def held(*ports: str) -> Tree:
        return {"f:spec": {"f:ports": {".": {}, **{f"k:{port}": {".": {}} for port in ports}}}}

    old, kept = '{"port":80,"protocol":"TCP"}', '{"port":53,"protocol":"UDP"}'
    tree = live(
        entry("us", "Apply", held(old)),
        entry("them", "Apply", held(kept, old)),
        entry("status", "Update", {"f:status": {}}),
    )
    lists = [("spec", "ports")]
    assert co_owners(lists, child, tree, field_manager="us") == [
        f"spec.ports {old} is also held by them"
    ]
    assert co_owners(lists, child, live(), field_manager="us") == []
    assert co_owners([("spec", "selector")], child, tree, field_manager="us") == []


def test_a_list_that_is_no_map_has_no_entries_to_tell_apart() -> None:
    head = {"apiVersion": "x.org/v1", "kind": "Plain", "metadata": {"name": "a", "namespace": "b"}}
    child = Child(Kind.of(Plain.resource), head | {"items": [{"a": 1}]}, None)
    tree = live(entry("them", "Apply", {"f:items": {}}))
    assert co_owners([("items",)], child, tree, field_manager="us") == []
    assert co_owners([("",)], child, tree, field_manager="us") == []
