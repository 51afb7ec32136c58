# SPDX-License-Identifier: Apache-2.0
"""Which objects an informer holds: a kind, a namespace, and selectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from flexinfer.meta.envelope import ObjectMeta
    from flexinfer.meta.resource import Resource
    from flexinfer.meta.selector import Selector


@dataclass(frozen=True, slots=True)
class Selection:
    """Say what is listed and watched; an empty namespace means all of them.

    A selector without requirements counts as none, so that equal selections compare equal. Raises
    ConfigurationError for a namespace of a cluster-scoped kind.
    """

    resource: Resource
    namespace: str = ""
    labels: Selector | None = None
    fields: str = ""

    def __post_init__(self) -> None:
        if self.namespace and not self.resource.namespaced:
            raise ConfigurationError(f"{self.resource} is cluster-scoped: leave namespace empty")
        if self.labels is not None and not self.labels.requirements:
            object.__setattr__(self, "labels", None)

    @property
    def path(self) -> str:
        """Return the path of the collection."""
        return self.resource.collection_path(self.namespace)

    @property
    def label(self) -> str:
        """Return what tells it from other selections of the kind, empty if it is all of it."""
        return ",".join(filter(None, (self.namespace, *self.params().values())))

    @property
    def is_filtered(self) -> bool:
        """Say whether an object of the kind and namespace may be outside of it."""
        return self.labels is not None or bool(self.fields)

    @property
    def is_everything(self) -> bool:
        """Say whether it is all objects of the kind."""
        return not self.namespace and not self.is_filtered

    def params(self) -> dict[str, str]:
        """Return the query parameters that every list and watch of it carries."""
        params: dict[str, str] = {}
        if self.labels is not None:
            params["labelSelector"] = str(self.labels)
        if self.fields:
            params["fieldSelector"] = self.fields
        return params

    def covers(self, namespace: str) -> bool:
        """Say whether objects of *namespace* (empty: of all) are looked at."""
        return self.namespace in ("", namespace)

    def admits(self, meta: ObjectMeta) -> bool:
        """Say whether an object with this metadata belongs here, as far as labels tell."""
        return self.covers(meta.namespace) and (
            self.labels is None or self.labels.matches(meta.labels)
        )

    def __str__(self) -> str:
        parts = [str(self.resource)]
        if self.namespace:
            parts.append(f"in namespace {self.namespace}")
        if self.is_filtered:
            parts.append(f"where {' and '.join(self.params().values())}")
        return " ".join(parts)
