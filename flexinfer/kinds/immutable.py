# SPDX-License-Identifier: Apache-2.0
"""The fields that the API server never lets change, and what to do when one should.

A change of such a field is answered with 422, however often it is sent. Custom resources make
fields immutable by CEL rules that only their author knows, so callers may add to this table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.meta.resource import Resource

__all__ = ["ImmutableField", "Policy"]


class Policy(StrEnum):
    """Say what happens when an intent asks for another value than the live one."""

    PRESERVE = "preserve"
    """Apply the rest with the live value in place."""
    GROW = "grow"
    """The same for a quantity, but only when it would shrink."""
    RECREATE = "recreate"
    """Once the server has refused the change: delete the object and apply it anew."""
    FAIL = "fail"
    """Let the server refuse it; nothing of the intent is applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImmutableField:
    """Name one field by its dotted path; lists cannot be entered.

    `server_allocated`: the server chooses the value, so a differing one is left out rather
    than carried, and nothing is taken into ownership that was never ours.
    `is_drift`: a change that did not take effect is worth a user's attention.
    `pod_labels`: for selectors, the path of the labels that must go on matching the live one.
    """

    path: str
    policy: Policy = Policy.PRESERVE
    server_allocated: bool = False
    is_drift: bool = True
    pod_labels: str = ""
    fields: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The names on the way from the object to the field."""

    def __post_init__(self) -> None:
        """Refuse a path that no object can have."""
        # Split once: each apply asks for them.
        object.__setattr__(self, "fields", tuple(self.path.split(".")))
        if not all(self.fields) or "[" in self.path:
            raise ConfigurationError(
                f"path {self.path!r} is not a dotted path of fields; write it like spec.selector"
            )


def _recreate(*paths: str) -> tuple[ImmutableField, ...]:
    return tuple(ImmutableField(path=path, policy=Policy.RECREATE) for path in paths)


def _fail(*paths: str) -> tuple[ImmutableField, ...]:
    return tuple(ImmutableField(path=path, policy=Policy.FAIL) for path in paths)


def _preserve(*paths: str) -> tuple[ImmutableField, ...]:
    return tuple(ImmutableField(path=path) for path in paths)


def _allocated(*paths: str) -> tuple[ImmutableField, ...]:
    return tuple(ImmutableField(path=path, server_allocated=True) for path in paths)


# A preserved selector is not drift: the pods it selects carry its labels as well.
_SELECTOR = ImmutableField(
    path="spec.selector", is_drift=False, pod_labels="spec.template.metadata.labels"
)

_IMMUTABLE: Mapping[tuple[str, str], tuple[ImmutableField, ...]] = {
    ("", "ConfigMap"): _fail("data", "binaryData", "immutable"),
    ("", "PersistentVolumeClaim"): (
        *_preserve(
            "spec.accessModes",
            "spec.dataSource",
            "spec.dataSourceRef",
            "spec.selector",
            "spec.storageClassName",
            "spec.volumeMode",
        ),
        *_allocated("spec.volumeName"),
        ImmutableField(path="spec.resources.requests.storage", policy=Policy.GROW),
    ),
    ("", "Secret"): (*_preserve("type"), *_fail("data", "stringData", "immutable")),
    ("", "Service"): (
        *_allocated("spec.clusterIP", "spec.clusterIPs", "spec.healthCheckNodePort"),
        *_fail("spec.ipFamilies"),
    ),
    ("apps", "DaemonSet"): (_SELECTOR,),
    ("apps", "Deployment"): (_SELECTOR,),
    ("apps", "ReplicaSet"): (_SELECTOR,),
    ("apps", "StatefulSet"): (
        _SELECTOR,
        *_preserve("spec.podManagementPolicy", "spec.serviceName", "spec.volumeClaimTemplates"),
    ),
    ("batch", "Job"): (
        ImmutableField(path="spec.selector", server_allocated=True),
        *_recreate(
            "spec.backoffLimitPerIndex",
            "spec.completionMode",
            "spec.completions",
            "spec.managedBy",
            "spec.podFailurePolicy",
            "spec.successPolicy",
            "spec.template",
        ),
    ),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _recreate("roleRef"),
    ("rbac.authorization.k8s.io", "RoleBinding"): _recreate("roleRef"),
    ("resource.k8s.io", "ResourceClaimTemplate"): _recreate("spec"),
    ("scheduling.k8s.io", "PriorityClass"): _recreate("preemptionPolicy", "value"),
    ("storage.k8s.io", "StorageClass"): _recreate(
        "parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"
    ),
}


def immutable_fields(resource: Resource) -> tuple[ImmutableField, ...]:
    """Return what is known of a kind, whatever its version; nothing for custom resources."""
    return _IMMUTABLE.get((resource.gvk.group, resource.gvk.kind), ())
