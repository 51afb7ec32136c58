# SPDX-License-Identifier: Apache-2.0
"""What every apply request says: who manages, which object, and that it is still that one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError
from flexinfer.meta.resource import NamespacedName

if TYPE_CHECKING:
    from flexinfer.errors import InvalidError
    from flexinfer.meta.envelope import Tree
    from flexinfer.meta.resource import Resource

_MAX_MANAGER = 128  # the API server's limit
_SERVER_OWNED = ("uid", "resourceVersion", "managedFields", "generation", "creationTimestamp")


def check_field_manager(name: str) -> str:
    """Return *name*; raise ConfigurationError when the API server would not take it."""
    if name and name.isprintable() and len(name) <= _MAX_MANAGER:
        return name
    raise ConfigurationError(
        f"field_manager {name!r} must be 1 to {_MAX_MANAGER} printable characters; "
        "give each controller one constant name"
    )


def identify(resource: Resource, intent: Tree) -> NamespacedName:
    """Return the name that *intent* is for; raise ConfigurationError when it is for none.

    Fields that only the server writes have no place in an intent: it is built fresh, never
    from a live object.
    """
    said = (intent.get("apiVersion"), intent.get("kind"))
    if said != (resource.api_version, resource.kind):
        raise ConfigurationError(
            f"the intent is for {said}; write apiVersion {resource.api_version} "
            f"and kind {resource.kind}"
        )
    metadata = intent.get("metadata") or {}
    name, namespace = metadata.get("name") or "", metadata.get("namespace") or ""
    if not name or resource.namespaced != bool(namespace):
        scope = "metadata.namespace" if resource.namespaced else "no metadata.namespace"
        raise ConfigurationError(f"a {resource.kind} intent needs metadata.name and {scope}")
    for field in _SERVER_OWNED:
        if field in metadata:
            raise ConfigurationError(
                f"{resource.kind} {name}: metadata.{field} is the server's; leave it out"
            )
    return NamespacedName(namespace, name)


def with_uid(body: Tree, uid: str) -> Tree:
    """Return *body* bound to one object: the server refuses it once that is gone.

    With 409 when there is none of that name any more, and with a 422 that `is_other_object`
    recognises when there is another. In a status it is the resourceVersion that binds: for
    custom resources the server does not look at the UID there (seen on 1.37).
    """
    return body | {"metadata": body["metadata"] | {"uid": uid}}


def if_absent(body: Tree) -> Tree:
    """Return *body* bound to there being no object: the server refuses it with 409 if there is.

    An apply to an object must have its resourceVersion or none; what creates one is not asked
    (seen on 1.37). No object has this one: etcd begins with revision 1 and counts up to write.
    """
    return body | {"metadata": body["metadata"] | {"resourceVersion": "1"}}


def is_other_object(error: InvalidError) -> bool:
    """Tell whether a 422 means that another object has the name by now."""
    return any(cause.field == "metadata.uid" for cause in error.causes)
