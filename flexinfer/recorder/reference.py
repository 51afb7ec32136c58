# SPDX-License-Identifier: Apache-2.0
"""What an event is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from flexinfer.meta.envelope import ObjectMeta, Tree
    from flexinfer.meta.object import Object
    from flexinfer.meta.resource import Resource


class ObjectReference(NamedTuple):
    """Point at one object, at no version of it: what happens to it again is the same event."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""

    @classmethod
    def of(cls, subject: Object) -> Self:
        """Point at an object that was read as a model."""
        return cls.to(type(subject).resource, subject.metadata)

    @classmethod
    def to(cls, resource: Resource, meta: ObjectMeta) -> Self:
        """Point at an object by its metadata."""
        return cls(resource.api_version, resource.kind, meta.namespace, meta.name, meta.uid)

    def wire(self) -> Tree:
        """Return the camelCase form with empty fields left out."""
        fields = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }
        return {field: value for field, value in fields.items() if value}
