# SPDX-License-Identifier: Apache-2.0
"""ComfyUI: workflows that make images, with an editor in the browser.

A workflow names its models itself, and ComfyUI looks for them where a file of search paths says:
`modelsPath`, in the source or, as an absolute path, in the image. In that file `$MODEL_PATH` is
the directory of the weights. ComfyUI fetches nothing by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.backend import IMAGE_IDLE_SECONDS, Backend, Launch, Weights
from internal.backends.config import Key, Kind, arguments, literal
from internal.backends.image import ImageRule
from internal.backends.paths import climbing_problem, resolve, weights_directory
from internal.backends.probe import Probe
from internal.backends.source import Scheme
from internal.backends.support import Support
from internal.gpu.accelerator import Vendor
from internal.gpu.architecture import GFX110, GFX906, MAXWELL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PORT = 8188

_KEYS = (
    Key(name="outputDirectory", kind=Kind.STRING, flag="--output-directory"),
    Key(name="previewMethod", kind=Kind.STRING, flag="--preview-method"),
    Key(name="reserveVRAM", kind=Kind.DECIMAL, flag="--reserve-vram"),
    Key(name="highVRAM", kind=Kind.BOOLEAN, flag="--highvram"),
    Key(name="lowVRAM", kind=Kind.BOOLEAN, flag="--lowvram"),
    Key(name="enableCORS", kind=Kind.BOOLEAN),
    Key(name="modelsPath", kind=Kind.STRING),
)


def _arguments(launch: Launch) -> Sequence[str]:
    has_cors = launch.config.get("enableCORS") is not False
    return [
        *("--listen", "0.0.0.0", "--port", str(_PORT)),  # noqa: S104 - a pod serves its network
        *(("--enable-cors-header",) if has_cors else ()),
        *_search_paths(launch),
        *arguments(_KEYS, launch.config),
    ]


def _search_paths(launch: Launch) -> Sequence[str]:
    file = str(launch.config.get("modelsPath") or "")
    return ("--extra-model-paths-config", literal(resolve(launch, file))) if file else ()


def _variables(launch: Launch) -> Mapping[str, str]:
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    on_nvidia = launch.accelerator.vendor is Vendor.NVIDIA
    return {"MODEL_PATH": literal(weights_directory(launch)), **(order if on_nvidia else {})}


def _check(weights: Weights) -> Sequence[str]:
    if weights.is_remote:
        problem = (
            "backend comfyui does not fetch an HF:// source by itself; set spec.cache.strategy to "
            "SharedPVC, or use a pvc:// source"
        )
        return (problem,)
    return climbing_problem(weights.config, "modelsPath")


COMFYUI = Backend(
    name="comfyui",
    aliases=("comfy", "comfy-ui", "comfy_ui"),
    port=_PORT,
    readiness=Probe(),
    startup_seconds=180,
    idle_seconds=IMAGE_IDLE_SECONDS,
    makes_images=True,
    architectures={MAXWELL: Support.NONE, GFX906: Support.EXPERIMENTAL},
    schemes=frozenset({Scheme.HUGGING_FACE, Scheme.FILE, Scheme.PVC}),
    images=(
        ImageRule(variable="DEFAULT_COMFYUI_IMAGE_GFX1100", vendor=Vendor.AMD, architecture=GFX110),
        ImageRule(variable="DEFAULT_COMFYUI_IMAGE_GFX906", vendor=Vendor.AMD, architecture=GFX906),
        ImageRule(variable="DEFAULT_COMFYUI_IMAGE_AMD", vendor=Vendor.AMD, is_last=True),
        ImageRule(variable="DEFAULT_COMFYUI_IMAGE", image="comfyanonymous/comfyui:latest"),
    ),
    keys=_KEYS,
    command=("python", "main.py"),
    arguments=_arguments,
    variables=_variables,
    check=_check,
)
