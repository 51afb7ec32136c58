# SPDX-License-Identifier: Apache-2.0
"""What Maxwell GPUs lack: arithmetic in half precision, and compilers that still build for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from internal.gpu.accelerator import Accelerator, Vendor
from internal.gpu.architecture import MAXWELL

if TYPE_CHECKING:
    from collections.abc import Iterable

_HALF = re.compile(r"fp?16", re.IGNORECASE)


def is_maxwell(accelerator: Accelerator) -> bool:
    """Tell whether the architecture that was chosen is Maxwell's."""
    return _is_nvidia(accelerator) and accelerator.architecture.startswith(MAXWELL)


def meets_only_maxwell(accelerator: Accelerator) -> bool:
    """Tell whether a pod can get nothing but Maxwell GPUs."""
    return _is_nvidia(accelerator) and all(
        architecture.startswith(MAXWELL) for architecture in accelerator.architectures
    )


def half_precision_problem(accelerator: Accelerator, names: Iterable[str]) -> str:
    """Refuse weights whose *names*, of source and files, say 16-bit floats; else say nothing."""
    if not meets_only_maxwell(accelerator):
        return ""
    named = next((name for name in names if _HALF.search(name)), "")
    if not named:
        return ""
    listed = ", ".join(accelerator.architectures)
    return (
        f"Maxwell GPUs ({listed}) cannot compute in FP16, which {named!r} says its weights need; "
        "use a source of 32-bit or integer quantization, such as q4f32 or Q4_0, or nodes with "
        "newer GPUs"
    )


def _is_nvidia(accelerator: Accelerator) -> bool:
    return accelerator.vendor is Vendor.NVIDIA
