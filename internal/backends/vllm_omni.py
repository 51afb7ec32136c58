# SPDX-License-Identifier: Apache-2.0
"""vLLM-Omni: vLLM for models that make images, sound and text.

It is vLLM's own command with `--omni`, which vLLM's plain images do not know. How a model is
spread over GPUs is part of its stages, so nothing is said about it unless the config does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.backend import IMAGE_IDLE_SECONDS, Backend, Launch, Weights
from internal.backends.config import Key, Kind, arguments, literal
from internal.backends.image import ImageRule
from internal.backends.paths import climbing_problem, resolve
from internal.backends.probe import Probe
from internal.backends.source import Scheme
from internal.backends.support import Support
from internal.backends.vllm import COMMAND, PORT, serve, variables
from internal.gpu.accelerator import Vendor
from internal.gpu.architecture import GFX110, MAXWELL

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEYS = (
    Key(name="dtype", kind=Kind.STRING, flag="--dtype"),
    Key(name="maxModelLen", kind=Kind.INTEGER, flag="--max-model-len"),
    Key(name="gpuMemoryUtilization", kind=Kind.DECIMAL, flag="--gpu-memory-utilization"),
    Key(name="trustRemoteCode", kind=Kind.BOOLEAN, flag="--trust-remote-code"),
    Key(name="enforceEager", kind=Kind.BOOLEAN, flag="--enforce-eager"),
    Key(name="quantization", kind=Kind.STRING, flag="--quantization"),
    Key(name="tensorParallelSize", kind=Kind.INTEGER, flag="--tensor-parallel-size"),
    Key(name="disableLogStats", kind=Kind.BOOLEAN, flag="--disable-log-stats"),
    Key(name="deployConfig", kind=Kind.STRING),
    Key(name="servedModelName", kind=Kind.STRING),
)


def _arguments(launch: Launch) -> Sequence[str]:
    return [*serve(launch), "--omni", *_stages(launch), *arguments(_KEYS, launch.config)]


def _stages(launch: Launch) -> Sequence[str]:
    file = str(launch.config.get("deployConfig") or "")
    return ("--deploy-config", literal(resolve(launch, file))) if file else ()


def _check(weights: Weights) -> Sequence[str]:
    file = str(weights.config.get("deployConfig") or "")
    if file and weights.is_remote and not file.startswith("/"):
        problem = (
            "spec.config.deployConfig names a file of a source that nobody fetched; give the "
            "absolute path of a file in the image, or set spec.cache.strategy to SharedPVC"
        )
        return (problem,)
    return climbing_problem(weights.config, "deployConfig")


VLLM_OMNI = Backend(
    name="vllm-omni",
    aliases=("vllm-diffusion", "vllm_omni"),
    port=PORT,
    readiness=Probe(path="/health", period_seconds=5, timeout_seconds=3),
    startup_seconds=300,
    idle_seconds=IMAGE_IDLE_SECONDS,
    makes_images=True,
    architectures={MAXWELL: Support.NONE},
    schemes=frozenset({Scheme.HUGGING_FACE, Scheme.FILE, Scheme.PVC}),
    images=(
        ImageRule(
            variable="DEFAULT_VLLM_OMNI_IMAGE_GFX1100", vendor=Vendor.AMD, architecture=GFX110
        ),
        ImageRule(variable="DEFAULT_VLLM_OMNI_IMAGE_AMD", vendor=Vendor.AMD, is_last=True),
        ImageRule(variable="DEFAULT_VLLM_OMNI_IMAGE", image="vllm/vllm-omni:latest"),
    ),
    keys=_KEYS,
    command=COMMAND,
    arguments=_arguments,
    variables=variables,
    check=_check,
)
