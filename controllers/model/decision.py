# SPDX-License-Identifier: Apache-2.0
"""What a Model comes to on these nodes: a plan to roll out, or why there can be none. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_rules import violations
from api.flexinfer.v1alpha2.model_spec import GPUVendor, ServerlessSpec
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model.cache import fetched_path, plan_cache
from controllers.model.placement import Placement, choose_spread
from internal.backends import hardware
from internal.backends.backend import Launch, Weights
from internal.backends.image import pin
from internal.backends.registry import find_backend, known_backends
from internal.backends.source import SourceError, parse_source
from internal.gpu.accelerator import Vendor
from internal.gpu.caveat import CaveatReason
from internal.gpu.detection import Refusal, Wish, detect, fitting_nodes
from internal.gpu.vram import fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from api.flexinfer.v1alpha2.model_types import Model
    from controllers.model.cache import Cache
    from controllers.model.placement import Spread
    from flexinfer.kinds.node import Node
    from internal.backends.backend import Backend
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
class Reading:
    """Be what a spec says by itself, whatever the nodes, and nothing about it is wrong."""

    backend: Backend
    weights: Weights
    cache: Cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Be all that is decided before an intent is written.

    `replicas` are those of now, `most` those that run while somebody asks for the Model. `notes`
    are what the user asked for and does not get; `warnings` are for events. `trouble` is why
    nodes would take no new pod, where those that there are can stay. With `keeps_template` what
    pods are made of is not touched. `spread_note` says that replicas may share a node.
    """

    backend: Backend
    launch: Launch
    cache: Cache
    image: str
    replicas: int
    most: int
    spread: Spread
    startup_seconds: int
    notes: tuple[str, ...] = ()
    warnings: tuple[Caveat, ...] = ()
    trouble: Blocked | None = None
    keeps_template: bool = False
    spread_note: str = ""

    @property
    def claim(self) -> str:
        """Return the claim to mount, empty for none."""
        return self.cache.claim

    @property
    def placement(self) -> Placement:
        """Return what nodes had a say in."""
        return Placement(accelerator=self.launch.accelerator, spread=self.spread)


def read(model: Model) -> Reading | Blocked:
    """Judge what the spec says by itself."""
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
    cache = plan_cache(model, source, backend)
    fetched = fetched_path(model, cache)
    weights = Weights(source=source, config=model.spec.config, fetched=fetched)
    if problems := backend.problems(weights):
        return _invalid(problems)
    return Reading(backend=backend, weights=weights, cache=cache)


def decide(
    model: Model,
    reading: Reading,
    nodes: Sequence[Node],
    environment: Mapping[str, str],
    *,
    modes: Sequence[str] | None = None,
) -> Plan | Blocked:
    """Decide what to roll out on these nodes; *environment* holds the default images.

    *modes* are the access modes of the claim, as far as there is one.
    """
    wish = _wish(model)
    found = detect(nodes, wish)
    if isinstance(found, Refusal):
        return _refused(found)
    fitting = fitting_nodes(nodes, wish)
    spread, note = choose_spread(model.most_replicas, fitting, reading.cache.claim, modes)
    placement = Placement(accelerator=found, spread=spread)
    plan = plan_for(model, reading, placement, environment)
    return plan if isinstance(plan, Blocked) else replace(plan, spread_note=note)


def plan_for(
    model: Model, reading: Reading, placement: Placement, environment: Mapping[str, str]
) -> Plan | Blocked:
    """Return what to roll out where nodes have had their say, be it now or earlier."""
    backend, weights, spec = reading.backend, reading.weights, model.spec
    launch = Launch(
        name=model.served_name,
        source=weights.source,
        accelerator=placement.accelerator,
        config=weights.config,
        fetched=weights.fetched,
    )
    image = spec.image or backend.image(placement.accelerator, environment)
    warnings = _judge(model, backend, launch, image)
    if isinstance(warnings, Blocked):
        return warnings
    cold_start = (spec.serverless or ServerlessSpec()).cold_start_timeout.seconds
    experiments = (w.text for w in warnings if w.reason is CaveatReason.EXPERIMENTAL)
    return Plan(
        backend=backend,
        launch=launch,
        cache=reading.cache,
        image=pin(image, spec.image_digest) if spec.image_digest else image,
        replicas=model.wanted_replicas,
        most=model.most_replicas,
        spread=placement.spread,
        startup_seconds=backend.startup_budget(spec.config, at_least=cold_start),
        notes=(*reading.cache.notes, *_unread(model, backend), *experiments),
        warnings=warnings,
    )


def suits(model: Model, placement: Placement) -> bool:
    """Tell whether nodes could have said this to what the spec asks of them."""
    wish, accelerator = _wish(model), placement.accelerator
    return accelerator.count == wish.count and accelerator.vendor in wish.vendors


def claims_of(model: Model) -> tuple[str, ...]:
    """Return the claims whose changes concern the Model."""
    reading = read(model)
    return () if isinstance(reading, Blocked) else reading.cache.claims


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


def _unread(model: Model, backend: Backend) -> Iterator[str]:
    if unread := backend.unread_keys(model.spec.config):
        keys = ", ".join(f"spec.config.{key}" for key in unread)
        yield f"backend {backend.name} does not read {keys}"
