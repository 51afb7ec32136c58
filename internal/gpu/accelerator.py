# SPDX-License-Identifier: Apache-2.0
"""What a Model's pods compute on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Vendor(StrEnum):
    """Name who made the GPUs; CPU when there are none."""

    NVIDIA = "nvidia"
    AMD = "amd"
    CPU = "cpu"

    @property
    def resource(self) -> str:
        """Return the extended resource that the vendor's device plug-in announces."""
        return _RESOURCES[self]

    @property
    def display_name(self) -> str:
        """Return the spelling that status and node labels use."""
        return self.value.upper()


_RESOURCES = {Vendor.NVIDIA: "nvidia.com/gpu", Vendor.AMD: "amd.com/gpu", Vendor.CPU: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Be what one node that would do has: architecture, and memory in MB per GPU if known."""

    architecture: str = ""
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Be the hardware that was chosen: vendor, GPUs per pod, and architecture when it is known.

    `architecture` is `sm_89` or `gfx1100`, and empty for CPUs and when the nodes differ.
    `memory_mb` is per GPU, the largest among the nodes that would do; None when none tells.
    `offers` has one entry a node that would do, and may be empty when nobody looked at nodes.
    What pods are made of depends on vendor, count and architecture alone, so that other nodes
    do not change it.
    """

    vendor: Vendor
    count: int = 0
    architecture: str = ""
    memory_mb: int | None = None
    offers: tuple[Offer, ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        """Return the architectures that a pod may meet, sorted; an unknown one is empty."""
        found = {offer.architecture for offer in self.offers} or {self.architecture}
        return tuple(sorted(found))


CPU = Accelerator(vendor=Vendor.CPU)
