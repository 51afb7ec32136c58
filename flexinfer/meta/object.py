# SPDX-License-Identifier: Apache-2.0
"""The pydantic base of every kind that is read as a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from flexinfer.errors import DecodeError
from flexinfer.meta.envelope import ObjectMeta, decode_tree
from flexinfer.meta.resource import Resource

if TYPE_CHECKING:
    from flexinfer.meta.envelope import StoredObject, Tree
    from flexinfer.meta.resource import NamespacedName

__all__ = ["Model", "Object"]


class Model(BaseModel):
    """Be a frozen part of an API object; unknown fields are ignored, as the server prunes them."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
    )

    def wire(self) -> Tree:
        """Return the camelCase form with absent fields left out."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


class Object(Model):
    """Be a Kubernetes object of a known kind; subclasses set `resource`."""

    resource: ClassVar[Resource]

    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> NamespacedName:
        """Return the object's name within its kind."""
        return self.metadata.key

    @classmethod
    def decode(cls, stored: StoredObject) -> Self:
        """Read a stored object; raise DecodeError naming the first field that does not fit."""
        try:
            return cls.model_validate({**decode_tree(stored.body), "metadata": stored.meta})
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            text = first["msg"].removeprefix("Value error, ")
            msg = f"{cls.resource.kind} {stored.meta.key}: {field}: {text}"
            raise DecodeError(msg, field=field) from None
