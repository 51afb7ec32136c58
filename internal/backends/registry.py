# SPDX-License-Identifier: Apache-2.0
"""Finding a backend by the name or alias that a Model gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.comfyui import COMFYUI
from internal.backends.diffusers import DIFFUSERS
from internal.backends.llamacpp import LLAMACPP
from internal.backends.mlc_llm import MLC_LLM
from internal.backends.ollama import OLLAMA
from internal.backends.vllm import VLLM
from internal.backends.vllm_omni import VLLM_OMNI

if TYPE_CHECKING:
    from internal.backends.backend import Backend

BACKENDS: tuple[Backend, ...] = (
    COMFYUI,
    DIFFUSERS,
    LLAMACPP,
    MLC_LLM,
    OLLAMA,
    VLLM,
    VLLM_OMNI,
)

_BY_NAME = {name: backend for backend in BACKENDS for name in (backend.name, *backend.aliases)}


def find_backend(name: str) -> Backend | None:
    """Return the backend of that name or alias, in any case of letters, or None."""
    return _BY_NAME.get(name.strip().lower())


def known_backends() -> str:
    """Return the names to choose from, for messages."""
    return ", ".join(sorted(backend.name for backend in BACKENDS))
