# SPDX-License-Identifier: Apache-2.0
"""Where a Model's weights are kept, and what has to happen before a server finds them. Pure.

| source | cache | mounted at /models | prepared by |
|---|---|---|---|
| `HF://`, volume backend | SharedPVC | the claim named, or `<model>-cache` | a prefetch Job |
| `pvc://` | none, strategy Local or None | the source's claim | a check Job |
| `pvc://` | strategy unset or SharedPVC | the claim named, or `<model>-cache` | a copy Job |
| any other | SharedPVC | the claim named, or `<model>-cache` | nothing |
| any but `pvc://` | Memory | memory of the pod | nothing: the server fetches |
| any but `pvc://` | Local | a directory of the node | nothing: the server fetches |
| any but `pvc://` | None | a scratch directory | nothing: the server fetches |

An unset strategy is SharedPVC when a claim is named, else Memory for shared GPUs, else SharedPVC.
Without a cache block that goes for `HF://` sources of volume backends, those that read files;
others keep what they load in the pod. For a backend that is none nothing is fetched: it pulls
models itself, and serves the claim of a `pvc://` source in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_spec import CacheSpec, CacheStrategy
from controllers.model import names
from flexinfer.meta.quantity import Quantity
from internal.backends.backend import MODELS_PATH
from internal.backends.source import Scheme

if TYPE_CHECKING:
    from collections.abc import Iterator

    from api.flexinfer.v1alpha2.model_types import Model
    from flexinfer.meta.envelope import Tree
    from internal.backends.backend import Backend
    from internal.backends.source import Source

# What the API server writes into a spec that names no size.
_UNSAID_SIZE = Quantity.parse("50Gi")
_FETCH_FIELDS = {
    "allow_patterns": "allowPatterns",
    "ignore_patterns": "ignorePatterns",
    "revision": "revision",
    "token_secret_ref": "tokenSecretRef",
}
_CLAIM_FIELDS = {"storage_class": "storageClass", "retain": "retain"}


class Work(StrEnum):
    """Name what a Job does for a claim, as its name and annotations spell it."""

    PREFETCH = "prefetch"
    CHECK = "check"
    COPY = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Be where the weights are kept.

    `claim` is mounted at /models, empty for none; `is_made` when it is made for the Model.
    `files` are those that the config names. `notes` are what the user asked for and does not get.
    """

    strategy: CacheStrategy
    source: Source
    claim: str = ""
    is_made: bool = False
    work: Work | None = None
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def source_claim(self) -> str:
        """Return the claim that is copied from, empty for none."""
        return self.source.claim if self.work is Work.COPY else ""

    @property
    def claims(self) -> tuple[str, ...]:
        """Return the claims whose changes concern the Model."""
        return tuple(name for name in (self.claim, self.source_claim) if name)


def plan_cache(model: Model, source: Source, backend: Backend) -> Cache:
    """Decide where the weights that *backend* serves are kept."""
    cache = _plan(model, source, needs_volume=backend.needs_volume)
    files = backend.source_files(model.spec.config)
    return replace(cache, files=files, notes=tuple(_notes(model.spec.cache, cache)))


def fetched_path(model: Model, cache: Cache) -> str:
    """Return where in the container the files lie once the Job is done, empty if none puts them."""
    if cache.work in {Work.PREFETCH, Work.COPY}:
        return f"{MODELS_PATH}/{model.metadata.name}"
    return ""


def model_volume(model: Model, cache: Cache) -> Tree:
    """Return the source of the volume at /models.

    Memory is bounded by `spec.cache.size` when that is not the size of claims by default, which
    the API server fills in; unbounded it ends where the pod's memory does.
    """
    spec = model.spec.cache or CacheSpec()
    if cache.claim:
        return {"persistentVolumeClaim": {"claimName": cache.claim}}
    if cache.strategy is CacheStrategy.MEMORY:
        is_said = spec.size != _UNSAID_SIZE
        return {"emptyDir": {"medium": "Memory", "sizeLimit": str(spec.size) if is_said else None}}
    if cache.strategy is CacheStrategy.LOCAL:
        path = f"{spec.host_path.rstrip('/')}/{model.metadata.namespace}/{model.metadata.name}"
        return {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    return {"emptyDir": {}}


def _plan(model: Model, source: Source, *, needs_volume: bool) -> Cache:
    spec = model.spec.cache
    named = (spec and spec.pvc_name) or ""
    claim = named or names.made_claim(model.metadata.name)
    if source.scheme is Scheme.PVC:
        is_staged = spec is not None and spec.strategy in {None, CacheStrategy.SHARED_PVC}
        # A claim that would be copied onto itself is served in place, too.
        if not needs_volume or not is_staged or claim == source.claim:
            return _in_place(source, needs_volume=needs_volume)
        work: Work | None = Work.COPY
    else:
        is_fetched = needs_volume and source.scheme is Scheme.HUGGING_FACE
        strategy = _strategy(model) if spec or is_fetched else CacheStrategy.NONE
        if strategy is not CacheStrategy.SHARED_PVC:
            return Cache(strategy=strategy, source=source)
        work = Work.PREFETCH if is_fetched else None
    return Cache(
        strategy=CacheStrategy.SHARED_PVC,
        source=source,
        claim=claim,
        is_made=not named,
        work=work,
    )


def _in_place(source: Source, *, needs_volume: bool) -> Cache:
    return Cache(
        strategy=CacheStrategy.SHARED_PVC,
        source=source,
        claim=source.claim,
        work=Work.CHECK if needs_volume else None,
    )


def _strategy(model: Model) -> CacheStrategy:
    spec = model.spec.cache or CacheSpec()
    if spec.strategy is not None:
        return spec.strategy
    is_shared = bool(model.spec.gpu and model.spec.gpu.shared)
    return CacheStrategy.MEMORY if is_shared and not spec.pvc_name else CacheStrategy.SHARED_PVC


def _notes(spec: CacheSpec | None, cache: Cache) -> Iterator[str]:
    if spec is None:
        return
    if spec.pvc_name and spec.pvc_name != cache.claim:
        yield "spec.cache.pvcName has no effect: the source's own claim is mounted"
    if cache.work is not Work.PREFETCH and (said := _said(spec, _FETCH_FIELDS)):
        yield f"{said} without effect: no Job fetches an HF:// source into a claim"
    if not cache.is_made and (said := _said(spec, _CLAIM_FIELDS)):
        yield f"{said} without effect: no claim is made for the Model"


def _said(spec: CacheSpec, fields: dict[str, str]) -> str:
    return ", ".join(f"spec.cache.{name}" for field, name in fields.items() if getattr(spec, field))
