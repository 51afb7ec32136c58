# SPDX-License-Identifier: Apache-2.0
"""Simulated machines: profiles with the labels real ones carry, and what can happen to them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flexinfer.envtest.behaviour import NOT_READY
from flexinfer.envtest.eventually import eventually_sync
from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.envtest.admin import Admin
    from flexinfer.meta.envelope import Tree

__all__ = ["DEFAULT_ZONE", "PROFILES", "Nodes", "Profile"]

_NODES = "/api/v1/nodes"
_PODS = "/api/v1/pods"
DEFAULT_ZONE = "zone-a"
_REGION = "region-1"
_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of machine: what it has, and the labels that its vendor's software puts on it."""

    cpu: str
    memory: str
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: Mapping[str, int] = field(default_factory=dict)

    @property
    def resources(self) -> dict[str, str]:
        """Return the node's capacity."""
        gpus = {name: str(count) for name, count in self.gpus.items()}
        return {"cpu": self.cpu, "memory": self.memory, "pods": "110", **gpus}


def _nvidia(product: str, *, memory: int, family: str, compute: tuple[int, int]) -> Profile:
    """Label as NVIDIA's GPU feature discovery does; *memory* is a GPU's, in MiB."""
    labels = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.family": family,
        "nvidia.com/gpu.memory": str(memory),
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.compute.major": str(compute[0]),
        "nvidia.com/gpu.compute.minor": str(compute[1]),
        "nvidia.com/mig.capable": "true",
    }
    return Profile("128", "1Ti", labels, {"nvidia.com/gpu": 8})


PROFILES: Mapping[str, Profile] = {
    "nvidia-h100": _nvidia("NVIDIA-H100-80GB-HBM3", memory=81559, family="hopper", compute=(9, 0)),
    "nvidia-a100": _nvidia("NVIDIA-A100-SXM4-80GB", memory=81920, family="ampere", compute=(8, 0)),
    # Labels of AMD's node labeller, and of the device plugin's architecture label.
    "amd-mi300": Profile(
        "128",
        "1Ti",
        {
            "amd.com/gpu.family": "AI",
            "amd.com/gpu.device-id": "74a1",
            "amd.com/gpu.vram": "192G",
            "amd.com/gpu.cu-count": "304",
            "amd.com/gpu.simd-count": "1216",
            "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
            "gpu.amd.com/gpu-architecture": "gfx942",
            "gpu.amd.com/model": "MI300X",
        },
        {"amd.com/gpu": 8},
    ),
    "cpu": Profile("32", "128Gi"),
}


class Nodes:
    """The machines of one control plane."""

    def __init__(self, admin: Admin, *, simulated: bool) -> None:
        self._admin = admin
        self._simulated = simulated

    def add(
        self,
        profile: str,
        name: str | None = None,
        *,
        zone: str = DEFAULT_ZONE,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Add a machine and return its name once it is Ready and pods may be scheduled on it.

        *labels* come on top of the profile's. Without kwok nobody makes it Ready, and this does
        not wait.
        """
        if profile not in PROFILES:
            raise ConfigurationError(
                f"profile {profile!r} is unknown: use one of {', '.join(PROFILES)}"
            )
        name = name or f"{profile}-{secrets.token_hex(3)}"
        self._admin.create(_NODES, _body(PROFILES[profile], name, zone, labels or {}))
        if self._simulated:
            self._wait(name, ready="True")
        return name

    def cordon(self, name: str) -> None:
        """Keep new pods away."""
        self._admin.merge(f"{_NODES}/{name}", {"spec": {"unschedulable": True}})

    def uncordon(self, name: str) -> None:
        """Let new pods come again."""
        self._admin.merge(f"{_NODES}/{name}", {"spec": {"unschedulable": None}})

    def make_not_ready(self, name: str) -> None:
        """Make its kubelet report Ready=False, until `make_ready`; return when it has."""
        self._label(name, "true")
        self._wait(name, ready="False")

    def make_ready(self, name: str) -> None:
        """Make its kubelet report Ready=True again; return when it has."""
        self._label(name, None)
        self._wait(name, ready="True")

    def remove(self, name: str) -> None:
        """Take the machine away with its pods, as a cloud provider does."""
        pods = self._pods(name)
        self._admin.delete(f"{_NODES}/{name}")
        for pod in pods:
            self._admin.delete(_path(pod), {"gracePeriodSeconds": 0})

    def _pods(self, name: str) -> list[Tree]:
        found: list[Tree] = self._admin.get(_PODS, fieldSelector=f"spec.nodeName={name}")["items"]
        return found

    def _label(self, name: str, value: str | None) -> None:
        self._admin.merge(f"{_NODES}/{name}", {"metadata": {"labels": {NOT_READY: value}}})

    def _wait(self, name: str, *, ready: str) -> None:
        def is_so() -> bool:
            node = self._admin.get(f"{_NODES}/{name}")
            conditions = node.get("status", {}).get("conditions", [])
            return any(
                condition["type"] == "Ready" and condition["status"] == ready
                for condition in conditions
            )

        eventually_sync(is_so, within=_WITHIN, every=0.025)


def _path(pod: Tree) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


def _body(profile: Profile, name: str, zone: str, labels: Mapping[str, str]) -> Tree:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/region": _REGION,
                "topology.kubernetes.io/zone": zone,
                **profile.labels,
                **labels,
            },
        },
        "status": {
            "capacity": profile.resources,
            "allocatable": profile.resources,
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "osImage": "simulated",
                "kernelVersion": "",
                "containerRuntimeVersion": "kwok://",
                "kubeletVersion": "kwok",
                "kubeProxyVersion": "",
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
            },
        },
    }
