# SPDX-License-Identifier: Apache-2.0
"""Who owns what: the owner reference of a child, and whether an object is ours to touch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError, NotOursError

if TYPE_CHECKING:
    from flexinfer.meta.envelope import OwnerReference, StoredObject, Tree
    from flexinfer.meta.object import Object
    from flexinfer.meta.resource import NamespacedName, Resource


def with_owner(intent: Tree, owner: Object, key: NamespacedName) -> Tree:
    """Return *intent* with *owner* as its controller.

    Raises ConfigurationError for an owner in another namespace, or for a cluster-scoped child
    of a namespaced owner: the garbage collector would delete such a child, late and at random.
    """
    if owner.resource.namespaced and owner.key.namespace != key.namespace:
        raise ConfigurationError(
            f"{owner.resource.kind} {owner.key} cannot own {key}: an owner is in the namespace "
            "of its children or cluster-scoped; mark the child with labels and clean it up in a "
            "finalizer instead"
        )
    if not owner.metadata.uid:
        raise ConfigurationError(
            f"{owner.resource.kind} {owner.key} has no UID: pass the owner as it was read"
        )
    reference = {
        "apiVersion": owner.resource.api_version,
        "kind": owner.resource.kind,
        "name": owner.key.name,
        "uid": owner.metadata.uid,
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
    raise NotOursError(
        f"{resource.kind} {live.meta.key} is left untouched: {_belongs(found, owner)}; "
        f"delete that {resource.kind}, or choose another name for its would-be owner"
    )


def _belongs(found: OwnerReference | None, owner: Object | None) -> str:
    if found is None:
        return "it exists already and has no controller"
    if owner is not None and _is_predecessor(found, owner):
        return (
            f"it belongs to a deleted {found.kind} {found.name}, from before this one was created"
        )
    return f"it is controlled by {found.kind} {found.name}"


def _is_predecessor(found: OwnerReference, owner: Object) -> bool:
    gvk = owner.resource.gvk
    return (found.group, found.kind, found.name) == (gvk.group, gvk.kind, owner.key.name)
