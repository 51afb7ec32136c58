# SPDX-License-Identifier: Apache-2.0
"""MLC-LLM: a server for models that were compiled for their hardware.

The server compiles the library of a model when it has none, which `jitPolicy` READONLY forbids.
Compilers no longer build for Maxwell GPUs, so there a library has to be brought along: the one
that `modelLibPath` names, else `maxwell-lib.so` beside the weights. How much memory a GPU has
the server asks its driver, unless `gpuMemoryBytes` says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.backend import MODELS_PATH, Backend, Launch, Weights
from internal.backends.config import Key, Kind, literal, variables
from internal.backends.image import ImageRule
from internal.backends.maxwell import is_maxwell, meets_only_maxwell
from internal.backends.paths import climbing_problem, resolve, weights_directory, weights_path
from internal.backends.probe import Probe
from internal.backends.source import Scheme
from internal.backends.support import Support
from internal.gpu.accelerator import Vendor
from internal.gpu.architecture import GFX110, GFX906, MAXWELL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PORT = 8000
_MAXWELL_LIBRARY = "maxwell-lib.so"
# How the server divides the memory between requests; `serve` was once its name for server.
_MODES = {"server": "server", "serve": "server", "local": "local", "interactive": "interactive"}
_JIT_POLICIES = ("ON", "OFF", "REDO", "READONLY")

_KEYS = (
    Key(name="mode", kind=Kind.STRING),
    Key(name="modelLibPath", kind=Kind.STRING),
    Key(name="jitPolicy", kind=Kind.STRING, variable="MLC_JIT_POLICY"),
    Key(name="gpuMemoryBytes", kind=Kind.INTEGER, variable="MLC_GPU_SIZE_BYTES"),
)

# Each goes into --overrides, as name=value, and not into a flag of its own.
_OVERRIDES = {
    "maxNumSequence": "max_num_sequence",
    "maxTotalSeqLength": "max_total_seq_length",
    "prefillChunkSize": "prefill_chunk_size",
    "gpuMemoryUtilization": "gpu_memory_utilization",
    "contextWindowSize": "context_window_size",
    "slidingWindowSize": "sliding_window_size",
    "attentionSinkSize": "attention_sink_size",
    "tensorParallelShards": "tensor_parallel_shards",
}
_OVERRIDE_KEYS = tuple(
    Key(name=name, kind=Kind.DECIMAL if name == "gpuMemoryUtilization" else Kind.INTEGER)
    for name in _OVERRIDES
)


def _arguments(launch: Launch) -> Sequence[str]:
    model = weights_path(launch) or str(launch.source)
    return [
        "serve",
        literal(model),
        *("--host", "0.0.0.0", "--port", str(_PORT)),  # noqa: S104 - a pod serves its network
        *("--mode", _MODES[str(launch.config.get("mode", "server"))]),
        *_library(launch),
        *_overrides(launch),
    ]


def _library(launch: Launch) -> Sequence[str]:
    path = str(launch.config.get("modelLibPath") or "")
    if not path and is_maxwell(launch.accelerator):
        path = _MAXWELL_LIBRARY
    return ("--model-lib", literal(resolve(launch, path))) if path else ()


def _overrides(launch: Launch) -> Sequence[str]:
    """Spread the model over all GPUs of the pod unless the config says how."""
    values = {
        _OVERRIDES[key.name]: key.text(launch.config[key.name])
        for key in _OVERRIDE_KEYS
        if key.name in launch.config
    }
    if launch.accelerator.count > 1:
        values.setdefault("tensor_parallel_shards", str(launch.accelerator.count))
    pairs = ";".join(f"{name}={value}" for name, value in values.items())
    return ("--overrides", pairs) if pairs else ()


def _variables(launch: Launch) -> Mapping[str, str]:
    policy = {"MLC_JIT_POLICY": "READONLY"} if is_maxwell(launch.accelerator) else {}
    home = {"MLC_LLM_HOME": f"{MODELS_PATH}/.cache/mlc_llm"}
    return {**home, **policy, **variables(_KEYS, launch.config)}


def _check(weights: Weights) -> Sequence[str]:
    config = weights.config
    library = str(config.get("modelLibPath") or "/")
    if weights.is_remote and not library.startswith("/"):
        problem = (
            "spec.config.modelLibPath names a file of a source that nobody fetched; give the "
            "absolute path of a file in the image, or set spec.cache.strategy to SharedPVC"
        )
        return (problem,)
    return (
        *_choice_problem(config, "mode", tuple(_MODES)),
        *_choice_problem(config, "jitPolicy", _JIT_POLICIES),
        *climbing_problem(config, "modelLibPath"),
    )


def _choice_problem(
    config: Mapping[str, object], key: str, choices: Sequence[str]
) -> tuple[str, ...]:
    value = config.get(key, choices[0])
    if value in choices:
        return ()
    return (f"spec.config.{key} must be one of {', '.join(choices)}, not {str(value)[:80]!r}",)


def _obstacle(launch: Launch) -> str:
    is_mounted = f"{weights_directory(launch)}/".startswith(f"{MODELS_PATH}/")
    if (
        launch.config.get("modelLibPath")
        or is_mounted
        or not meets_only_maxwell(launch.accelerator)
    ):
        return ""
    return (
        "backend mlc-llm cannot compile a model for Maxwell GPUs: set spec.config.modelLibPath "
        f"to a library built for them, or use weights under {MODELS_PATH}/ that hold one as "
        f"{_MAXWELL_LIBRARY}"
    )


MLC_LLM = Backend(
    name="mlc-llm",
    aliases=("mlc", "mlc_llm", "mlc-llm-chat"),
    port=_PORT,
    readiness=Probe(path="/v1/models"),
    startup_seconds=90,
    architectures={GFX906: Support.EXPERIMENTAL},
    schemes=frozenset({Scheme.HUGGING_FACE, Scheme.FILE, Scheme.PVC}),
    images=(
        ImageRule(variable="DEFAULT_MLC_LLM_IMAGE_GFX1100", vendor=Vendor.AMD, architecture=GFX110),
        ImageRule(variable="DEFAULT_MLC_LLM_IMAGE_GFX906", vendor=Vendor.AMD, architecture=GFX906),
        ImageRule(
            variable="DEFAULT_MLC_LLM_IMAGE_AMD",
            image="ghcr.io/mlc-ai/mlc-llm:rocm",
            vendor=Vendor.AMD,
        ),
        ImageRule(
            variable="DEFAULT_MLC_LLM_IMAGE_MAXWELL",
            vendor=Vendor.NVIDIA,
            architecture=MAXWELL,
            is_last=True,
        ),
        ImageRule(variable="DEFAULT_MLC_LLM_IMAGE", image="ghcr.io/mlc-ai/mlc-llm:cuda"),
    ),
    keys=(*_KEYS, *_OVERRIDE_KEYS),
    command=("python", "-m", "mlc_llm"),
    arguments=_arguments,
    variables=_variables,
    check=_check,
    obstacle=_obstacle,
)
