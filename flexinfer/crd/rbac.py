# SPDX-License-Identifier: Apache-2.0
"""The rights that stand beside each reconciler, merged into roles."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Self

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flexinfer.meta.envelope import Tree
    from flexinfer.meta.object import Object

__all__ = ["Rule", "cluster_role", "merge", "role"]

_API_VERSION = "rbac.authorization.k8s.io/v1"
# The order in which people list verbs; others follow in alphabetical order.
_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Allow *verbs* on *resources* of *groups*; the core group is the empty string.

    With *names* the rule holds for objects of these names only. Raises ConfigurationError for a
    wildcard and for an empty part: a role says what it needs.
    """

    groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part in ("groups", "resources", "verbs"):
            values: tuple[str, ...] = getattr(self, part)
            if not values:
                raise ConfigurationError(f"a rule has no {part}: name them")
        for value in (*self.groups, *self.resources, *self.verbs, *self.names):
            if "*" in value:
                raise ConfigurationError(
                    f"a rule holds the wildcard {value!r}: name what is needed"
                )
        if self.names and "create" in self.verbs and not all("/" in r for r in self.resources):
            raise ConfigurationError(
                "a rule with names allows create, where no name is known yet: "
                "make create a rule of its own"
            )

    @classmethod
    def on(cls, kind: type[Object], *verbs: str, subresource: str = "") -> Self:
        """Allow *verbs* on all objects of *kind*, or on a *subresource* such as `status`."""
        resource = kind.resource
        name = f"{resource.plural}/{subresource}" if subresource else resource.plural
        return cls(groups=(resource.gvk.group,), resources=(name,), verbs=verbs)


def merge(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Join rules that differ in verbs or in resources only, sorted; each names one group.

    The resources of a rule share its verbs, so no rule allows more than was asked for.
    """
    verbs: dict[tuple[str, str, tuple[str, ...]], set[str]] = defaultdict(set)
    for rule in rules:
        for group, name in product(rule.groups, rule.resources):
            verbs[group, name, tuple(sorted(set(rule.names)))].update(rule.verbs)
    alike: dict[tuple[str, tuple[str, ...], tuple[str, ...]], set[str]] = defaultdict(set)
    for (group, name, names), allowed in verbs.items():
        alike[group, names, tuple(sorted(allowed, key=_verb_order))].add(name)
    merged = (
        Rule(groups=(group,), resources=tuple(sorted(resources)), verbs=allowed, names=names)
        for (group, names, allowed), resources in alike.items()
    )
    return tuple(sorted(merged, key=lambda r: (r.groups, r.resources, r.names)))


def cluster_role(
    name: str, rules: Iterable[Rule], *, labels: Mapping[str, str] | None = None
) -> Tree:
    """Return a ClusterRole that allows *rules* in every namespace."""
    return _role("ClusterRole", {"name": name}, rules, labels)


def role(
    name: str,
    rules: Iterable[Rule],
    *,
    namespace: str = "",
    labels: Mapping[str, str] | None = None,
) -> Tree:
    """Return a Role; without a *namespace* whoever applies it says where."""
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return _role("Role", metadata, rules, labels)


def _role(
    kind: str, metadata: Tree, rules: Iterable[Rule], labels: Mapping[str, str] | None
) -> Tree:
    if labels:
        metadata["labels"] = dict(sorted(labels.items()))
    return {
        "apiVersion": _API_VERSION,
        "kind": kind,
        "metadata": metadata,
        "rules": [_tree(rule) for rule in merge(rules)],
    }


def _tree(rule: Rule) -> Tree:
    tree: Tree = {"apiGroups": list(rule.groups), "resources": list(rule.resources)}
    if rule.names:
        tree["resourceNames"] = list(rule.names)
    return tree | {"verbs": list(rule.verbs)}


def _verb_order(verb: str) -> tuple[int, str]:
    return (_VERBS.index(verb) if verb in _VERBS else len(_VERBS), verb)
