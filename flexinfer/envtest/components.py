# SPDX-License-Identifier: Apache-2.0
"""What the control plane consists of, and which Go module each binary is built from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "modules"
KUBERNETES_VERSION = "v1.37.2"
_MAJOR, _MINOR, _PATCH = KUBERNETES_VERSION.removeprefix("v").split(".")
_VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class GoModule:
    """A module folder of the package data, and the main packages to build of it.

    `packages` maps the binary's name to its package; `stamps` are linker assignments, for
    binaries that learn their version only at link time.
    """

    folder: str
    packages: dict[str, str]
    stamps: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """Return the folder that holds go.mod and go.sum."""
        return MODULES / self.folder

    @property
    def ldflags(self) -> str:
        """Return the linker's flags: no symbol tables, and the version stamps."""
        return " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in self.stamps)])


KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")

GO_MODULES = (
    GoModule("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    GoModule(
        "kubernetes",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES},
        (
            f"{_VERSION_PACKAGE}.gitVersion={KUBERNETES_VERSION}",
            f"{_VERSION_PACKAGE}.gitMajor={_MAJOR}",
            f"{_VERSION_PACKAGE}.gitMinor={_MINOR}",
        ),
    ),
    GoModule("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
)

COMPONENTS = tuple(name for module in GO_MODULES for name in module.packages)
