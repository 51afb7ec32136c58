# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's server: one GGUF file, on GPUs or on CPUs.

The images' entry point is the server, so only arguments are given. A file of an `HF://` source
that nobody fetched is downloaded by the server itself, into the model volume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.backend import MODELS_PATH, Backend, Launch, Weights
from internal.backends.config import Key, Kind, arguments, literal
from internal.backends.image import ImageRule
from internal.backends.paths import (
    is_file,
    relative_path_problem,
    weights_directory,
    weights_path,
)
from internal.backends.probe import Probe
from internal.backends.rocm import runtime_variables
from internal.backends.source import Scheme
from internal.gpu.accelerator import Vendor
from internal.gpu.architecture import GFX110, GFX906, MAXWELL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PORT = 8080
_ALL_LAYERS = 999  # more than any model has: everything goes to the GPU
_SUFFIX = ".gguf"

_KEYS = (
    Key(name="contextSize", kind=Kind.INTEGER, flag="--ctx-size"),
    Key(name="batchSize", kind=Kind.INTEGER, flag="--batch-size"),
    Key(name="ubatchSize", kind=Kind.INTEGER, flag="--ubatch-size"),
    Key(name="threads", kind=Kind.INTEGER, flag="--threads"),
    Key(name="parallel", kind=Kind.INTEGER, flag="--parallel"),
    Key(name="flashAttention", kind=Kind.BOOLEAN, flag="--flash-attn", valued=True),
    Key(name="chatTemplate", kind=Kind.STRING, flag="--chat-template"),
    Key(name="jinja", kind=Kind.BOOLEAN, flag="--jinja"),
    Key(name="device", kind=Kind.STRING, flag="--device"),
    Key(name="cacheTypeK", kind=Kind.STRING, flag="--cache-type-k"),
    Key(name="cacheTypeV", kind=Kind.STRING, flag="--cache-type-v"),
    Key(name="reasoningFormat", kind=Kind.STRING, flag="--reasoning-format"),
    Key(name="reasoningBudget", kind=Kind.INTEGER, flag="--reasoning-budget"),
    Key(name="embedding", kind=Kind.BOOLEAN, flag="--embedding"),
    Key(name="metrics", kind=Kind.BOOLEAN, flag="--metrics"),
    Key(name="fitOff", kind=Kind.BOOLEAN),
    Key(name="nGPULayers", kind=Kind.INTEGER),
    Key(name="mmproj", kind=Kind.STRING),
    Key(name="ggufFile", kind=Kind.STRING),
    Key(name="modelFile", kind=Kind.STRING),
)


def _file(config: Mapping[str, object]) -> str:
    return str(config.get("ggufFile") or config.get("modelFile") or "")


def _arguments(launch: Launch) -> Sequence[str]:
    on_cpu = launch.accelerator.vendor is Vendor.CPU
    layers = 0 if on_cpu else launch.config.get("nGPULayers", _ALL_LAYERS)
    return [
        *_model(launch),
        *("--host", "0.0.0.0", "--port", str(_PORT)),  # noqa: S104 - a pod serves its network
        *("--alias", literal(launch.name)),
        *("--n-gpu-layers", str(layers)),
        *(("--fit", "off") if launch.config.get("fitOff") is True else ()),
        *_projector(launch),
        *arguments(_KEYS, launch.config),
    ]


def _model(launch: Launch) -> Sequence[str]:
    file = _file(launch.config)
    root = weights_path(launch)
    if not root:
        return ("--hf-repo", launch.source.reference, "--hf-file", literal(file))
    return ("--model", literal(root if is_file(root) else weights_path(launch, file)))


def _projector(launch: Launch) -> Sequence[str]:
    file = str(launch.config.get("mmproj") or "")
    if not file:
        return ()
    if directory := weights_directory(launch):
        return ("--mmproj", literal(f"{directory}/{file}"))
    repository = f"https://huggingface.co/{launch.source.reference}"
    return ("--mmproj-url", literal(f"{repository}/resolve/main/{file}"))


def _source_files(config: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(filter(None, (_file(config), str(config.get("mmproj") or ""))))


def _variables(_launch: Launch) -> Mapping[str, str]:
    return {"LLAMA_CACHE": f"{MODELS_PATH}/.cache/llama.cpp"}


def _check(weights: Weights) -> Sequence[str]:
    source, config = weights.source, weights.config
    file = _file(config)
    if not (file or source.reference).endswith(_SUFFIX):
        problem = (
            "backend llamacpp serves one GGUF file: set spec.config.ggufFile to a file of the "
            f"source whose name ends in {_SUFFIX}"
        )
        return (problem,)
    if source.scheme is Scheme.HUGGING_FACE and not file:
        return ("an HF:// source names a repository: set spec.config.ggufFile to one of its files",)
    return tuple(
        problem
        for key in ("ggufFile", "modelFile", "mmproj")
        for problem in relative_path_problem(config, key)
    )


LLAMACPP = Backend(
    name="llamacpp",
    aliases=("llama.cpp", "llama-cpp", "llama_cpp"),
    port=_PORT,
    readiness=Probe(path="/health"),
    startup_seconds=60,
    vendors=frozenset(Vendor),
    schemes=frozenset({Scheme.HUGGING_FACE, Scheme.FILE, Scheme.PVC}),
    images=(
        ImageRule(
            variable="DEFAULT_LLAMA_CPP_IMAGE_GFX1100", vendor=Vendor.AMD, architecture=GFX110
        ),
        ImageRule(
            variable="DEFAULT_LLAMA_CPP_IMAGE_GFX906", vendor=Vendor.AMD, architecture=GFX906
        ),
        ImageRule(
            variable="DEFAULT_LLAMA_CPP_IMAGE_MAXWELL", vendor=Vendor.NVIDIA, architecture=MAXWELL
        ),
        ImageRule(
            variable="DEFAULT_LLAMA_CPP_IMAGE_AMD",
            image="ghcr.io/ggml-org/llama.cpp:server-rocm",
            vendor=Vendor.AMD,
        ),
        ImageRule(
            variable="DEFAULT_LLAMA_CPP_IMAGE_CPU",
            image="ghcr.io/ggml-org/llama.cpp:server",
            vendor=Vendor.CPU,
        ),
        ImageRule(
            variable="DEFAULT_LLAMA_CPP_IMAGE", image="ghcr.io/ggml-org/llama.cpp:server-cuda"
        ),
    ),
    keys=_KEYS,
    arguments=_arguments,
    variables=_variables,
    rocm=runtime_variables,
    check=_check,
    source_files=_source_files,
)
