# SPDX-License-Identifier: Apache-2.0
"""Does a backend run on the chosen hardware, and what should be known if it does. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.maxwell import half_precision_problem
from internal.backends.registry import known_backends
from internal.backends.support import Support, support_of
from internal.gpu.accelerator import Vendor
from internal.gpu.caveat import Caveat, CaveatReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from internal.backends.backend import Backend, Launch
    from internal.gpu.accelerator import Accelerator


def obstacle(backend: Backend, launch: Launch) -> str:
    """Say why the hardware cannot run the backend with these weights, and the cure; else nothing.

    Of several architectures that a pod may meet one that runs is enough; see `caveats`.
    """
    accelerator = launch.accelerator
    if accelerator.vendor not in backend.vendors:
        return _wrong_vendor(backend, accelerator)
    lacking = _of(backend, accelerator, Support.NONE)
    if len(lacking) == len(accelerator.architectures):
        return _does_not_run(backend, accelerator)
    names = (str(launch.source), *backend.source_files(launch.config))
    return half_precision_problem(accelerator, names) or backend.obstacle(launch)


def missing_image(backend: Backend, accelerator: Accelerator) -> str:
    """Say which image has to be named, where there is no public one."""
    variables = " or ".join(backend.image_variables(accelerator))
    return (
        f"backend {backend.name} has no default image for {_name(accelerator)}: set spec.image, "
        f"or {variables} in the manager's environment"
    )


def caveats(backend: Backend, launch: Launch, image: str) -> Iterator[Caveat]:
    """Yield what should be known about *image* running on hardware without an obstacle.

    An image whose name holds the architecture was built for it, so that nothing about it is
    experimental any more.
    """
    accelerator = launch.accelerator
    trying = [a for a in _of(backend, accelerator, Support.EXPERIMENTAL) if a not in image]
    if trying:
        text = (
            f"backend {backend.name} is experimental on {', '.join(trying)}: should it fail "
            "there, set spec.image to a build for that architecture"
        )
        yield Caveat(CaveatReason.EXPERIMENTAL, text)
    if lacking := _of(backend, accelerator, Support.NONE):
        text = (
            f"some nodes that fit have GPUs of {', '.join(lacking)}, on which backend "
            f"{backend.name} does not run: keep pods off them with spec.nodeSelector"
        )
        yield Caveat(CaveatReason.PARTIAL, text)


def _of(backend: Backend, accelerator: Accelerator, support: Support) -> list[str]:
    found = accelerator.architectures
    return [a for a in found if support_of(backend.architectures, a) is support]


def _wrong_vendor(backend: Backend, accelerator: Accelerator) -> str:
    vendors = _vendors(backend)
    if accelerator.vendor is Vendor.CPU:
        return (
            f"backend {backend.name} does not run on CPUs and spec.gpu asks for no GPU; "
            f"set spec.gpu.vendor to {vendors}, or use backend llamacpp"
        )
    return _does_not_run(backend, accelerator)


def _does_not_run(backend: Backend, accelerator: Accelerator) -> str:
    return (
        f"backend {backend.name} does not run on {_name(accelerator)}; "
        f"use other nodes (it runs on {_vendors(backend)}) or another backend ({known_backends()})"
    )


def _vendors(backend: Backend) -> str:
    return " or ".join(sorted(vendor.value for vendor in backend.vendors))


def _name(accelerator: Accelerator) -> str:
    if accelerator.vendor is Vendor.CPU:
        return "CPUs"
    known = ", ".join(filter(None, accelerator.architectures))
    return f"{accelerator.vendor} GPUs" + f" of architecture {known}" * bool(known)
