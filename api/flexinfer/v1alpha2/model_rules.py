# SPDX-License-Identifier: Apache-2.0
"""The Model's CEL rules in Python, for objects that were stored before a rule existed.

Types, patterns and bounds need no mirror: the models themselves refuse what breaks them. The
source is read by whoever uses it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_spec import (
    CPU_RULES,
    GPU_RESOURCES,
    HOST_PATH_RULE,
    PATTERN_RULE,
    RESOURCE_RULES,
    SIZE_RULE,
    SPEC_RULES,
    TOLERATION_RULES,
    CacheStrategy,
    GPUVendor,
    TaintEffect,
    TolerationOperator,
)
from api.flexinfer.v1alpha2.model_types import MAX_NAME, NAME_RULE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from api.flexinfer.v1alpha2.model_spec import ModelSpec
    from api.flexinfer.v1alpha2.model_types import Model

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def violations(model: Model) -> tuple[str, ...]:
    """Return the message of every rule that *model* breaks, as the API server would word it."""
    return (
        *_name(model.metadata.name),
        *_gpu(model.spec),
        *_resources(model.spec),
        *_cache(model.spec),
        *_tolerations(model.spec),
    )


def _name(name: str) -> Iterator[str]:
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        yield NAME_RULE.message


def _gpu(spec: ModelSpec) -> Iterator[str]:
    gpu = spec.gpu
    if gpu is None or gpu.vendor is not GPUVendor.CPU:
        return
    for rule, value in zip(CPU_RULES, (gpu.count, gpu.vram_estimate_mb, gpu.shared), strict=True):
        if value:
            yield rule.message


def _resources(spec: ModelSpec) -> Iterator[str]:
    if spec.resources is None:
        return
    lists = (spec.resources.limits, spec.resources.requests)
    for rule, amounts in zip(RESOURCE_RULES, lists, strict=True):
        if not set(GPU_RESOURCES).isdisjoint(amounts or ()):
            yield rule.message


def _cache(spec: ModelSpec) -> Iterator[str]:
    memory, claim = SPEC_RULES
    strategy = spec.cache and spec.cache.strategy
    if spec.source.startswith("pvc://") and strategy is CacheStrategy.MEMORY:
        yield memory.message
    if spec.cache and spec.cache.pvc_name and strategy not in {None, CacheStrategy.SHARED_PVC}:
        yield claim.message
    if spec.cache:
        if not spec.cache.size:
            yield SIZE_RULE.message
        if ".." in spec.cache.host_path.split("/"):
            yield HOST_PATH_RULE.message
        patterns = (*spec.cache.allow_patterns, *spec.cache.ignore_patterns)
        if any(".." in pattern.split("/") for pattern in patterns):
            yield PATTERN_RULE.message


def _tolerations(spec: ModelSpec) -> Iterator[str]:
    for toleration in spec.tolerations:
        is_any = toleration.operator is TolerationOperator.EXISTS
        is_evicting = toleration.effect is TaintEffect.NO_EXECUTE
        broken = (
            not toleration.key and not is_any,
            bool(toleration.value) and is_any,
            toleration.toleration_seconds is not None and not is_evicting,
        )
        yield from (
            r.message for r, is_broken in zip(TOLERATION_RULES, broken, strict=True) if is_broken
        )
