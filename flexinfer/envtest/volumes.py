# SPDX-License-Identifier: Apache-2.0
"""Storage of simulated nodes: `local` PersistentVolumes, whose node affinity is real.

Nothing is mounted. The real scheduler still sends a pod to the node of its claim's volume, which
is what ReadWriteOnce means to a Deployment of several replicas.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flexinfer.envtest.admin import Admin

LOCAL = "local"
"""Binds a claim when its first pod is scheduled, to a volume of that node; the default class."""
LOCAL_IMMEDIATE = "local-immediate"
"""Binds a claim as soon as there is a volume."""
_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_VOLUMES = "/api/v1/persistentvolumes"


def create_classes(admin: Admin) -> None:
    """Create the StorageClasses `local` and `local-immediate`."""
    for name, mode in ((LOCAL, "WaitForFirstConsumer"), (LOCAL_IMMEDIATE, "Immediate")):
        is_default = "true" if name == LOCAL else "false"
        annotations = {"storageclass.kubernetes.io/is-default-class": is_default}
        admin.create(
            _CLASSES,
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": name, "annotations": annotations},
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": mode,
            },
        )


def add(admin: Admin, node: str, *, size: str, storage_class: str = LOCAL) -> str:
    """Create a volume of *size*, a quantity, on *node*; return its name."""
    name = f"{node}-{secrets.token_hex(4)}"
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    terms = [{"matchExpressions": [on_node]}]
    admin.create(
        _VOLUMES,
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": storage_class,
                "local": {"path": f"/var/local/{name}"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            },
        },
    )
    return name
