# SPDX-License-Identifier: Apache-2.0
"""Who holds which fields by `managedFields`: what earlier writers left to us, and who holds along.

The API server takes what one manager wrote by an update, or under another name, for somebody
else's: an apply that leaves such a field out does not remove it. So entries of our own name that
are no apply, those of names that we had before, and those of whoever made the child for its owner
by an update, are folded into our apply entry once, as client-go's csaupgrade does it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from flexinfer.apply.intent import entry_key
from flexinfer.kinds.structure import PLAIN, ListMap
from flexinfer.meta.envelope import encode_sorted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from flexinfer.apply.plan import Child
    from flexinfer.errors import Cause
    from flexinfer.meta.envelope import Tree

_ITSELF = "."  # in fieldsV1: the field itself, beside what is below it
_ENTRY = "k:"  # the entry of a list, followed by its key as JSON
_DUPLICATE = "FieldValueDuplicate"
_INDEX = re.compile(r"\[[^\]]*\]")


def folding_patch(
    live: Tree, *, field_manager: str, former: Collection[str] = (), owner_uid: str = ""
) -> list[Tree]:
    """Return the JSON patch that makes ours what is ours by right; an empty one if that is so.

    Who wrote by an update the reference to the owner of *owner_uid* together with the rest of
    the object was an earlier version of this controller, whatever its name.
    It fails with a conflict when somebody has written meanwhile. Entries of subresources are left
    alone. Fields that were written in another version of the API than our entry are given up,
    since their paths may mean something else there.
    """
    metadata = live["metadata"]
    names = {field_manager, *former}
    ours = [e for e in managers_of(live) if e.get("manager") in names or _made_for(e, owner_uid)]
    mains = [entry for entry in ours if not entry.get("subresource")]
    entries = _folded(managers_of(live), mains, field_manager)
    if entries is None:
        return []
    return [
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {
            "op": "replace",
            "path": "/metadata/resourceVersion",
            "value": metadata["resourceVersion"],
        },
    ]


def managers_of(live: Tree) -> Sequence[Tree]:
    """Return the entries of `managedFields`."""
    entries: Sequence[Tree] = live["metadata"].get("managedFields") or ()
    return entries


def _made_for(entry: Tree, owner_uid: str) -> bool:
    """Tell an earlier controller from a person who only handed the object over to its owner."""
    if not owner_uid or entry.get("operation") != "Update":
        return False
    fields = entry.get("fieldsV1") or {}
    references = fields.get("f:metadata", {}).get("f:ownerReferences", {})
    key = _ENTRY + encode_sorted({"uid": owner_uid}).decode()
    return key in references and fields.keys() > {"f:metadata"}


def _folded(entries: Sequence[Tree], ours: Sequence[Tree], field_manager: str) -> list[Tree] | None:
    kept = next((e for e in ours if _is_apply_of(e, field_manager)), None)
    if all(entry is kept for entry in ours):
        return None
    target = kept or max(ours, key=lambda entry: str(entry.get("time", "")))
    fields: Tree = target["fieldsV1"]
    for entry in ours:
        if entry is not target and entry.get("apiVersion") == target.get("apiVersion"):
            fields = _union(fields, entry["fieldsV1"])
    result = target | {"manager": field_manager, "operation": "Apply", "fieldsV1": fields}
    others = [entry for entry in entries if not any(entry is mine for mine in ours)]
    return [*others, result]


def _is_apply_of(entry: Tree, manager: str) -> bool:
    return (entry.get("manager"), entry.get("operation")) == (manager, "Apply")


def _union(one: Tree, other: Tree) -> Tree:
    """Unite two sets of fields; an empty one stands for the field itself."""
    if not one or not other:
        only = one or other
        return {_ITSELF: {}, **only} if only else {}
    return one | {
        key: _union(one[key], fields) if key in one else fields for key, fields in other.items()
    }


def duplicated(causes: Iterable[Cause]) -> list[tuple[str, ...]]:
    """Return the lists, by the fields that lead there, in which a 422 found something twice."""
    return sorted({_list_of(cause.field) for cause in causes if cause.reason == _DUPLICATE})


def co_owners(
    lists: Iterable[tuple[str, ...]], child: Child, live: Tree, *, field_manager: str
) -> list[str]:
    """Say who else holds which entries of *lists* that *child* does without.

    An entry whose key changes is a new entry beside the old one. The old one leaves with our
    apply, unless another manager holds it too: then the server finds two of one name.
    """
    others = [entry for entry in managers_of(live) if entry.get("manager") != field_manager]
    found = []
    for path in lists:
        wanted = _wanted(child, path)
        for entry in others:
            held = {key for fields in _at(entry.get("fieldsV1", {}), path) for key in fields}
            found += [
                f"{'.'.join(path)} {key[2:]} is also held by {entry.get('manager')}"
                for key in sorted(held - wanted)
                if key.startswith(_ENTRY)
            ]
    return found


def _list_of(field: str) -> tuple[str, ...]:
    path, _, _ = field.rpartition("[")
    return tuple(_INDEX.sub("", path).split("."))


def _wanted(child: Child, path: tuple[str, ...]) -> set[str]:
    """Return the entries of the child's lists at *path*, as fieldsV1 names them."""
    nodes: list[Any] = [child.intent]
    shape = child.kind.shape
    for field in path:
        values = [node.get(field) or [] for node in nodes if isinstance(node, dict)]
        nodes = [n for value in values for n in (value if isinstance(value, list) else [value])]
        shape = shape.fields.get(field, PLAIN)
    rule = shape.rule
    if not isinstance(rule, ListMap):
        return set()
    keys = [dict(zip(rule.keys, entry_key(entry, rule), strict=True)) for entry in nodes]
    return {_ENTRY + encode_sorted(key).decode() for key in keys}


def _at(fields: Tree, path: tuple[str, ...]) -> list[Tree]:
    """Return the sets of fields at *path*, in every entry of the lists on the way."""
    level = [fields]
    for field in path:
        entries = [set_[key] for set_ in level for key in set_ if key.startswith(_ENTRY)]
        level = [set_[f"f:{field}"] for set_ in level + entries if f"f:{field}" in set_]
    return level
