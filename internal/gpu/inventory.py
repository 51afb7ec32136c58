# SPDX-License-Identifier: Apache-2.0
"""What one node offers: GPUs it can give to pods, their architecture, product and memory.

Memory is what the vendor's label says, else our own label, else what cards of the architecture
usually have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError
from flexinfer.meta.quantity import Quantity
from internal.gpu.accelerator import Vendor
from internal.gpu.architecture import usual_memory_mb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.kinds.node import Node

# Labels of NVIDIA's GPU feature discovery and of AMD's node labeller; the last two are for nodes
# that neither of them has labelled.
NVIDIA_MAJOR = "nvidia.com/gpu.compute.major"
NVIDIA_MINOR = "nvidia.com/gpu.compute.minor"
NVIDIA_PRODUCT = "nvidia.com/gpu.product"
NVIDIA_MEMORY = "nvidia.com/gpu.memory"
AMD_ARCHITECTURE = "gpu.amd.com/gpu-architecture"
AMD_MODEL = "gpu.amd.com/model"
OWN_ARCHITECTURE = "flexinfer.ai/gpu.arch"
OWN_MEMORY = "flexinfer.ai/gpu.vram"  # of one GPU, as a quantity: 24Gi

# AMD's labeller writes `amd.com/gpu.vram=24G` when all GPUs are alike, and one
# `amd.com/gpu.vram.24G=<count>` for each size; older ones put `beta.` in front. G is 1024 MB.
_AMD_MEMORY = re.compile(r"(?:beta\.)?amd\.com/gpu\.vram[.=]([1-9][0-9]{0,5})G", re.ASCII)

_MEMORY_DIGITS = 9  # a petabyte, and within the 32 bits of the status

_AMD_FAMILIES = {
    "amd.com/gpu.family.GC_11_0_0": "gfx1100",
    "amd.com/gpu.family.GC_10_3_6": "gfx1036",
}
_AMD_MODELS = {"7900": "gfx1100"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUs:
    """Be the GPUs of one node; `memory_mb` is per GPU and None when no label tells."""

    vendor: Vendor
    count: int
    architecture: str = ""
    product: str = ""
    memory_mb: int | None = None


def gpus_of(node: Node) -> tuple[GPUs, ...]:
    """Return what the node can give to pods, one entry a vendor; none for a CPU node."""
    return tuple(
        _describe(vendor, count, node.metadata.labels)
        for vendor in (Vendor.NVIDIA, Vendor.AMD)
        if (count := _amount(node.status.allocatable.get(vendor.resource))) > 0
    )


def _amount(text: str | None) -> int:
    try:
        return int(Quantity.parse(text)) if text else 0
    except ConfigurationError:
        return 0  # a device plug-in that writes no quantity offers nothing that could be asked for


def _describe(vendor: Vendor, count: int, labels: Mapping[str, str]) -> GPUs:
    is_nvidia = vendor is Vendor.NVIDIA
    architecture = _nvidia_architecture(labels) if is_nvidia else _amd_architecture(labels)
    said = _megabytes(labels.get(NVIDIA_MEMORY, "")) if is_nvidia else _amd_memory(labels)
    return GPUs(
        vendor=vendor,
        count=count,
        architecture=architecture,
        product=labels.get(NVIDIA_PRODUCT if is_nvidia else AMD_MODEL, ""),
        memory_mb=said or _own_memory(labels) or usual_memory_mb(architecture),
    )


def _megabytes(label: str) -> int | None:
    """Read a label that anybody may have written: what no GPU has counts as unknown."""
    is_amount = label.isascii() and label.isdecimal() and len(label) <= _MEMORY_DIGITS
    return int(label) if is_amount else None


def _amd_memory(labels: Mapping[str, str]) -> int | None:
    """Return the memory of the smallest GPU of the node: a pod may get any of them."""
    pairs = (f"{key}={value}" for key, value in labels.items())
    sizes = [int(found[1]) for pair in pairs if (found := _AMD_MEMORY.match(pair))]
    return min(sizes) * 1024 if sizes else None


def _own_memory(labels: Mapping[str, str]) -> int | None:
    amount = _amount(labels.get(OWN_MEMORY)) // 2**20
    return amount if 0 < amount < 10**_MEMORY_DIGITS else None


def _nvidia_architecture(labels: Mapping[str, str]) -> str:
    """Join major and minor (8 and 9 give `sm_89`); without both our own label decides."""
    major, minor = labels.get(NVIDIA_MAJOR, ""), labels.get(NVIDIA_MINOR, "")
    return f"sm_{major}{minor}" if major and minor else labels.get(OWN_ARCHITECTURE, "")


def _amd_architecture(labels: Mapping[str, str]) -> str:
    if named := labels.get(AMD_ARCHITECTURE) or labels.get(OWN_ARCHITECTURE):
        return named
    family = next((arch for label, arch in _AMD_FAMILIES.items() if label in labels), "")
    model = labels.get(AMD_MODEL, "")
    return family or next((arch for part, arch in _AMD_MODELS.items() if part in model), "")
