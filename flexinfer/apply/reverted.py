# SPDX-License-Identifier: Apache-2.0
"""Whose change is taken back: `managedFields` say it, until our apply overwrites them.

A manager that changes a field of ours becomes its only owner, whether by an update or by a forced
apply. So the foreign fields of an intent are those that we do not own any more. Who removes a
field leaves no trace: then the field is known, and the manager is not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog

from flexinfer.apply.intent import entry_key
from flexinfer.errors import FlexInferError
from flexinfer.kinds.structure import PLAIN, ListMap, Merge
from flexinfer.meta.envelope import encode, encode_sorted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flexinfer.apply.live import LiveClient
    from flexinfer.apply.plan import Child, Identity
    from flexinfer.kinds.structure import Shape
    from flexinfer.meta.envelope import ObjectMeta, Tree
    from flexinfer.meta.object import Object
    from flexinfer.meta.resource import Resource

_log = structlog.get_logger(__name__)

PERIOD = 60.0
"""Seconds in which one child is looked at, and reported, once: two managers may fight for ever."""


class Claim(NamedTuple):
    """Be the fields that one manager had taken; `manager` is empty when it left no trace.

    `operation` is `Apply` or `Update`, `subresource` empty or the like of `scale`.
    """

    manager: str
    operation: str
    subresource: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reverted:
    """Report a foreign change to a child that was taken back; `claims` may be empty."""

    owner: Object | None
    resource: Resource
    meta: ObjectMeta
    claims: tuple[Claim, ...]


class RevertObserver(Protocol):
    """Be told of foreign changes that were taken back, for the event about them."""

    def __call__(self, change: Reverted) -> None:
        """Take one report; never wait."""


class Witness:
    """Find out whose change an apply takes back, at most once a minute for one child."""

    def __init__(
        self,
        client: LiveClient,
        *,
        field_manager: str,
        observer: RevertObserver | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._field_manager = field_manager
        self._observer = observer
        self._clock = clock
        self._looked: dict[Identity, dict[Identity, float]] = {}

    async def look(self, child: Child, body: Tree) -> tuple[Claim, ...] | None:
        """Ask the server once, before *body* is applied.

        Returns None when nobody wants to know, or knows of this child already; without an answer
        no claims, so that the apply goes on.
        """
        if self._observer is None or not self._is_time(child):
            return None
        try:
            live = await self._client.live_tree(*child.id)
        except FlexInferError as error:
            _log.warning("cannot tell who changed an object", object=str(child), error=str(error))
            return ()
        if live is None:
            return ()
        return claims_on(body, live, child.kind.shape, field_manager=self._field_manager)

    def report(self, child: Child, meta: ObjectMeta, claims: tuple[Claim, ...]) -> None:
        """Tell the observer, once the apply has taken the change back."""
        if self._observer is not None:
            self._observer(Reverted(child.owner, child.kind.resource, meta, claims))

    def forget(self, owner: Identity) -> None:
        """Drop what is remembered of the children of an owner that is gone."""
        self._looked.pop(owner, None)

    def _is_time(self, child: Child) -> bool:
        now, looked = self._clock(), self._looked.setdefault(child.owner_id, {})
        if child.id in looked and now - looked[child.id] < PERIOD:
            return False
        looked[child.id] = now
        return True


def claims_on(intent: Tree, live: Tree, shape: Shape, *, field_manager: str) -> tuple[Claim, ...]:
    """Return who holds which fields of *intent* that *field_manager* does not hold.

    *live* is the whole object with its `managedFields`. Fields that nobody holds count as removed
    when *live* does not have them.
    """
    entries: Sequence[Tree] = live["metadata"].get("managedFields") or ()
    ours = [e.get("fieldsV1", {}) for e in entries if e.get("manager") == field_manager]
    others = [e for e in entries if e.get("manager") != field_manager]
    found: dict[tuple[str, str, str], list[str]] = {}
    for leaf in _leaves(intent, live, shape.fields, _ROOT):
        if any(_holds(fields, leaf.keys) for fields in ours):
            continue
        holders = [e for e in others if _holds(e.get("fieldsV1", {}), leaf.keys)]
        for entry in holders:
            found.setdefault(_who(entry), []).append(leaf.path)
        if not holders and leaf.is_missing:
            found.setdefault(_NOBODY, []).append(leaf.path)
    return tuple(Claim(*who, tuple(paths)) for who, paths in found.items())


_NOBODY = ("", "", "")


class _Leaf(NamedTuple):
    """Be one value of an intent: its path for people and, key by key, for `fieldsV1`."""

    path: str
    keys: tuple[str, ...]
    is_missing: bool


_ROOT = _Leaf("", (), is_missing=False)


def _leaves(
    wanted: Mapping[str, Any], live: Any, shapes: Mapping[str, Shape], at: _Leaf
) -> Iterator[_Leaf]:
    for field, value in wanted.items():
        found = live.get(field) if isinstance(live, dict) else None
        path = f"{at.path}.{field}" if at.path else field
        # The server drops what is empty, so what is missing then was never there.
        missing = found is None and value not in ("", 0, [], {}, False)
        leaf = _Leaf(path, (*at.keys, f"f:{field}"), missing)
        yield from _below(value, found, shapes.get(field, PLAIN), leaf)


def _below(value: Any, found: Any, shape: Shape, leaf: _Leaf) -> Iterator[_Leaf]:
    """Yield the leaves of one value: itself, or what server-side apply owns below it."""
    if isinstance(value, dict) and value and shape.rule is not Merge.ATOMIC_MAP:
        yield from _leaves(value, found, shape.fields, leaf)
    elif isinstance(value, list) and isinstance(shape.rule, ListMap):
        yield from _entries(value, found, shape, shape.rule, leaf)
    elif isinstance(value, list) and shape.rule is Merge.SET:
        for item in value:
            missing = item not in (found or ())
            key = f"v:{encode(item).decode()}"
            yield _Leaf(f"{leaf.path}[{item}]", (*leaf.keys, key), missing)
    else:
        yield leaf


def _entries(
    value: list[Tree], found: Any, shape: Shape, rule: ListMap, leaf: _Leaf
) -> Iterator[_Leaf]:
    live = {entry_key(entry, rule): entry for entry in found or ()}
    for entry in value:
        key = entry_key(entry, rule)
        named = dict(zip(rule.keys, key, strict=True))
        text = ",".join(f"{field}={item}" for field, item in named.items())
        keys = (*leaf.keys, f"k:{encode_sorted(named).decode()}")
        below = _Leaf(f"{leaf.path}[{text}]", keys, key not in live)
        yield from _leaves(entry, live.get(key), shape.fields, below)


def _holds(fields: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    for key in keys:
        if key not in fields:
            return False
        fields = fields[key]
    return True


def _who(entry: Tree) -> tuple[str, str, str]:
    return entry.get("manager", ""), entry.get("operation", ""), entry.get("subresource", "")
