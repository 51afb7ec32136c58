# SPDX-License-Identifier: Apache-2.0
"""Write the status of an object, when it says something new."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flexinfer.apply.intent import (
    canonical,
    check_entries,
    clean_from,
    digest,
    digest_of,
    values_at,
)
from flexinfer.apply.memory import Outcome
from flexinfer.apply.request import check_field_manager
from flexinfer.client.protocol import Patch
from flexinfer.errors import ConflictError, InvalidError, NotFoundError, ServerError
from flexinfer.kinds.structure import shape_of, structure_of
from flexinfer.meta.envelope import encode_sorted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Self

    from flexinfer.client.protocol import Client
    from flexinfer.kinds.structure import Shape, Structure
    from flexinfer.meta.envelope import ObjectMeta, StoredObject, Tree
    from flexinfer.meta.resource import NamespacedName, Resource

# How the API server refuses to apply to an object, whichever of its fields has another type than
# the schema says: stored under an older CRD, say. There is no reason or cause to go by.
_UNTYPED = "failed to create typed live object"


class _Wish(NamedTuple):
    """Be a checked status to write; `said` is a digest of what the caller gave."""

    shape: Shape
    intent: Tree
    said: bytes

    @classmethod
    def of(cls, shape: Shape, written: bytes, said: bytes) -> Self:
        intent = {"status": clean_from(written)}
        check_entries(intent, shape)
        return cls(shape, intent, said)

    def is_held_alike(self, before: StoredObject, live: StoredObject) -> bool:
        """Tell whether both show the same where there is an opinion."""
        return before.body == live.body or self._held_by(before) == self._held_by(live)

    def _held_by(self, live: StoredObject) -> bytes:
        return encode_sorted(values_at(self.intent, {"status": _status_of(live)}, self.shape))

    def is_all_of(self, status: Tree, asked: bytes) -> bool:
        """Tell whether *status* says this and nothing else, in whatever order.

        *asked* is what the property says, or empty where it was not worked out yet.
        """
        if not status:
            return not self.intent["status"]
        return digest(canonical({"status": status}, self.shape)) == (asked or self.asked)

    @property
    def asked(self) -> bytes:
        """Return the digest of what it means, in whatever order it is said."""
        return digest(canonical(self.intent, self.shape))


class _Written(NamedTuple):
    """Remember what came of the last write: the object, and digests of what the caller gave.

    `said` is to the letter, `asked` in whatever order. The latter is worked out for the first time
    when the letter has changed, so the first time a new order is sent where others write as well.
    """

    live: StoredObject
    said: bytes
    asked: bytes


class StatusWriter:
    """Apply the part of a status that one controller owns, never a heartbeat.

    *foreign* names the fields of the status that others write and this writer never does. They
    are left out where the live status is compared with what to write, as after a restart; without
    them named, what others write costs one request then. The status has to be complete in each
    call: what is left out is taken away.
    """

    def __init__(
        self,
        client: Client,
        *,
        field_manager: str,
        foreign: Collection[str] = (),
        structures: Mapping[Resource, Structure] | None = None,
    ) -> None:
        """Refuse impossible settings with ConfigurationError."""
        self._client = client
        self._field_manager = check_field_manager(field_manager)
        self._foreign = frozenset(foreign)
        self._structures = structures or {}
        self._shapes: dict[Resource, Shape] = {}
        self._memory: dict[tuple[Resource, NamespacedName], _Written] = {}

    async def write(self, resource: Resource, meta: ObjectMeta, status: Tree) -> Outcome:
        """Make the status of the object that *meta* was read from say *status*.

        The request is bound to the version that the client knows, because the API server looks
        at no UID here. Raises ConflictError when somebody wrote meanwhile, and when that object
        is gone or was made anew: the status belongs to a run that looks again; TerminalError
        for two entries of one key; and what the client raises. The order of conditions, and of
        what *structures* calls a set or a map, does not matter.
        """
        key = meta.key
        live = self._same(resource, meta, await self._client.read(resource, key))
        written = encode_sorted(status)
        said, last = digest_of(written), self._memory.get((resource, key))
        if last is not None and last.said == said and last.live.is_of(live.meta):
            return Outcome.UNCHANGED
        wish = _Wish.of(self._shape(resource), written, said)
        asked = b"" if last is None else last.asked if last.said == said else wish.asked
        if self._is_shown(wish, live, last, asked):
            self._memory[resource, key] = _Written(live, said, asked)
            return Outcome.UNCHANGED
        answer = await self._send(resource, live, wish.intent)
        self._memory[resource, key] = _Written(answer, said, asked)
        is_same = answer.meta.resource_version == live.meta.resource_version
        return Outcome.UNCHANGED if is_same else Outcome.UPDATED

    def forget(self, resource: Resource, key: NamespacedName) -> None:
        """Drop what is remembered of an object that is gone."""
        self._memory.pop((resource, key), None)

    def _shape(self, resource: Resource) -> Shape:
        if resource not in self._shapes:
            structure = structure_of(resource) | self._structures.get(resource, {})
            self._shapes[resource] = shape_of(structure)
        return self._shapes[resource]

    def _is_shown(
        self, wish: _Wish, live: StoredObject, last: _Written | None, asked: bytes
    ) -> bool:
        """Tell whether the live status says it already."""
        if (
            last is not None
            and last.live.meta.uid == live.meta.uid
            and (last.said == wish.said or last.asked == asked)
        ):
            return wish.is_held_alike(last.live, live)
        found = _status_of(live).items()
        return wish.is_all_of({f: v for f, v in found if f not in self._foreign}, asked)

    async def _send(self, resource: Resource, live: StoredObject, intent: Tree) -> StoredObject:
        body = _bound_to(live.meta, resource, intent)
        try:
            return await self._client.apply(
                resource, body, field_manager=self._field_manager, subresource="status"
            )
        except (ConflictError, NotFoundError) as error:
            self.forget(resource, live.meta.key)
            if isinstance(error, ConflictError):
                raise
            msg = f"{resource.kind} {live.meta.key} is gone, or its kind has no status subresource"
            raise ConflictError(msg) from error
        except ServerError as error:
            if _UNTYPED not in str(error):
                raise
            return await self._replace(resource, live, intent)

    async def _replace(self, resource: Resource, live: StoredObject, intent: Tree) -> StoredObject:
        """Write the status of an object that does not fit its schema, which no apply can."""
        found = _status_of(live)
        theirs = {field: value for field, value in found.items() if field in self._foreign}
        version = live.meta.resource_version
        patch: list[Tree] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status", "value": theirs | intent["status"]},
        ]
        try:
            return await self._client.patch(
                resource,
                live.meta.key,
                patch,
                content_type=Patch.JSON,
                field_manager=self._field_manager,
                subresource="status",
            )
        except InvalidError as error:
            if error.causes:
                raise
            # How the API server says that a test failed.
            msg = f"{resource.kind} {live.meta.key} was changed meanwhile"
            raise ConflictError(msg) from error

    def _same(
        self, resource: Resource, meta: ObjectMeta, found: StoredObject | None
    ) -> StoredObject:
        if found is None or found.meta.uid != meta.uid:
            self.forget(resource, meta.key)
            raise ConflictError(f"{resource.kind} {meta.key} is gone or was made anew")
        return found


def _bound_to(meta: ObjectMeta, resource: Resource, intent: Tree) -> Tree:
    """Return what to send: the server refuses it for another version of the object."""
    metadata = {"name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version}
    if meta.namespace:
        metadata["namespace"] = meta.namespace
    head = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    return head | intent


def _status_of(live: StoredObject) -> Tree:
    found = live.part("status")
    return found if isinstance(found, dict) else {}
