# SPDX-License-Identifier: Apache-2.0
"""Fields that a controller wrote otherwise than by its applies, taken over by them.

An apply removes only what applies of the same manager set. What an update set, be it under the
same name or by an earlier version of the controller under another one, would stay for ever beside
what replaced it: an old container, a port whose name is taken. So when an object is seen for the
first time, its `managedFields` are rewritten once, as client-go's `csaupgrade` does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer import log
from flexinfer.apply.ownership import ensure_ours
from flexinfer.client.protocol import Patch
from flexinfer.errors import ConflictError, InvalidError, NotFoundError
from flexinfer.meta.envelope import decode_object, encode, encode_sorted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from flexinfer.apply.live import LiveClient
    from flexinfer.apply.plan import Child
    from flexinfer.meta.envelope import StoredObject, Tree

_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessors:
    """Say whose fields the applies of *field_manager* take over.

    Those of `former_managers`, and those of updates by the field manager itself or by whoever
    wrote the reference to the owner with the rest of the object: only an earlier version of its
    controller does that.
    """

    field_manager: str
    api_version: str
    owner_uid: str = ""
    former_managers: Collection[str] = ()

    def wrote(self, entry: Tree) -> bool:
        """Tell whether one of them holds this entry of `managedFields`."""
        if not self._is_main(entry) or self.is_successor(entry):
            return False
        manager = entry.get("manager")
        if manager in self.former_managers:
            return True
        return entry.get("operation") == "Update" and (
            manager == self.field_manager or self._refers_to_owner(entry)
        )

    def is_successor(self, entry: Tree) -> bool:
        """Tell whether the entry is that of our applies."""
        who = entry.get("manager"), entry.get("operation")
        return self._is_main(entry) and who == (self.field_manager, "Apply")

    def _is_main(self, entry: Tree) -> bool:
        return entry.get("apiVersion") == self.api_version and not entry.get("subresource")

    def _refers_to_owner(self, entry: Tree) -> bool:
        """Not so who added the reference alone: that is a person who handed the object over."""
        fields = entry.get("fieldsV1", {})
        references = fields.get("f:metadata", {}).get("f:ownerReferences", {})
        key = f"k:{encode_sorted({'uid': self.owner_uid}).decode()}"
        return key in references and fields.keys() > {"f:metadata"}


def taken_over(entries: Iterable[Tree], predecessors: Predecessors) -> list[Tree] | None:
    """Return `managedFields` in which our applies own it all; None when they do already."""
    entries = list(entries)
    earlier = [entry for entry in entries if predecessors.wrote(entry)]
    if not earlier:
        return None
    own = [entry for entry in entries if predecessors.is_successor(entry)]
    ours = {
        "manager": predecessors.field_manager,
        "operation": "Apply",
        "apiVersion": predecessors.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": _union([entry.get("fieldsV1", {}) for entry in (*own, *earlier)]),
    }
    return [*(entry for entry in entries if entry not in (*own, *earlier)), ours]


def _union(trees: Sequence[Tree]) -> Tree:
    keys = dict.fromkeys(key for tree in trees for key in tree)
    return {key: _union([tree[key] for tree in trees if key in tree]) for key in keys}


class Takeover:
    """Look at objects for the first time, past the cache, which has no `managedFields`."""

    def __init__(
        self, client: LiveClient, *, field_manager: str, former_managers: Collection[str]
    ) -> None:
        self._client = client
        self._field_manager = field_manager
        self._former_managers = frozenset(former_managers)

    async def meet(self, child: Child) -> StoredObject | None:
        """Return the object with its fields taken over, or None when there is none.

        Raises NotOursError for an object that is not ours, and ConflictError when it changed
        meanwhile.
        """
        resource = child.kind.resource
        tree = await self._client.live_tree(*child.id)
        if tree is None:
            return None
        live = decode_object(encode(tree))
        ensure_ours(live, resource, child.owner, is_known=False)
        predecessors = Predecessors(
            field_manager=self._field_manager,
            api_version=resource.api_version,
            owner_uid=child.owner_uid,
            former_managers=self._former_managers,
        )
        entries = taken_over(tree["metadata"].get("managedFields", ()), predecessors)
        return live if entries is None else await self._rewrite(child, live, entries)

    async def _rewrite(
        self, child: Child, live: StoredObject, entries: Sequence[Tree]
    ) -> StoredObject:
        _log.info("taking over fields that were not applied", object=str(child))
        version = live.meta.resource_version
        patch: list[Tree] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        ]
        try:
            return await self._client.patch(
                *child.id, patch, content_type=Patch.JSON, field_manager=self._field_manager
            )
        except (InvalidError, NotFoundError) as error:  # InvalidError: the test failed
            raise ConflictError(f"{child} was changed meanwhile; read it again") from error
