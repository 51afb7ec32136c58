# SPDX-License-Identifier: Apache-2.0
"""Who owns what: the owner reference of a child, and whether an object is ours to touch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.apply.leftovers import is_leftover
from flexinfer.errors import ConfigurationError, NotOursError

if TYPE_CHECKING:
    from flexinfer.meta.envelope import StoredObject, Tree
    from flexinfer.meta.object import Object
    from flexinfer.meta.resource import NamespacedName, Resource


def with_owner(intent: Tree, owner: Object, key: NamespacedName) -> Tree:
    """Return *intent* with *owner* as its controller.

    Raises ConfigurationError for an owner in another namespace, or for a cluster-scoped child
    of a namespaced owner: the garbage collector would delete such a child, late and at random.
    """
    resource, meta = owner.resource, owner.metadata
    if resource.namespaced and meta.namespace != key.namespace:
        raise ConfigurationError(
            f"{resource.kind} {owner.key} cannot own {key}: an owner is in the namespace "
            "of its children or cluster-scoped; mark the child with labels and clean it up in a "
            "finalizer instead"
        )
    if not meta.uid:
        raise ConfigurationError(
            f"{resource.kind} {owner.key} has no UID: pass the owner as it was read"
        )
    reference = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = intent["metadata"]
    references = [*metadata.get("ownerReferences", ()), reference]
    return intent | {"metadata": metadata | {"ownerReferences": references}}


def ensure_ours(
    live: StoredObject, resource: Resource, owner: Object | None, *, is_known: bool
) -> None:
    """Raise NotOursError unless *owner* controls the object; without *owner*, unless nobody does.

    *is_known*: we applied this very object before, so that a missing reference is one that
    somebody removed, to be put back.
    """
    found = live.meta.controller
    uid = owner.metadata.uid if owner is not None else None
    if (found.uid if found is not None else None) == uid or (found is None and is_known):
        return
    what = f"{resource.kind} {live.meta.key}"
    if found is not None and is_leftover(live.meta, owner):
        raise NotOursError(
            f"{what} is being deleted: an earlier {found.kind} {found.name} left it behind; "
            "see its finalizers if it stays"
        )
    belongs = (
        f"it is controlled by {found.kind} {found.name}"
        if found is not None
        else "it exists already and has no controller"
    )
    raise NotOursError(
        f"{what} is left untouched: {belongs}; "
        f"delete that {resource.kind}, or choose another name for its would-be owner"
    )
