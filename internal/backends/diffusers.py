# SPDX-License-Identifier: Apache-2.0
"""Diffusers: an OpenAI-compatible server for images, set up by its environment.

Nobody publishes such a server as an image, so one has to be named. It answers nothing while it
makes an image, which is why only its start is asked for by HTTP: later a connection is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.backend import IMAGE_IDLE_SECONDS, Backend, Launch
from internal.backends.config import Key, Kind, literal, variables
from internal.backends.image import ImageRule
from internal.backends.paths import weights_path
from internal.backends.probe import Probe
from internal.backends.source import Scheme
from internal.backends.support import Support
from internal.gpu.accelerator import Vendor
from internal.gpu.architecture import GFX110, GFX906, MAXWELL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PORT = 8000

_KEYS = (
    Key(name="numInferenceSteps", kind=Kind.WHOLE, variable="DEFAULT_NUM_INFERENCE_STEPS"),
    Key(name="guidanceScale", kind=Kind.DECIMAL, variable="DEFAULT_GUIDANCE_SCALE"),
    Key(name="imageGuidanceScale", kind=Kind.DECIMAL, variable="DEFAULT_IMAGE_GUIDANCE_SCALE"),
    Key(name="strength", kind=Kind.DECIMAL, variable="DEFAULT_STRENGTH"),
    Key(name="scheduler", kind=Kind.STRING, variable="DEFAULT_SCHEDULER"),
    Key(name="negativePrompt", kind=Kind.STRING, variable="DEFAULT_NEGATIVE_PROMPT"),
    Key(name="pipelineMode", kind=Kind.STRING, variable="PIPELINE_MODE"),
    Key(name="vaePath", kind=Kind.STRING, variable="VAE_PATH"),
    Key(name="useFp16", kind=Kind.SWITCH, variable="USE_FP16"),
    Key(name="cpuOffload", kind=Kind.SWITCH, variable="USE_CPU_OFFLOAD"),
    Key(name="skipWarmup", kind=Kind.SWITCH, variable="SKIP_WARMUP"),
    Key(name="warmupWidth", kind=Kind.WHOLE, variable="WARMUP_WIDTH"),
    Key(name="warmupHeight", kind=Kind.WHOLE, variable="WARMUP_HEIGHT"),
)


def _arguments(_launch: Launch) -> Sequence[str]:
    return []


def _variables(launch: Launch) -> Mapping[str, str]:
    model = literal(weights_path(launch) or launch.source.reference)
    said = variables(_KEYS, launch.config)
    return {**said, "MODEL_ID": model, "MODEL": model, "PORT": str(_PORT)}


DIFFUSERS = Backend(
    name="diffusers",
    port=_PORT,
    readiness=Probe(period_seconds=5, timeout_seconds=3),
    startup=Probe(path="/health"),
    startup_seconds=900,
    idle_seconds=IMAGE_IDLE_SECONDS,
    makes_images=True,
    architectures={MAXWELL: Support.NONE, GFX906: Support.EXPERIMENTAL},
    schemes=frozenset({Scheme.HUGGING_FACE, Scheme.FILE, Scheme.PVC}),
    images=(
        ImageRule(
            variable="DEFAULT_DIFFUSERS_IMAGE_GFX1100", vendor=Vendor.AMD, architecture=GFX110
        ),
        ImageRule(
            variable="DEFAULT_DIFFUSERS_IMAGE_GFX906", vendor=Vendor.AMD, architecture=GFX906
        ),
        ImageRule(variable="DEFAULT_DIFFUSERS_IMAGE_AMD", vendor=Vendor.AMD, is_last=True),
        ImageRule(variable="DEFAULT_DIFFUSERS_IMAGE"),
    ),
    keys=_KEYS,
    arguments=_arguments,
    variables=_variables,
)
