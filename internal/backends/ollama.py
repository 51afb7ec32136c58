# SPDX-License-Identifier: Apache-2.0
"""Ollama: pulls a model on its first request.

The model's name is not part of the command line: a client asks for it by that name. Pulled
models go to the model volume, so that a restarted container does not pull again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.backend import MODELS_PATH, Backend, Launch, model_path
from internal.backends.image import ImageRule
from internal.backends.source import Scheme
from internal.gpu.accelerator import Vendor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PORT = 11434


def _arguments(_launch: Launch) -> Sequence[str]:
    return ["serve"]


def _environment(launch: Launch) -> Mapping[str, str]:
    is_claim = launch.source.scheme is Scheme.PVC
    return {
        "OLLAMA_HOST": f"0.0.0.0:{_PORT}",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_MODELS": model_path(launch.source) if is_claim else MODELS_PATH,
    }


OLLAMA = Backend(
    name="ollama",
    port=_PORT,
    health_path="/",
    startup_seconds=60,
    vendors=frozenset({Vendor.NVIDIA, Vendor.AMD}),
    schemes=frozenset({Scheme.OLLAMA, Scheme.HUGGING_FACE, Scheme.PVC}),
    images=(
        ImageRule(
            variable="DEFAULT_OLLAMA_IMAGE_GFX1100", vendor=Vendor.AMD, architecture="gfx1100"
        ),
        ImageRule(variable="DEFAULT_OLLAMA_IMAGE_GFX906", vendor=Vendor.AMD, architecture="gfx906"),
        ImageRule(
            variable="DEFAULT_BACKEND_IMAGE_AMD", image="ollama/ollama:rocm", vendor=Vendor.AMD
        ),
        ImageRule(
            variable="DEFAULT_BACKEND_IMAGE_MAXWELL", vendor=Vendor.NVIDIA, architecture="sm_5"
        ),
        ImageRule(variable="DEFAULT_BACKEND_IMAGE_NVIDIA", vendor=Vendor.NVIDIA),
        ImageRule(variable="DEFAULT_BACKEND_IMAGE", image="ollama/ollama:latest"),
    ),
    arguments=_arguments,
    environment=_environment,
)
