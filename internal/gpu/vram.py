# SPDX-License-Identifier: Apache-2.0
"""Does a replica fit into the memory of its GPUs? Pure.

The estimate is for the whole replica, so it is held against the memory of all its GPUs together.
Without an estimate, or when no node tells how much memory its GPUs have, there is nothing to
judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.reasons import Reason
from internal.gpu.caveat import Caveat, CaveatReason
from internal.gpu.detection import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from internal.gpu.accelerator import Accelerator

# Drivers, contexts and fragmentation take a share of the memory: above the first figure a server
# does not come up, above the second it fails under long prompts.
FULL_PERCENT, TIGHT_PERCENT = 95, 80


def fit(estimate_mb: int | None, accelerator: Accelerator) -> Refusal | tuple[Caveat, ...]:
    """Refuse an estimate that no node can hold; warn when it is tight, or too much for some."""
    largest = accelerator.memory_mb
    if estimate_mb is None or estimate_mb <= 0 or largest is None:
        return ()
    capacity = largest * accelerator.count
    memories = [offer.memory_mb for offer in accelerator.offers] or [largest]
    small = [m for m in memories if m and _exceeds(estimate_mb, m * accelerator.count)]
    if len(small) == len(memories):
        return Refusal(
            reason=Reason.VRAM_INSUFFICIENT, message=_too_much(estimate_mb, capacity, accelerator)
        )
    texts = []
    if _exceeds(estimate_mb, capacity, TIGHT_PERCENT) and not _exceeds(estimate_mb, capacity):
        texts.append(_tight(estimate_mb, capacity, accelerator))
    if small:
        texts.append(_some(estimate_mb, small, memories, accelerator))
    return (Caveat(CaveatReason.VRAM_PRESSURE, "; ".join(texts)),) if texts else ()


def _exceeds(estimate: int, capacity: int, percent: int = FULL_PERCENT) -> bool:
    return estimate * 100 > capacity * percent


def _too_much(estimate: int, capacity: int, accelerator: Accelerator) -> str:
    return (
        f"spec.gpu.vramEstimateMB {estimate} is more than {FULL_PERCENT} % of the {capacity} MB "
        f"that {_gpus(accelerator)} of the largest fitting node {_have(accelerator)}; raise "
        "spec.gpu.count, use nodes whose GPUs have more memory, or serve a smaller or quantized "
        "model and lower the estimate"
    )


def _tight(estimate: int, capacity: int, accelerator: Accelerator) -> str:
    return (
        f"spec.gpu.vramEstimateMB {estimate} is {estimate * 100 // capacity} % of the {capacity} "
        f"MB that {_gpus(accelerator)} {_have(accelerator)}: long prompts or many requests at "
        "once may exhaust it"
    )


def _some(
    estimate: int, small: Sequence[int], memories: Sequence[int | None], accelerator: Accelerator
) -> str:
    return (
        f"on {len(small)} of {len(memories)} fitting nodes {_gpus(accelerator)} "
        f"{_have(accelerator)} too little for spec.gpu.vramEstimateMB {estimate} (the least is "
        f"{min(small) * accelerator.count} MB): keep pods off them with spec.nodeSelector"
    )


def _gpus(accelerator: Accelerator) -> str:
    return "1 GPU" if accelerator.count == 1 else f"{accelerator.count} GPUs"


def _have(accelerator: Accelerator) -> str:
    return "has" if accelerator.count == 1 else "have"
