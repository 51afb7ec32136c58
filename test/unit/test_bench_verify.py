# SPDX-License-Identifier: Apache-2.0
"""What a work has to leave behind at the API server."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

from hack.bench import fixture, verify
from hack.bench.kinds import LAST_ROUND
from hack.bench.verify import VerificationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flexinfer.meta.envelope import Tree

TIME = "2026-01-01T00:00:00Z"


def item(number: int, uid: str = "u") -> Tree:
    """An Item as a subject leaves it."""
    made = fixture.item(number)
    made["metadata"] |= {"uid": f"{uid}{number}", "generation": 2}
    condition = {"type": "Ready", "status": "True", "reason": "Applied", "message": "applied"}
    made["status"] = {
        "observedGeneration": 2,
        "conditions": [condition | {"observedGeneration": 2, "lastTransitionTime": TIME}],
    }
    return made


def child(number: int, uid: str = "u") -> Tree:
    """The child of that Item."""
    name = fixture.name_of(number)
    owner: Tree = {"apiVersion": "bench.flexinfer.ai/v1", "kind": "Item", "name": name}
    owner |= {"uid": f"{uid}{number}", "controller": True, "blockOwnerDeletion": True}
    return {
        "metadata": {"name": name, "labels": {"a": "b"}, "ownerReferences": [owner]},
        "data": {"number": str(number), "size": str(len(fixture.PAYLOAD))},
    }


def world(uid: str = "u") -> tuple[list[Tree], list[Tree]]:
    return [item(n, uid) for n in range(3)], [child(n, uid) for n in range(3)]


def test_the_same_work_leaves_the_same_digest_whatever_uids_times_and_order() -> None:
    items, children = world()
    first = verify.reconciled(items, children, count=3)
    others, theirs = world("other")
    others[1]["status"]["conditions"][0]["lastTransitionTime"] = "2027-01-01T00:00:00Z"
    others[1]["status"]["kopf"] = {"progress": {}}
    assert verify.reconciled(others[::-1], theirs[::-1], count=3) == first


def test_another_reason_or_label_leaves_another_digest() -> None:
    items, children = world()
    first = verify.reconciled(items, children, count=3)
    other = copy.deepcopy(items)
    other[0]["status"]["conditions"][0]["reason"] = "Else"
    assert verify.reconciled(other, children, count=3) != first
    children[0]["metadata"]["labels"] = {}
    assert verify.reconciled(items, children, count=3) != first


def wrong(change: Callable[[Tree, Tree], object]) -> None:
    items, children = world()
    change(items[1], children[1])
    verify.reconciled(items, children, count=3)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda i, _: i.pop("status"), "generation 2, observed None"),
        (lambda i, _: i["status"].update(observedGeneration=1), "observed 1"),
        (lambda i, _: i["status"].update(conditions=[]), "conditions are"),
        (lambda i, _: i["status"]["conditions"][0].update(status="False"), "conditions are"),
        (lambda i, _: i["status"]["conditions"][0].update(observedGeneration=1), "Ready observed"),
        (lambda _, c: c["metadata"].update(name="other"), "item-000001 has no child"),
        (lambda _, c: c["data"].update(number="7"), "data is"),
        (lambda _, c: c["metadata"].pop("ownerReferences"), "owners are"),
        (lambda _, c: c["metadata"]["ownerReferences"][0].update(uid="x"), "owners are"),
        (lambda _, c: c["metadata"]["ownerReferences"][0].update(controller=False), "owners are"),
    ],
)
def test_what_is_not_right_is_named(change: Callable[[Tree, Tree], object], what: str) -> None:
    with pytest.raises(VerificationError, match=what):
        wrong(change)


def test_numbers_have_to_be_right() -> None:
    items, children = world()
    with pytest.raises(VerificationError, match="3 Items, not 4"):
        verify.reconciled(items, children, count=4)
    with pytest.raises(VerificationError, match="1 children have no Item, item-000002"):
        verify.reconciled(items[:2], children, count=2)


def test_a_watch_ends_at_the_last_round() -> None:
    items = [item(n) for n in range(2)]
    with pytest.raises(VerificationError, match="2 Items are not at their last round"):
        verify.watched(items, count=2)
    for one in items:
        one["spec"]["round"] = LAST_ROUND
    assert verify.watched(items, count=2) == verify.watched(items[::-1], count=2)
    with pytest.raises(VerificationError, match="2 Items, not 3"):
        verify.watched(items, count=3)
