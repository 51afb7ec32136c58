# SPDX-License-Identifier: Apache-2.0
"""What the API server holds after a work: complete, right, and the same for all subjects; pure."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from flexinfer.errors import FlexInferError
from hack.bench.kinds import ITEMS, LAST_ROUND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flexinfer.meta.envelope import Tree

_OWNER = {"apiVersion": ITEMS.api_version, "kind": ITEMS.kind}
# What one writer stamps and another does not: the time, and it is never the same.
_TIMES = "lastTransitionTime"


class VerificationError(FlexInferError):
    """Say which object is not as the work should have left it."""


def reconciled(items: Iterable[Tree], children: Iterable[Tree], *, count: int) -> str:
    """Return a digest of the final state, equal for all subjects that did the same.

    UIDs and times are left out of it, and so is what a framework keeps for itself beside the
    status that was asked for. Raises VerificationError for the first object that is not right.
    """
    by_name = {child["metadata"]["name"]: child for child in children}
    state = []
    for item in items:
        name = item["metadata"]["name"]
        child = by_name.pop(name, None)
        _ensure(child is not None, f"{name} has no child")
        assert child is not None  # noqa: S101 - for the type checker
        state.append([name, _status(item), _child(item, child)])
    _ensure(not by_name, f"{len(by_name)} children have no Item, {next(iter(by_name), '')} first")
    _ensure(len(state) == count, f"there are {len(state)} Items, not {count}")
    return hashlib.sha256(json.dumps(sorted(state), sort_keys=True).encode()).hexdigest()[:16]


def _status(item: Tree) -> Tree:
    name, generation = item["metadata"]["name"], item["metadata"]["generation"]
    status = item.get("status") or {}
    observed = status.get("observedGeneration")
    _ensure(observed == generation, f"{name}: generation {generation}, observed {observed}")
    conditions = [
        {field: value for field, value in condition.items() if field != _TIMES}
        for condition in status.get("conditions", ())
    ]
    ready = [c for c in conditions if c["type"] == "Ready" and c["status"] == "True"]
    _ensure(len(conditions) == len(ready) == 1, f"{name}: conditions are {conditions}")
    seen = ready[0].get("observedGeneration")
    _ensure(seen == generation, f"{name}: Ready observed {seen} of generation {generation}")
    return {"observedGeneration": observed, "conditions": conditions}


def _child(item: Tree, child: Tree) -> Tree:
    name, spec = item["metadata"]["name"], item["spec"]
    wanted = {"number": str(spec["number"]), "size": str(len(spec["payload"]))}
    _ensure(child.get("data") == wanted, f"{name}: the child's data is {child.get('data')}")
    owners = child["metadata"].get("ownerReferences", ())
    owner = _OWNER | {"name": name, "uid": item["metadata"]["uid"], "controller": True}
    found = [{field: reference.get(field) for field in owner} for reference in owners]
    _ensure(found == [owner], f"{name}: the child's owners are {list(owners)}")
    return {"data": wanted, "labels": child["metadata"].get("labels")}


def watched(items: Iterable[Tree], *, count: int) -> str:
    """Return a digest of the final state; raise VerificationError unless all are at the end."""
    rounds = {item["metadata"]["name"]: item["spec"]["round"] for item in items}
    _ensure(len(rounds) == count, f"there are {len(rounds)} Items, not {count}")
    late = [name for name, number in rounds.items() if number != LAST_ROUND]
    _ensure(not late, f"{len(late)} Items are not at their last round, {late[:1]} first")
    return hashlib.sha256(json.dumps(sorted(rounds)).encode()).hexdigest()[:16]


def _ensure(is_right: bool, what: str) -> None:  # noqa: FBT001 - as assert takes it
    if not is_right:
        raise VerificationError(what)
