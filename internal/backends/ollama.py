# SPDX-License-Identifier: Apache-2.0
"""Ollama: pulls a model on its first request.

The model's name is not part of the command line: a client asks for it by that name. Pulled
models go to the model volume, so that a restarted container does not pull again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.backend import MODELS_PATH, Backend, Launch
from internal.backends.image import ImageRule
from internal.backends.paths import weights_path
from internal.backends.probe import Probe
from internal.backends.rocm import runtime_variables
from internal.backends.source import Scheme
from internal.gpu.accelerator import Vendor
from internal.gpu.architecture import GFX110, GFX906, MAXWELL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PORT = 11434


def _arguments(_launch: Launch) -> Sequence[str]:
    return ["serve"]


def _variables(launch: Launch) -> Mapping[str, str]:
    is_claim = launch.source.scheme is Scheme.PVC
    return {
        "OLLAMA_HOST": f"0.0.0.0:{_PORT}",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_MODELS": weights_path(launch) if is_claim else MODELS_PATH,
    }


OLLAMA = Backend(
    name="ollama",
    port=_PORT,
    readiness=Probe(path="/"),
    startup_seconds=60,
    needs_volume=False,
    schemes=frozenset({Scheme.OLLAMA, Scheme.HUGGING_FACE, Scheme.PVC}),
    images=(
        ImageRule(variable="DEFAULT_OLLAMA_IMAGE_GFX1100", vendor=Vendor.AMD, architecture=GFX110),
        ImageRule(variable="DEFAULT_OLLAMA_IMAGE_GFX906", vendor=Vendor.AMD, architecture=GFX906),
        ImageRule(
            variable="DEFAULT_BACKEND_IMAGE_AMD", image="ollama/ollama:rocm", vendor=Vendor.AMD
        ),
        ImageRule(
            variable="DEFAULT_BACKEND_IMAGE_MAXWELL", vendor=Vendor.NVIDIA, architecture=MAXWELL
        ),
        ImageRule(variable="DEFAULT_BACKEND_IMAGE_NVIDIA", vendor=Vendor.NVIDIA),
        ImageRule(variable="DEFAULT_BACKEND_IMAGE", image="ollama/ollama:latest"),
    ),
    arguments=_arguments,
    variables=_variables,
    rocm=runtime_variables,
)
