# SPDX-License-Identifier: Apache-2.0
"""What ROCm has to be told about an AMD architecture, in environment variables.

The runtime's own variables concern every server on AMD GPUs; those of PyTorch only servers that
are built on it. Architectures that AMD's builds know need nothing but their name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.gpu.architecture import GFX110, GFX906, by_prefix

if TYPE_CHECKING:
    from collections.abc import Mapping

_RUNTIME = {
    # Most builds hold code for gfx1100 only, which the whole family can run.
    GFX110: {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"},
    # Its copy engines and shared virtual memory hang under load.
    GFX906: {
        "HSA_OVERRIDE_GFX_VERSION": "9.0.6",
        "HSA_ENABLE_SDMA": "0",
        "HSA_USE_SVM": "0",
    },
}
_TORCH = {
    GFX110: {
        "PYTORCH_ROCM_ARCH": "gfx1100",
        "PYTORCH_TUNABLEOP_ENABLED": "1",
        "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL": "1",
    },
}


def runtime_variables(architecture: str) -> Mapping[str, str]:
    """Return what ROCm's runtime needs; nothing for an unknown or empty architecture."""
    return by_prefix(_RUNTIME, architecture) or {}


def torch_variables(architecture: str) -> Mapping[str, str]:
    """Return what ROCm's runtime and PyTorch need; nothing for an empty architecture."""
    if not architecture:
        return {}
    torch = by_prefix(_TORCH, architecture) or {"PYTORCH_ROCM_ARCH": architecture}
    return {**runtime_variables(architecture), **torch}
