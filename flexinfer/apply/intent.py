# SPDX-License-Identifier: Apache-2.0
"""What an intent asks for, and what a live object holds at the very same paths."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from flexinfer.errors import TerminalError
from flexinfer.kinds.structure import KEY_DEFAULTS, PLAIN, ListMap, Merge
from flexinfer.meta.envelope import encode_sorted, read_back

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.kinds.structure import Shape
    from flexinfer.meta.envelope import Tree

_NESTED = (dict, list)
_DIGEST_SIZE = 16  # 2^64 trees before two of them are likely to collide


def clean(intent: Tree) -> Tree:
    """Return a copy in which whatever is None is left out and whatever is empty is kept.

    An absent field is one we have no opinion on; a zero, an empty string, list or map is one.
    """
    return clean_from(encode_sorted(intent))


def clean_from(written: bytes) -> Tree:
    """Return what `clean` does for a tree that was written down already.

    Reading it back costs a quarter of a copy, and most hold no null to look for.
    """
    tree = read_back(written)
    return _strip(tree) if b"null" in written else tree


def _strip(value: Any) -> Any:
    if isinstance(value, dict):
        return {field: _strip(item) for field, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_strip(item) for item in value if item is not None]
    return value


def digest(tree: Tree) -> bytes:
    """Hash a tree: equal JSON, in whatever order of keys, gives equal digests."""
    return digest_of(encode_sorted(tree))


def digest_of(written: bytes) -> bytes:
    """Hash a tree that was written down with sorted keys already."""
    return blake2b(written, digest_size=_DIGEST_SIZE).digest()


def values_at(intent: Tree, live: Tree, shape: Shape) -> Tree:
    """Return what *live* holds where *intent* has an opinion, in a canonical form.

    Maps are followed key by key and lists of `ListMap` entry by entry, so what others added
    beside our keys and entries is left out. An atomic list or map, a scalar, and a value of
    another type than ours are taken whole. What is absent in *live* is absent here.
    """
    return _fields_at(intent, live, shape.fields)


def canonical(tree: Tree, shape: Shape) -> Tree:
    """Return the form in which trees that mean the same to server-side apply are equal."""
    return values_at(tree, tree, shape)


def _fields_at(intent: Tree, live: Tree, shapes: Mapping[str, Shape]) -> Tree:
    if intent is live and not shapes:
        return live  # canonical as it is
    return {
        field: _value_at(wanted, live[field], shapes.get(field, PLAIN))
        if isinstance(wanted, _NESTED)
        else live[field]
        for field, wanted in intent.items()
        if field in live
    }


def _value_at(wanted: Any, found: Any, shape: Shape) -> Any:
    if isinstance(wanted, dict) and isinstance(found, dict):
        atomic = shape.rule is Merge.ATOMIC_MAP
        return found if atomic else _fields_at(wanted, found, shape.fields)
    if isinstance(wanted, list) and isinstance(found, list):
        if isinstance(shape.rule, ListMap) and _are_maps(wanted) and _are_maps(found):
            return _entries_at(wanted, found, shape, shape.rule)
        if shape.rule is Merge.SET:
            return sorted((value for value in found if value in wanted), key=repr)
    return found


def _are_maps(entries: list[Any]) -> bool:
    """Tell whether these are what a `ListMap` holds: an object of an older CRD may have others."""
    return all(isinstance(entry, dict) for entry in entries)


def _entries_at(wanted: list[Tree], found: list[Tree], shape: Shape, rule: ListMap) -> Tree:
    ours = {str(entry_key(entry, rule)): entry for entry in wanted}
    # `canonical` looks a tree up in itself.
    live = ours if found is wanted else {str(entry_key(entry, rule)): entry for entry in found}
    return {
        key: _fields_at(entry, live[key], shape.fields)
        for key, entry in ours.items()
        if key in live
    }


def entry_key(entry: Tree, rule: ListMap) -> tuple[Any, ...]:
    """Return what tells an entry of a list from the others, None where it lacks a key field."""
    return tuple([entry.get(field, KEY_DEFAULTS.get(field)) for field in rule.keys])


def check_entries(intent: Tree, shape: Shape) -> None:
    """Refuse lists whose entries cannot be told apart; raise TerminalError naming the list.

    The API server merges such lists by key: it rejects an apply with two entries of one key,
    or with an entry that has none, in words that do not say which list of ours it was.
    """
    _check_fields(intent, shape.fields, "")


def _check_fields(tree: Tree, shapes: Mapping[str, Shape], prefix: str) -> None:
    for field, value in tree.items():  # of which there are fewer than shapes
        shape = shapes.get(field)
        if shape is None:
            continue
        if isinstance(value, list) and isinstance(shape.rule, ListMap):
            _check_keys(value, f"{prefix}{field}", shape.rule)
        if not shape.fields:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                _check_fields(item, shape.fields, f"{prefix}{field}.")


def _check_keys(entries: list[Any], path: str, rule: ListMap) -> None:
    seen = set()
    for entry in entries:
        key = entry_key(entry, rule) if isinstance(entry, dict) else (None,)
        if None in key:
            raise TerminalError(f"{path}: an entry lacks {' or '.join(rule.keys)}; set it")
        if key in seen:
            named = ", ".join(
                f"{field}={value}" for field, value in zip(rule.keys, key, strict=True)
            )
            raise TerminalError(f"{path}: two entries have {named}; keep one of them")
        seen.add(key)
