# SPDX-License-Identifier: Apache-2.0
"""The Client that asks the API server each time."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from flexinfer.client.creation import Creation, Tries
from flexinfer.client.exchange import APPLY
from flexinfer.client.protocol import Patch, Propagation
from flexinfer.client.transport import TIMEOUT
from flexinfer.errors import (
    ConfigurationError,
    ConflictError,
    DecodeError,
    ExpiredError,
    NotFoundError,
)
from flexinfer.meta.envelope import decode_object, decode_tree, encode
from flexinfer.meta.resource import NamespacedName
from flexinfer.meta.wire import decode_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flexinfer.client.transport import Transport
    from flexinfer.meta.envelope import StoredObject, Tree
    from flexinfer.meta.object import Object
    from flexinfer.meta.resource import Resource
    from flexinfer.meta.selector import Selector

    T = TypeVar("T", bound=Object)

__all__ = ["DirectClient"]

# client-go's page size: the API server and we hold one page at a time.
PAGE = 500
# The reason of a Status for an object that is not there. The API server answers for a kind that
# it does not serve without a Status.
_NO_OBJECT = "NotFound"


class DirectClient:
    """Read and write through a transport, without a cache.

    *timeout* is the deadline of each request in seconds. Every write names its field manager and
    asks for strict field validation, so that a misspelt field is an error and not dropped. *guard*
    is called before each try of a write, and raises when it must not be sent.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float = TIMEOUT,
        guard: Callable[[], None] | None = None,
    ) -> None:
        if not 0 < timeout < math.inf:
            raise ConfigurationError(f"timeout must be seconds above 0, not {timeout!r}")
        self._transport = transport
        self._timeout = timeout
        self._guard = guard

    async def get(self, kind: type[T], key: NamespacedName) -> T | None:
        """Return the object, or None when there is none; NotFoundError when its kind is missing.

        Raises DecodeError, naming the field, when it does not fit its model.
        """
        stored = await self.read(kind.resource, key)
        return None if stored is None else kind.decode(stored)

    async def read(self, resource: Resource, key: NamespacedName) -> StoredObject | None:
        """Return the object undecoded, or None when there is none."""
        answer = await self._get(resource, key)
        return None if answer is None else decode_object(answer)

    async def live_read(self, resource: Resource, key: NamespacedName) -> StoredObject | None:
        """Do what `read` does: there is no cache to look past."""
        return await self.read(resource, key)

    async def live_tree(self, resource: Resource, key: NamespacedName) -> Tree | None:
        """Return the whole object with its `managedFields`, or None when there is none."""
        answer = await self._get(resource, key)
        return None if answer is None else decode_tree(answer)

    async def list(
        self, kind: type[T], *, namespace: str = "", labels: Selector | None = None
    ) -> Sequence[T]:
        """Return the objects of a namespace (empty: of all), read page by page.

        When the list expires between two pages it is read once more from its start; the second
        time ExpiredError is raised. Raises DecodeError for the first object that does not fit.
        """
        path = kind.resource.collection_path(namespace)
        params = {"limit": str(PAGE)}
        if labels is not None and (selector := str(labels)):
            params["labelSelector"] = selector
        try:
            stored = await _read_pages(self._transport, path, params, self._timeout)
        except ExpiredError:
            stored = await _read_pages(self._transport, path, params, self._timeout)
        return [kind.decode(item) for item in stored]

    async def create(self, resource: Resource, intent: Tree, *, field_manager: str) -> StoredObject:
        """Create an object; raise AlreadyExistsError when the name is taken.

        When the connection is lost before an answer, a create with a fixed name is sent again.
        If the name is taken then, the object is read, and taken for the one of the lost try when
        it says all that *intent* says and is not being deleted.
        """
        namespace = intent.get("metadata", {}).get("namespace", "")
        _check_scope(resource, namespace)
        created = Creation(
            path=resource.collection_path(namespace),
            params=_write_params(field_manager),
            intent=_typed(resource, intent),
            timeout=self._timeout,
            guard=self._guard,
        )
        return await created.send(self._transport)

    async def apply(
        self,
        resource: Resource,
        intent: Tree,
        *,
        field_manager: str,
        force: bool = True,
        subresource: str = "",
    ) -> StoredObject:
        """Send a server-side apply and return the server's answer.

        Name and namespace come from `intent["metadata"]`. With a `metadata.uid` in the intent a
        deleted object is not re-created: ConflictError is raised instead.
        """
        metadata = intent.get("metadata", {})
        key = NamespacedName(metadata.get("namespace", ""), metadata.get("name", ""))
        tries = Tries(self._guard)
        try:
            answer = await self._transport.request(
                "PATCH",
                _object_path(resource, key, subresource),
                params=_apply_params(field_manager, force),
                body=encode(_typed(resource, intent)),
                content_type=APPLY,
                timeout=self._timeout,
                before_send=tries.begin,
            )
        except ConflictError as error:
            error.is_repeat = tries.is_repeat
            raise
        return decode_object(answer)

    async def patch(
        self,
        resource: Resource,
        key: NamespacedName,
        patch: Tree | Sequence[Tree],
        *,
        content_type: Patch,
        field_manager: str,
        subresource: str = "",
    ) -> StoredObject:
        """Send a JSON patch (a list) or a merge patch (a dict) and return the server's answer."""
        if isinstance(patch, dict) != (content_type is Patch.MERGE):
            raise ConfigurationError("a merge patch is a dict, and a JSON patch a list of dicts")
        answer = await self._transport.request(
            "PATCH",
            _object_path(resource, key, subresource),
            params=_write_params(field_manager),
            body=encode(patch),
            content_type=content_type,
            timeout=self._timeout,
            before_send=self._guard,
        )
        return decode_object(answer)

    async def delete(
        self,
        resource: Resource,
        key: NamespacedName,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> None:
        """Delete an object; with *uid* only if it is still that one (ConflictError).

        With *resource_version* only if nobody changed it since (ConflictError too). An
        object that is already gone is a success; a kind that is not served is NotFoundError.
        """
        await self.delete_object(
            resource, key, uid=uid, resource_version=resource_version, propagation=propagation
        )

    async def delete_object(
        self,
        resource: Resource,
        key: NamespacedName,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: Propagation = Propagation.BACKGROUND,
    ) -> StoredObject | None:
        """Delete as `delete` does; return what is left: the terminating object, None if nothing."""
        options: Tree = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
        }
        conditions = {"uid": uid, "resourceVersion": resource_version}
        if given := {field: value for field, value in conditions.items() if value}:
            options["preconditions"] = given
        try:
            answer = await self._transport.request(
                "DELETE",
                _object_path(resource, key),
                body=encode(options),
                timeout=self._timeout,
                before_send=self._guard,
            )
        except NotFoundError as error:
            if error.reason != _NO_OBJECT:
                raise
            return None
        return _terminating(answer)

    async def _get(self, resource: Resource, key: NamespacedName) -> bytes | None:
        try:
            return await self._transport.request(
                "GET", _object_path(resource, key), timeout=self._timeout
            )
        except NotFoundError as error:
            if error.reason != _NO_OBJECT:
                raise
            return None


