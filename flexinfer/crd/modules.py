# SPDX-License-Identifier: Apache-2.0
"""Modules to the files that are generated from them: a CRD for each kind, a role for the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.crd.document import render
from flexinfer.crd.generate import crd_for
from flexinfer.crd.markers import is_custom_resource
from flexinfer.crd.rbac import Rule, cluster_role
from flexinfer.errors import ConfigurationError
from flexinfer.meta.object import Object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

__all__ = ["manifests_of"]

_RULES = "RULES"


def manifests_of(modules: Sequence[ModuleType], *, role: str) -> dict[str, str]:
    """Return the path and the text of each file that *modules* come to.

    `crd/<group>_<plural>.yaml` for each class that `resource` decorates and that is a name of a
    module; those of other packages, which it has only imported, are left out. `rbac/role.yaml`
    is one ClusterRole named *role* with the RULES of all modules.

    Raises ConfigurationError for modules with neither kinds nor RULES, for RULES that are no
    rules, and as `crd_for` does.
    """
    outputs = {}
    for kind in sorted(_kinds(modules), key=lambda kind: str(kind.resource)):
        file = f"crd/{kind.resource.gvk.group}_{kind.resource.plural}.yaml"
        outputs[file] = render(crd_for(kind))
    rules = [rule for module in modules for rule in _rules(module)]
    if rules:
        outputs["rbac/role.yaml"] = render(cluster_role(role, rules))
    if not outputs:
        names = ", ".join(module.__name__ for module in modules)
        raise ConfigurationError(
            f"{names}: no class is decorated with @resource, and there are no RULES: name the"
            " module that has them"
        )
    return outputs


def _kinds(modules: Iterable[ModuleType]) -> set[type[Object]]:
    return {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Object)
        and is_custom_resource(value)
        and _package(value.__module__) == _package(module.__name__)
    }


def _package(name: str) -> str:
    return name.partition(".")[0]


def _rules(module: ModuleType) -> Iterator[Rule]:
    for rule in getattr(module, _RULES, ()):
        if not isinstance(rule, Rule):
            raise ConfigurationError(
                f"{module.__name__}.{_RULES} holds {rule!r}: make it a tuple of Rule"
            )
        yield rule
