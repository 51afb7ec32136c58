# SPDX-License-Identifier: Apache-2.0
"""The shape of a backend: everything a Deployment needs to know about an inference server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flexinfer.meta.duration import Duration
from internal.backends.config import Key, Kind, misfits, unread
from internal.backends.image import choose_image, image_variables
from internal.backends.rocm import torch_variables
from internal.backends.source import Scheme
from internal.gpu.accelerator import Vendor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from internal.backends.image import ImageRule
    from internal.backends.probe import Probe
    from internal.backends.source import Source
    from internal.backends.support import Support
    from internal.gpu.accelerator import Accelerator

MODELS_PATH = "/models"

# After how long without a request a server may stop: making images takes longer than text.
TEXT_IDLE_SECONDS, IMAGE_IDLE_SECONDS = 300, 600

GPU_VENDORS = frozenset({Vendor.NVIDIA, Vendor.AMD})

# Probes count in 32 bits, and the API server drops what is above.
_LONGEST_STARTUP = 2**31 - 1

COMMON_KEYS = (
    Key(name="startupTimeout", kind=Kind.DURATION),
    Key(name="startupTimeoutSeconds", kind=Kind.INTEGER),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Be what a server is started with; `name` is what clients call the model.

    `fetched` is the directory in the container that holds the files of the source once they
    were fetched or copied there; empty when the server reads the source in place or fetches by
    itself.
    """

    name: str
    source: Source
    accelerator: Accelerator
    config: Mapping[str, object]
    fetched: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Be what the spec says about the weights, before any hardware is known; see Launch."""

    source: Source
    config: Mapping[str, object]
    fetched: str = ""

    @property
    def is_remote(self) -> bool:
        """Tell whether the server itself has to fetch them."""
        return self.source.scheme is Scheme.HUGGING_FACE and not self.fetched


def _no_problems(_weights: Weights) -> Sequence[str]:
    return ()


def _no_obstacle(_launch: Launch) -> str:
    return ""


def _no_files(_config: Mapping[str, object]) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Be one inference server.

    It is up when `startup` (unset, `readiness`) succeeds on `port`, for which it may take
    `startup_seconds`, and in use while `readiness` does. It may stop after `idle_seconds`
    without a request. With `needs_volume` off the server keeps its own store of models, and
    nothing is ever fetched for it.

    `vendors` and `architectures` say what it runs on. `check` returns sentences on what the
    weights lack beyond types, `obstacle` one on why chosen hardware cannot run them. `rocm`
    gives the variables for an AMD architecture, `variables` all others, and `source_files` the
    files of the source that config names. An empty `command` leaves the image's entry point
    alone.
    """

    name: str
    aliases: tuple[str, ...] = ()
    port: int
    readiness: Probe
    startup: Probe | None = None
    startup_seconds: int
    idle_seconds: int = TEXT_IDLE_SECONDS
    makes_images: bool = False
    needs_volume: bool = True
    vendors: frozenset[Vendor] = GPU_VENDORS
    architectures: Mapping[str, Support] = field(default_factory=dict)
    schemes: frozenset[Scheme]
    images: tuple[ImageRule, ...]
    keys: tuple[Key, ...] = ()
    command: tuple[str, ...] = ()
    arguments: Callable[[Launch], Sequence[str]]
    variables: Callable[[Launch], Mapping[str, str]]
    rocm: Callable[[str], Mapping[str, str]] = torch_variables
    check: Callable[[Weights], Sequence[str]] = _no_problems
    obstacle: Callable[[Launch], str] = _no_obstacle
    source_files: Callable[[Mapping[str, object]], tuple[str, ...]] = _no_files

    @property
    def all_keys(self) -> tuple[Key, ...]:
        """Return the keys of `spec.config` that mean something."""
        return (*self.keys, *COMMON_KEYS)

    @property
    def startup_probe(self) -> Probe:
        """Return what tells that the server has come up."""
        return self.startup or self.readiness

    def problems(self, weights: Weights) -> tuple[str, ...]:
        """Return one sentence for each thing about source and config that cannot work."""
        scheme, config = weights.source.scheme, weights.config
        if scheme not in self.schemes:
            allowed = ", ".join(f"{scheme}://" for scheme in sorted(self.schemes))
            problem = (
                f"backend {self.name} cannot load {scheme}:// sources; "
                f"set spec.source to one of {allowed}"
            )
            return (problem,)
        wrong = misfits(self.all_keys, config) + _startup_problems(config)
        return wrong or tuple(self.check(weights))

    def unread_keys(self, config: Mapping[str, object]) -> tuple[str, ...]:
        """Return the keys of `spec.config` that have no effect."""
        return unread(self.all_keys, config)

    def environment(self, launch: Launch) -> Mapping[str, str]:
        """Return the variables of the container; the server's own win over those of ROCm."""
        accelerator = launch.accelerator
        is_amd = accelerator.vendor is Vendor.AMD
        rocm = self.rocm(accelerator.architecture) if is_amd else {}
        return {**rocm, **self.variables(launch)}

    def image(self, accelerator: Accelerator, environment: Mapping[str, str]) -> str:
        """Return the default image for the hardware, or the empty string if there is none."""
        return choose_image(self.images, accelerator, environment)

    def image_variables(self, accelerator: Accelerator) -> tuple[str, ...]:
        """Return the variables of the manager that can name an image for the hardware."""
        return image_variables(self.images, accelerator)

    def startup_budget(self, config: Mapping[str, object], *, at_least: float) -> int:
        """Return in how many seconds the server must answer.

        `spec.config` decides when it says so; else the longer of the backend's own time and
        *at_least*.
        """
        match config.get("startupTimeoutSeconds"), config.get("startupTimeout"):
            case (int() | float()) as seconds, _:
                return int(seconds)
            case _, str() as text:
                return max(1, round(Duration.parse(text).seconds))
            case _:
                return max(self.startup_seconds, round(at_least))


def _startup_problems(config: Mapping[str, object]) -> tuple[str, ...]:
    seconds = config.get("startupTimeoutSeconds", 1)
    if isinstance(seconds, int | float) and not 1 <= seconds <= _LONGEST_STARTUP:
        bound = "least 1" if seconds < 1 else f"most {_LONGEST_STARTUP}"
        return (f"spec.config.startupTimeoutSeconds must be at {bound}, not {seconds}",)
    return ()
