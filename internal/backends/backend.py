# SPDX-License-Identifier: Apache-2.0
"""The shape of a backend: everything a Deployment needs to know about an inference server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.meta.duration import Duration
from internal.backends.config import Key, Kind, misfits, unread
from internal.backends.image import choose_image
from internal.backends.source import Scheme

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from internal.backends.image import ImageRule
    from internal.backends.source import Source
    from internal.gpu.accelerator import Accelerator, Vendor

MODELS_PATH = "/models"

# Probes count in 32 bits, and the API server drops what is above.
_LONGEST_STARTUP = 2**31 - 1

COMMON_KEYS = (
    Key(name="startupTimeout", kind=Kind.DURATION),
    Key(name="startupTimeoutSeconds", kind=Kind.INTEGER),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Be what a server is started with; `name` is what clients call the model."""

    name: str
    source: Source
    accelerator: Accelerator
    config: Mapping[str, object]


def _no_problems(_source: Source, _config: Mapping[str, object]) -> Sequence[str]:
    return ()


def _no_variables(_launch: Launch) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Be one inference server.

    `startup_seconds` is how long it may take until `health_path` answers on `port`.
    `check` returns sentences on what source and config lack beyond types. An empty `command` leaves
    the image's entry point alone.
    """

    name: str
    aliases: tuple[str, ...] = ()
    port: int
    health_path: str
    startup_seconds: int
    vendors: frozenset[Vendor]
    unsupported_architectures: tuple[str, ...] = ()
    schemes: frozenset[Scheme]
    images: tuple[ImageRule, ...]
    keys: tuple[Key, ...] = ()
    command: tuple[str, ...] = ()
    arguments: Callable[[Launch], Sequence[str]]
    environment: Callable[[Launch], Mapping[str, str]] = _no_variables
    check: Callable[[Source, Mapping[str, object]], Sequence[str]] = _no_problems

    @property
    def all_keys(self) -> tuple[Key, ...]:
        """Return the keys of `spec.config` that mean something."""
        return (*self.keys, *COMMON_KEYS)

    def problems(self, source: Source, config: Mapping[str, object]) -> tuple[str, ...]:
        """Return one sentence for each thing about source and config that cannot work."""
        if source.scheme not in self.schemes:
            allowed = ", ".join(f"{scheme}://" for scheme in sorted(self.schemes))
            problem = (
                f"backend {self.name} cannot load {source.scheme}:// sources; "
                f"set spec.source to one of {allowed}"
            )
            return (problem,)
        wrong = misfits(self.all_keys, config) + _startup_problems(config)
        return wrong or tuple(self.check(source, config))

    def unread_keys(self, config: Mapping[str, object]) -> tuple[str, ...]:
        """Return the keys of `spec.config` that have no effect."""
        return unread(self.all_keys, config)

    def supports(self, accelerator: Accelerator) -> bool:
        """Tell whether the server has a build for this hardware."""
        return accelerator.vendor in self.vendors and not accelerator.architecture.startswith(
            self.unsupported_architectures
        )

    def image(self, accelerator: Accelerator, environment: Mapping[str, str]) -> str:
        """Return the default image for hardware that `supports` admits."""
        return choose_image(self.images, accelerator, environment)

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


def model_path(source: Source, file: str = "") -> str:
    """Return where the weights lie in the container, for `pvc` and `file` sources."""
    root = f"{MODELS_PATH}/{source.reference}" if source.scheme is Scheme.PVC else source.reference
    return f"{root.rstrip('/')}/{file}" if file else root.rstrip("/")


def relative_path_problem(config: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Refuse a file name that would leave the directory of the source."""
    value = config.get(key)
    if isinstance(value, str) and (value.startswith("/") or ".." in value.split("/")):
        return (f"spec.config.{key} must be a path inside the source, not {value[:80]!r}",)
    return ()
