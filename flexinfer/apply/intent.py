# SPDX-License-Identifier: Apache-2.0
"""What an intent asks for, and what a live object holds at the very same paths."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from flexinfer.errors import TerminalError
from flexinfer.kinds.structure import KEY_DEFAULTS, ListMap, Merge
from flexinfer.meta.envelope import encode, encode_sorted

if TYPE_CHECKING:
    from flexinfer.kinds.structure import Structure
    from flexinfer.meta.envelope import Tree

_DIGEST_SIZE = 16  # 2^64 trees before two of them are likely to collide


def clean(intent: Tree) -> Tree:
    """Return a copy in which whatever is None is left out and whatever is empty is kept.

    An absent field is one we have no opinion on; a zero, an empty string, list or map is one.
    """
    stripped: Tree = _strip(intent)
    return stripped


def _strip(value: Any) -> Any:
    if isinstance(value, dict):
        return {field: _strip(item) for field, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_strip(item) for item in value if item is not None]
    return value


def digest(tree: Tree) -> bytes:
    """Hash a tree: equal JSON, in whatever order of keys, gives equal digests."""
    return blake2b(encode_sorted(tree), digest_size=_DIGEST_SIZE).digest()


def values_at(intent: Tree, live: Tree, structure: Structure) -> Tree:
    """Return what *live* holds where *intent* has an opinion, in a canonical form.

    Maps are followed key by key and lists of `ListMap` entry by entry, so what others added
    beside our keys and entries is left out. An atomic list or map, a scalar, and a value of
    another type than ours are taken whole. What is absent in *live* is absent here.
    """
    return _fields_at(intent, live, "", structure)


def canonical(tree: Tree, structure: Structure) -> Tree:
    """Return the form in which trees that mean the same to server-side apply are equal."""
    return values_at(tree, tree, structure)


def _fields_at(intent: Tree, live: Tree, path: str, structure: Structure) -> Tree:
    return {
        field: _value_at(wanted, live[field], f"{path}.{field}" if path else field, structure)
        for field, wanted in intent.items()
        if field in live
    }


def _value_at(wanted: Any, found: Any, path: str, structure: Structure) -> Any:
    rule = structure.get(path)
    if isinstance(wanted, dict) and isinstance(found, dict) and rule is not Merge.ATOMIC_MAP:
        return _fields_at(wanted, found, path, structure)
    if isinstance(wanted, list) and isinstance(found, list):
        if isinstance(rule, ListMap):
            return _entries_at(wanted, found, path, structure, rule)
        if rule is Merge.SET:
            return sorted(value for value in found if value in wanted)
    return found


def _entries_at(
    wanted: list[Tree], found: list[Tree], path: str, structure: Structure, rule: ListMap
) -> Tree:
    live = {_entry_key(entry, rule): entry for entry in found}
    ours = {_entry_key(entry, rule): entry for entry in wanted}
    return {
        encode(key).decode(): _fields_at(entry, live[key], path, structure)
        for key, entry in ours.items()
        if key in live
    }


def _entry_key(entry: Tree, rule: ListMap) -> tuple[Any, ...]:
    return tuple(entry.get(field, KEY_DEFAULTS.get(field)) for field in rule.keys)


def check_entries(intent: Tree, structure: Structure) -> None:
    """Refuse lists whose entries cannot be told apart; raise TerminalError naming the list.

    The API server merges such lists by key: it rejects an apply with two entries of one key,
    or with an entry that has none, in words that do not say which list of ours it was.
    """
    _check(intent, "", structure)


def _check(value: Any, path: str, structure: Structure) -> None:
    if isinstance(value, dict):
        for field, item in value.items():
            _check(item, f"{path}.{field}" if path else field, structure)
    elif isinstance(value, list):
        rule = structure.get(path)
        if isinstance(rule, ListMap):
            _check_keys(value, path, rule)
        for item in value:
            _check(item, path, structure)


def _check_keys(entries: list[Any], path: str, rule: ListMap) -> None:
    seen = set()
    for entry in entries:
        key = _entry_key(entry, rule) if isinstance(entry, dict) else (None,)
        if None in key:
            raise TerminalError(f"{path}: an entry lacks {' or '.join(rule.keys)}; set it")
        if key in seen:
            named = ", ".join(
                f"{field}={value}" for field, value in zip(rule.keys, key, strict=True)
            )
            raise TerminalError(f"{path}: two entries have {named}; keep one of them")
        seen.add(key)
