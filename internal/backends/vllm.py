# SPDX-License-Identifier: Apache-2.0
"""vLLM: the OpenAI-compatible server for GPUs.

The command is `vllm serve MODEL` in full, because the images differ in their entry point, and
because some releases refuse `--model` under `serve` while the older entry point needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.backend import Backend, Launch, Weights
from internal.backends.config import Key, Kind, arguments, literal
from internal.backends.image import ImageRule
from internal.backends.paths import relative_path_problem, weights_path
from internal.backends.probe import Probe
from internal.backends.source import Scheme
from internal.backends.support import Support
from internal.gpu.accelerator import Vendor
from internal.gpu.architecture import GFX110, GFX906, MAXWELL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PORT = 8000
COMMAND = ("vllm", "serve")

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
    return [
        *serve(launch),
        *_parallelism(launch),
        *_tool_calling(launch.config),
        *arguments(_KEYS, launch.config),
    ]


def serve(launch: Launch) -> Sequence[str]:
    """Return the model, where the server listens, and the names it answers to.

    Clients reach the model of an `HF://` source by the repository's name too.
    """
    config, source = launch.config, launch.source
    model = weights_path(launch, str(config.get("ggufFile", ""))) or source.reference
    names = [str(config.get("servedModelName", launch.name))]
    if source.scheme is Scheme.HUGGING_FACE and source.reference not in names:
        names.append(source.reference)
    return [
        literal(model),
        *("--host", "0.0.0.0", "--port", str(PORT)),  # noqa: S104 - a pod serves its network
        *("--served-model-name", *(literal(name) for name in names)),
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


def variables(launch: Launch) -> Mapping[str, str]:
    """Return the environment: GPUs are numbered as the node's tools number them."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if launch.accelerator.vendor is Vendor.NVIDIA else {}


def _check(weights: Weights) -> Sequence[str]:
    if "ggufFile" in weights.config and weights.is_remote:
        problem = (
            "spec.config.ggufFile: vllm cannot pick one file of an HF:// source by itself; set "
            "spec.cache.strategy to SharedPVC, use a pvc:// source, or backend llamacpp"
        )
        return (problem,)
    return relative_path_problem(weights.config, "ggufFile")


def _source_files(config: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(filter(None, (str(config.get("ggufFile") or ""),)))


VLLM = Backend(
    name="vllm",
    port=PORT,
    readiness=Probe(path="/health"),
    startup_seconds=300,
    architectures={MAXWELL: Support.NONE},
    schemes=frozenset({Scheme.HUGGING_FACE, Scheme.FILE, Scheme.PVC}),
    images=(
        ImageRule(variable="DEFAULT_VLLM_IMAGE_GFX1100", vendor=Vendor.AMD, architecture=GFX110),
        # AMD's own image has no code for it.
        ImageRule(
            variable="DEFAULT_VLLM_IMAGE_GFX906",
            vendor=Vendor.AMD,
            architecture=GFX906,
            is_last=True,
        ),
        ImageRule(variable="DEFAULT_VLLM_IMAGE_AMD", image="rocm/vllm:latest", vendor=Vendor.AMD),
        ImageRule(variable="DEFAULT_VLLM_IMAGE", image="vllm/vllm-openai:latest"),
    ),
    keys=_KEYS,
    command=COMMAND,
    arguments=_arguments,
    variables=variables,
    check=_check,
    source_files=_source_files,
)
