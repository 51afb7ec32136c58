# SPDX-License-Identifier: Apache-2.0
"""What a Model comes to on these nodes: a plan to roll out, or why there can be none. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_rules import violations
from api.flexinfer.v1alpha2.model_spec import CacheStrategy, GPUVendor, ServerlessSpec
from api.flexinfer.v1alpha2.reasons import Reason
from internal.backends import hardware
from internal.backends.backend import Launch, Weights
from internal.backends.image import pin
from internal.backends.registry import find_backend, known_backends
from internal.backends.source import Scheme, SourceError, parse_source
from internal.gpu.accelerator import Vendor
from internal.gpu.caveat import CaveatReason
from internal.gpu.detection import Refusal, Wish, detect
from internal.gpu.vram import fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from api.flexinfer.v1alpha2.model_types import Model
    from flexinfer.kinds.node import Node
    from internal.backends.backend import Backend
    from internal.backends.source import Source
    from internal.gpu.caveat import Caveat


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Say why nothing can be rolled out."""

    reason: Reason
    message: str

    @property
    def concerns_spec(self) -> bool:
        """Tell whether the spec itself is at fault, and not the nodes of the moment."""
        return self.reason is Reason.INVALID_SPEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Be all that is decided before an intent is written.

    `claim` is the claim to mount, empty for none. `notes` are what the user asked for and does
    not get; `warnings` are for events.
    """

    backend: Backend
    launch: Launch
    image: str
    replicas: int
    startup_seconds: int
    claim: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[Caveat, ...] = ()


def decide(
    model: Model, nodes: Iterable[Node], environment: Mapping[str, str], *, fetched: str = ""
) -> Plan | Blocked:
    """Decide what to roll out; *environment* holds the default images.

    *fetched* is where in the container a Job puts the weights, empty if none does.
    """
    read = _read(model, fetched)
    if isinstance(read, Blocked):
        return read
    backend, weights = read
    found = detect(nodes, _wish(model))
    if isinstance(found, Refusal):
        return _refused(found)
    launch = Launch(
        name=model.served_name,
        source=weights.source,
        accelerator=found,
        config=weights.config,
        fetched=fetched,
    )
    image = model.spec.image or backend.image(found, environment)
    judged = _judge(model, backend, launch, image)
    if isinstance(judged, Blocked):
        return judged
    return _plan(model, backend, launch, image, judged)


def _judge(
    model: Model, backend: Backend, launch: Launch, image: str
) -> tuple[Caveat, ...] | Blocked:
    """Hold the server and its weights against the hardware that was found."""
    accelerator = launch.accelerator
    problem = hardware.obstacle(backend, launch)
    if not problem and not image:
        problem = hardware.missing_image(backend, accelerator)
    if problem:
        return Blocked(reason=Reason.BACKEND_UNSUPPORTED, message=problem)
    memory = fit(model.spec.gpu.vram_estimate_mb if model.spec.gpu else None, accelerator)
    if isinstance(memory, Refusal):
        return _refused(memory)
    return (*hardware.caveats(backend, launch, image), *memory)


def claim_of(model: Model) -> str:
    """Return the claim whose weights the Model serves or keeps; empty for none.

    The claim of a `pvc://` source comes before a named one.
    """
    try:
        source = parse_source(model.spec.source)
    except SourceError:
        return ""
    return source.claim or (model.spec.cache and model.spec.cache.pvc_name) or ""


def _read(model: Model, fetched: str) -> tuple[Backend, Weights] | Blocked:
    """Judge what the spec says by itself, whatever the nodes."""
    if broken := violations(model):
        return _invalid(broken)
    backend = find_backend(model.spec.backend)
    if backend is None:
        return Blocked(
            reason=Reason.BACKEND_UNSUPPORTED,
            message=f"spec.backend {model.spec.backend!r} is unknown; use {known_backends()}",
        )
    try:
        source = parse_source(model.spec.source)
    except SourceError as error:
        return _invalid((str(error),))
    weights = Weights(source=source, config=model.spec.config, fetched=fetched)
    if problems := backend.problems(weights):
        return _invalid(problems)
    return backend, weights


def _plan(
    model: Model, backend: Backend, launch: Launch, image: str, warnings: tuple[Caveat, ...]
) -> Plan:
    spec = model.spec
    cold_start = (spec.serverless or ServerlessSpec()).cold_start_timeout.seconds
    experiments = (w.text for w in warnings if w.reason is CaveatReason.EXPERIMENTAL)
    return Plan(
        backend=backend,
        launch=launch,
        image=pin(image, spec.image_digest) if spec.image_digest else image,
        replicas=model.wanted_replicas,
        startup_seconds=backend.startup_budget(spec.config, at_least=cold_start),
        claim=claim_of(model),
        notes=(*_notes(model, backend, launch.source), *experiments),
        warnings=warnings,
    )


def _refused(refusal: Refusal) -> Blocked:
    return Blocked(reason=refusal.reason, message=refusal.message)


def _invalid(problems: Iterable[str]) -> Blocked:
    return Blocked(reason=Reason.INVALID_SPEC, message="; ".join(problems))


def _wish(model: Model) -> Wish:
    vendor = model.spec.gpu.vendor if model.spec.gpu else GPUVendor.CPU
    return Wish(
        vendor=None if vendor is GPUVendor.AUTO else Vendor(vendor.value),
        count=model.gpu_count,
        node_selector=model.spec.node_selector,
        tolerations=model.spec.tolerations,
    )


def _notes(model: Model, backend: Backend, source: Source) -> Iterator[str]:
    spec = model.spec
    if spec.gpu and spec.gpu.shared:
        yield (
            f"spec.gpu.shared {spec.gpu.shared!r} has no effect yet: the Model has its GPUs to "
            "itself"
        )
    if spec.cache and source.scheme is Scheme.PVC and spec.cache.pvc_name:
        yield "spec.cache.pvcName has no effect yet: the source's own claim is mounted"
    elif (
        spec.cache and spec.cache.strategy not in {None, CacheStrategy.NONE} and not claim_of(model)
    ):
        yield (
            f"spec.cache.strategy {spec.cache.strategy} has no effect yet without "
            "spec.cache.pvcName: every new pod fetches the weights again"
        )
    if unread := backend.unread_keys(spec.config):
        keys = ", ".join(f"spec.config.{key}" for key in unread)
        yield f"backend {backend.name} does not read {keys}"
