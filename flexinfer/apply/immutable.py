# SPDX-License-Identifier: Apache-2.0
"""Immutable fields of an intent: settled from the live object, or recognised in a refusal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from flexinfer.errors import ConfigurationError
from flexinfer.kinds.immutable import ImmutableField, Policy
from flexinfer.meta.quantity import Quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flexinfer.errors import Cause
    from flexinfer.meta.envelope import Tree

# How the API server's validation, and most authors of CEL rules, say that a field cannot change.
_SAYS_IMMUTABLE = re.compile(
    r"immutable|(may|can|must) ?not (be )?(change|update|modif)|updates to|self == oldSelf",
    re.IGNORECASE,
)
_INDEX = re.compile(r"\[[^\]]*\]")
# Whatever is asked for is sent: the server's refusal decides.
_AS_ASKED = (Policy.RECREATE, Policy.FAIL)


def carry_immutable(
    intent: Tree, live: Tree | None, rules: Iterable[ImmutableField]
) -> tuple[Tree, tuple[str, ...]]:
    """Return the intent that the server can accept, and the paths where it is not what was asked.

    Only paths that *intent* sets are looked at: there the live value takes over, or the path is
    left out when the live object has none or the server allocates it. *live* is None for an
    object that is to be created. A path is reported when the live value does not contain what
    was asked for, except for selectors. *intent* is clean and is not changed.
    """
    drift = []
    for rule in rules:
        if rule.policy in _AS_ASKED or (live is None and not rule.server_allocated):
            continue
        wanted = _get(intent, rule.fields)
        found = _get(live or {}, rule.fields)
        settled = _settle(wanted, found, rule)
        if settled == wanted:
            continue
        intent = _put(intent, rule.fields, settled)
        if rule.pod_labels and settled is not None:
            intent = _label_pods(intent, settled, rule.pod_labels)
        if rule.is_drift and not _contains(found, wanted):
            drift.append(rule.path)
    return intent, tuple(drift)


def _settle(wanted: Any, found: Any, rule: ImmutableField) -> Any:
    """Return the value to send, None to leave it out."""
    if wanted is None:
        return None
    if rule.server_allocated:
        return wanted if wanted and found in (None, wanted) else None
    if rule.policy is Policy.GROW:
        return found if _shrinks(wanted, found) else wanted
    return found


def _shrinks(wanted: Any, found: Any) -> bool:
    try:
        return Quantity.parse(wanted) < Quantity.parse(found)
    except ConfigurationError:
        return False  # not a quantity: the server says so in better words


def _contains(found: Any, wanted: Any) -> bool:
    """Tell whether *found* is *wanted* with nothing but defaults and additions."""
    if wanted in ({}, [], ""):
        return True
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(_contains(found.get(field), value) for field, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(_contains, found, wanted))
    return bool(found == wanted)


def _label_pods(intent: Tree, selector: Tree, path: str) -> Tree:
    """Let the pods match the live selector: the server refuses a template that does not."""
    fields = tuple(path.split("."))
    labels = (_get(intent, fields) or {}) | selector.get("matchLabels", {})
    return _put(intent, fields, labels)


def _get(tree: Tree, fields: Sequence[str]) -> Any:
    value: Any = tree
    for field in fields:
        if not isinstance(value, dict):
            return None
        value = value.get(field)
    return value


def _put(tree: Tree, fields: Sequence[str], value: Any) -> Tree:
    """Return *tree* with *value* at the path, None leaving it out; only the path is copied."""
    head, *rest = fields
    changed = _put(tree.get(head) or {}, rest, value) if rest else value
    others = {field: item for field, item in tree.items() if field != head}
    return others if changed is None else others | {head: changed}


def immutable_causes(causes: Iterable[Cause]) -> tuple[str, ...]:
    """Return the paths that a 422 names, if all it complains of is that they cannot change.

    Empty when something else is wrong as well: then the object has to be corrected first.
    List indexes are dropped from the paths.
    """
    causes = tuple(causes)
    if not all(_SAYS_IMMUTABLE.search(cause.message) for cause in causes):
        return ()
    return tuple(dict.fromkeys(_INDEX.sub("", cause.field) for cause in causes if cause.field))


def can_recreate(paths: Sequence[str], rules: Iterable[ImmutableField]) -> bool:
    """Tell whether every one of *paths* belongs to a field whose policy is to recreate."""
    roots = [rule.path for rule in rules if rule.policy is Policy.RECREATE]
    return all(any(_is_within(path, root) for root in roots) for path in paths)


def learn(paths: Iterable[str], rules: Sequence[ImmutableField]) -> tuple[ImmutableField, ...]:
    """Return rules that preserve the refused *paths* which *rules* say nothing about.

    Not for a whole top-level field: `spec` in a refusal means something inside it.
    """
    return tuple(
        ImmutableField(path=path)
        for path in paths
        if "." in path and not any(_is_within(path, rule.path) for rule in rules)
    )


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}.")
