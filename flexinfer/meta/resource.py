# SPDX-License-Identifier: Apache-2.0
"""Where a kind lives in the API's URL space, and what one object of it is called."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

# What needs no quoting in a path (RFC 3986, 2.3): nearly every name, and looking is cheaper.
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]*").fullmatch

__all__ = ["GroupVersionKind", "NamespacedName", "Resource"]


class NamespacedName(NamedTuple):
    """Name one object; `namespace` is empty for cluster-scoped kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class GroupVersionKind(NamedTuple):
    """Name a kind as `apiVersion` and `kind` do; the core group is the empty string."""

    group: str
    version: str
    kind: str

    @property
    def api_version(self) -> str:
        """Return the wire form: `apps/v1`, or `v1` for the core group."""
        return _api_version(self.group, self.version)


class Resource(NamedTuple):
    """Tie a kind to its plural and its scope."""

    gvk: GroupVersionKind
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return the wire form of group and version."""
        return _api_version(self.gvk.group, self.gvk.version)

    @property
    def kind(self) -> str:
        """Return the kind's name."""
        return self.gvk.kind

    def collection_path(self, namespace: str = "") -> str:
        """Return the path of the collection; an empty *namespace* means all of them."""
        return _collection_path(self, namespace)

    def object_path(self, key: NamespacedName, subresource: str = "") -> str:
        """Return the path of one object, or of its *subresource* such as `status`."""
        tail = f"/{subresource}" if subresource else ""
        return f"{_collection_path(self, key.namespace)}/{_quoted(key.name)}{tail}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.gvk.group}" if self.gvk.group else self.plural


@lru_cache(maxsize=256)
def _api_version(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version


@lru_cache(maxsize=1024)
def _collection_path(resource: Resource, namespace: str) -> str:
    group, version, _kind = resource.gvk
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    scope = f"/namespaces/{_quoted(namespace)}" if namespace else ""
    return f"{root}{scope}/{resource.plural}"


def _quoted(text: str) -> str:
    return text if _UNRESERVED(text) else quote(text, safe="")
