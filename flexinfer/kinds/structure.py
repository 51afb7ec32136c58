# SPDX-License-Identifier: Apache-2.0
"""How server-side apply merges the lists and maps of each kind.

The API server publishes this in its OpenAPI document (`x-kubernetes-list-type`,
`x-kubernetes-list-map-keys`, `x-kubernetes-map-type`); a test compares this table with the
document of a running server. Without an entry a list is atomic and a map is merged key by key,
which is also the rule for custom resources.

Paths are dotted field names; lists add nothing to a path, so `spec.containers.env` is the
environment of every container.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.meta.resource import Resource

__all__ = ["ListMap", "Merge", "Structure"]


class Merge(StrEnum):
    """Name a way of merging that is not the default of its type."""

    ATOMIC_MAP = "atomic map"
    """One owner for the whole map: what another manager adds is a change of ours."""
    SET = "set"
    """A list of scalars without order, owned value by value."""


@dataclass(frozen=True, slots=True)
class ListMap:
    """Be a list that is owned entry by entry; `keys` are the fields that identify an entry."""

    keys: tuple[str, ...]


Structure = dict[str, ListMap | Merge]

# What the server fills in when an entry leaves out a key field.
KEY_DEFAULTS: Mapping[str, str] = {"protocol": "TCP"}

_ANY_OBJECT: Structure = {
    "metadata.finalizers": Merge.SET,
    "metadata.ownerReferences": ListMap(("uid",)),
    "status.conditions": ListMap(("type",)),
}

_CONTAINER: Structure = {
    "": ListMap(("name",)),
    ".env": ListMap(("name",)),
    ".env.valueFrom.configMapKeyRef": Merge.ATOMIC_MAP,
    ".env.valueFrom.fieldRef": Merge.ATOMIC_MAP,
    ".env.valueFrom.fileKeyRef": Merge.ATOMIC_MAP,
    ".env.valueFrom.resourceFieldRef": Merge.ATOMIC_MAP,
    ".env.valueFrom.secretKeyRef": Merge.ATOMIC_MAP,
    ".ports": ListMap(("containerPort", "protocol")),
    ".resources.claims": ListMap(("name",)),
    ".volumeDevices": ListMap(("devicePath",)),
    ".volumeMounts": ListMap(("mountPath",)),
    ".volumeMounts.bindMountOptions": Merge.SET,
}

_POD_SPEC: Structure = {
    f"{containers}{path}": rule
    for containers in ("containers", "ephemeralContainers", "initContainers")
    for path, rule in _CONTAINER.items()
} | {
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution": Merge.ATOMIC_MAP,
    "evictionResponders": ListMap(("name",)),
    "hostAliases": ListMap(("ip",)),
    "imagePullSecrets": ListMap(("name",)),
    "nodeSelector": Merge.ATOMIC_MAP,
    "resourceClaims": ListMap(("name",)),
    "resources.claims": ListMap(("name",)),
    "schedulingGates": ListMap(("name",)),
    "topologySpreadConstraints": ListMap(("topologyKey", "whenUnsatisfiable")),
    "topologySpreadConstraints.labelSelector": Merge.ATOMIC_MAP,
    "volumes": ListMap(("name",)),
    "volumes.ephemeral.volumeClaimTemplate.spec.dataSource": Merge.ATOMIC_MAP,
    "volumes.ephemeral.volumeClaimTemplate.spec.selector": Merge.ATOMIC_MAP,
}


def _pods_at(path: str, **more: ListMap | Merge) -> Structure:
    selector: Structure = {f"spec.{name}": rule for name, rule in more.items()}
    return selector | {f"{path}.{name}": rule for name, rule in _POD_SPEC.items()}


_STRUCTURES: Mapping[tuple[str, str], Structure] = {
    ("", "PersistentVolumeClaim"): {
        "spec.dataSource": Merge.ATOMIC_MAP,
        "spec.selector": Merge.ATOMIC_MAP,
    },
    ("", "Pod"): _pods_at("spec"),
    ("", "Service"): {
        "spec.ports": ListMap(("port", "protocol")),
        "spec.selector": Merge.ATOMIC_MAP,
    },
    ("apps", "DaemonSet"): _pods_at("spec.template.spec", selector=Merge.ATOMIC_MAP),
    ("apps", "Deployment"): _pods_at("spec.template.spec", selector=Merge.ATOMIC_MAP),
    ("apps", "StatefulSet"): _pods_at("spec.template.spec", selector=Merge.ATOMIC_MAP),
    ("batch", "Job"): _pods_at("spec.template.spec", selector=Merge.ATOMIC_MAP),
    ("policy", "PodDisruptionBudget"): {"spec.selector": Merge.ATOMIC_MAP},
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): {"roleRef": Merge.ATOMIC_MAP},
    ("rbac.authorization.k8s.io", "RoleBinding"): {"roleRef": Merge.ATOMIC_MAP},
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Be the rule of one field and the shapes of what is below it, for walking down a tree."""

    rule: ListMap | Merge | None = None
    fields: Mapping[str, Shape] = field(default_factory=dict)


PLAIN = Shape()
"""The shape of what merges by the default of its type, all the way down."""


def structure_of(resource: Resource) -> Structure:
    """Return the merge rules of a kind, whatever its version; those of any object at least."""
    return _ANY_OBJECT | _STRUCTURES.get((resource.gvk.group, resource.gvk.kind), {})


def shape_of(structure: Structure) -> Shape:
    """Turn dotted paths into a tree; the rule of the whole is under the empty path."""
    below: dict[str, Structure] = {}
    for path, rule in structure.items():
        if path:
            head, _, rest = path.partition(".")
            below.setdefault(head, {})[rest] = rule
    shapes = {name: shape_of(rules) for name, rules in below.items()}
    return Shape(structure.get(""), shapes)
