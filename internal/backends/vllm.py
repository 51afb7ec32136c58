# SPDX-License-Identifier: Apache-2.0
"""vLLM: the OpenAI-compatible server for GPUs.

The command is `vllm serve MODEL` in full, because the images differ in their entry point, and
because some releases refuse `--model` under `serve` while the older entry point needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.backend import Backend, Launch, model_path, relative_path_problem
from internal.backends.config import Key, Kind, arguments, literal
from internal.backends.image import ImageRule
from internal.backends.source import Scheme
from internal.gpu.accelerator import Vendor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from internal.backends.source import Source

_PORT = 8000

_KEYS = (
    Key(name="dtype", kind=Kind.STRING, flag="--dtype"),
    Key(name="maxModelLen", kind=Kind.INTEGER, flag="--max-model-len"),
    Key(name="gpuMemoryUtilization", kind=Kind.DECIMAL, flag="--gpu-memory-utilization"),
    Key(name="attentionBackend", kind=Kind.STRING, flag="--attention-backend"),
    Key(name="trustRemoteCode", kind=Kind.BOOLEAN, flag="--trust-remote-code"),
    Key(name="maxNumSeqs", kind=Kind.INTEGER, flag="--max-num-seqs"),
    Key(name="maxNumBatchedTokens", kind=Kind.INTEGER, flag="--max-num-batched-tokens"),
    Key(name="enforceEager", kind=Kind.BOOLEAN, flag="--enforce-eager"),
    Key(name="cpuOffloadGb", kind=Kind.DECIMAL, flag="--cpu-offload-gb"),
    Key(name="offloadBackend", kind=Kind.STRING, flag="--offload-backend"),
    Key(name="numGpuBlocksOverride", kind=Kind.INTEGER, flag="--num-gpu-blocks-override"),
    Key(name="quantization", kind=Kind.STRING, flag="--quantization"),
    Key(name="tokenizer", kind=Kind.STRING, flag="--tokenizer"),
    Key(name="kvCacheDtype", kind=Kind.STRING, flag="--kv-cache-dtype"),
    Key(
        name="enablePrefixCaching",
        kind=Kind.BOOLEAN,
        flag="--enable-prefix-caching",
        off="--no-enable-prefix-caching",
    ),
    Key(name="reasoningParser", kind=Kind.STRING, flag="--reasoning-parser"),
    Key(name="disableLogStats", kind=Kind.BOOLEAN, flag="--disable-log-stats"),
    Key(name="speculativeConfig", kind=Kind.OBJECT, flag="--speculative-config"),
    Key(name="limitMmPerPrompt", kind=Kind.OBJECT, flag="--limit-mm-per-prompt"),
    Key(name="mmProcessorKwargs", kind=Kind.OBJECT, flag="--mm-processor-kwargs"),
    Key(name="tensorParallelSize", kind=Kind.INTEGER, flag="--tensor-parallel-size"),
    Key(name="pipelineParallelSize", kind=Kind.INTEGER, flag="--pipeline-parallel-size"),
    Key(name="servedModelName", kind=Kind.STRING),
    Key(name="enableToolCalling", kind=Kind.BOOLEAN),
    Key(name="toolCallParser", kind=Kind.STRING),
    Key(name="ggufFile", kind=Kind.STRING),
)


def _arguments(launch: Launch) -> Sequence[str]:
    config, source = launch.config, launch.source
    file = str(config.get("ggufFile", ""))
    is_remote = source.scheme is Scheme.HUGGING_FACE
    model = source.reference if is_remote else model_path(source, file)
    names = [str(config.get("servedModelName", launch.name))]
    if is_remote and model not in names:
        names.append(model)
    return [
        literal(model),
        *("--host", "0.0.0.0", "--port", str(_PORT)),  # noqa: S104 - a pod serves its network
        *("--served-model-name", *(literal(name) for name in names)),
        *_parallelism(launch),
        *_tool_calling(config),
        *arguments(_KEYS, config),
    ]


def _parallelism(launch: Launch) -> Sequence[str]:
    """Spread the model over all GPUs of the pod unless the config says how."""
    said = {"tensorParallelSize", "pipelineParallelSize"} & set(launch.config)
    count = launch.accelerator.count
    return () if said or count <= 1 else ("--tensor-parallel-size", str(count))


def _tool_calling(config: Mapping[str, object]) -> Sequence[str]:
    if config.get("enableToolCalling") is not True:
        return ()
    parser = str(config.get("toolCallParser", "hermes"))
    return ("--enable-auto-tool-choice", "--tool-call-parser", literal(parser))


def _environment(launch: Launch) -> Mapping[str, str]:
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if launch.accelerator.vendor is Vendor.NVIDIA else {}


def _check(source: Source, config: Mapping[str, object]) -> Sequence[str]:
    if "ggufFile" in config and source.scheme is Scheme.HUGGING_FACE:
        problem = (
            "spec.config.ggufFile: vllm cannot pick one file of an HF:// source; "
            "use a pvc:// or file:// source, or backend llamacpp"
        )
        return (problem,)
    return relative_path_problem(config, "ggufFile")


VLLM = Backend(
    name="vllm",
    port=_PORT,
    health_path="/health",
    startup_seconds=300,
    vendors=frozenset({Vendor.NVIDIA, Vendor.AMD}),
    unsupported_architectures=("sm_5",),
    schemes=frozenset({Scheme.HUGGING_FACE, Scheme.FILE, Scheme.PVC}),
    images=(
        ImageRule(variable="DEFAULT_VLLM_IMAGE_GFX1100", vendor=Vendor.AMD, architecture="gfx1100"),
        ImageRule(variable="DEFAULT_VLLM_IMAGE_GFX906", vendor=Vendor.AMD, architecture="gfx906"),
        ImageRule(variable="DEFAULT_VLLM_IMAGE_AMD", image="rocm/vllm:latest", vendor=Vendor.AMD),
        ImageRule(variable="DEFAULT_VLLM_IMAGE", image="vllm/vllm-openai:latest"),
    ),
    keys=_KEYS,
    command=("vllm", "serve"),
    arguments=_arguments,
    environment=_environment,
    check=_check,
)