async def _read_pages(
    transport: Transport, path: str, params: Mapping[str, str], seconds: float
) -> list[StoredObject]:
    items: list[StoredObject] = []
    token = ""
    while True:
        query = {**params, "continue": token} if token else params
        page = decode_list(await transport.request("GET", path, params=query, timeout=seconds))
        if page.unreadable:
            raise DecodeError(f"GET {path}: {page.unreadable} objects cannot be read")
        items += page.items
        if not page.continue_token:
            return items
        if page.continue_token == token:
            raise DecodeError(f"GET {path}: the list does not end: one page came twice")
        token = page.continue_token


def _terminating(answer: bytes) -> StoredObject | None:
    """Return the object that a DELETE answered with if it only waits to go.

    What is gone is answered for with a Status or, by some kinds, with its last state.
    """
    if decode_tree(answer).get("kind") == "Status":
        return None
    stored = decode_object(answer)
    return stored if stored.meta.deletion_timestamp else None


@lru_cache(maxsize=64)  # of the few controllers that there are
def _apply_params(field_manager: str, force: bool) -> Mapping[str, str]:  # noqa: FBT001 - hashed
    return _write_params(field_manager) | {"force": "true" if force else "false"}


def _write_params(field_manager: str) -> dict[str, str]:
    if not field_manager:
        raise ConfigurationError("field_manager must not be empty: it says who owns the fields")
    return {"fieldManager": field_manager, "fieldValidation": "Strict"}


def _typed(resource: Resource, intent: Tree) -> Tree:
    if "apiVersion" in intent and "kind" in intent:
        return intent
    return {"apiVersion": resource.api_version, "kind": resource.kind, **intent}


def _check_scope(resource: Resource, namespace: str) -> None:
    if resource.namespaced != bool(namespace):
        need = "needs a namespace" if resource.namespaced else "is cluster-scoped, without one"
        raise ConfigurationError(f"{resource.kind} {need}: namespace is {namespace!r}")


def _object_path(resource: Resource, key: NamespacedName, subresource: str = "") -> str:
    """Return the path of one object; a name that would turn it into another path is refused."""
    _check_scope(resource, key.namespace)
    if key.name in {"", ".", ".."} or key.namespace in {".", ".."}:
        raise ConfigurationError(f"{resource.kind} {str(key)!r} does not name an object")
    return resource.object_path(key, subresource)
