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
class Accelerator:
    """Be the hardware that was chosen: vendor, GPUs per pod, and architecture when it is known.

    `architecture` is `sm_89` or `gfx1100`, and empty for CPUs and when the nodes differ.
    """

    vendor: Vendor
    count: int = 0
    architecture: str = ""


CPU = Accelerator(vendor=Vendor.CPU)
