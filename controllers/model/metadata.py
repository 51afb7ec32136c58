# SPDX-License-Identifier: Apache-2.0
"""Labels and annotations of a Model's objects: who they belong to, and what clients may ask. Pure.

Annotations that are not wanted are left out, and so removed; those of others stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controllers.model import names
from flexinfer.meta.envelope import encode_sorted

if TYPE_CHECKING:
    from api.flexinfer.v1alpha2.model_types import Model
    from controllers.model.decision import Plan

# Backends whose chat templates call tools without being told to.
_CALL_TOOLS = {"vllm", "ollama"}


def pod_labels(model: Model, plan: Plan) -> dict[str, str]:
    """Return the labels of the pods: those that select them, and those that may change."""
    labels = names.selector_labels(model) | {names.BACKEND_LABEL: plan.backend.name}
    if model.spec.gpu and model.spec.gpu.shared:
        labels[names.GROUP_LABEL] = model.spec.gpu.shared
    return labels


def pod_annotations(model: Model, plan: Plan) -> dict[str, str]:
    """Return the annotations of the pods."""
    annotations = {
        names.MODEL_LABEL: model.metadata.name,
        names.BACKEND_LABEL: plan.backend.name,
    }
    if model.spec.gpu and model.spec.gpu.vram_estimate_mb:
        annotations[names.VRAM_ANNOTATION] = str(model.spec.gpu.vram_estimate_mb)
    return annotations


def managed_annotations(model: Model, plan: Plan) -> dict[str, str]:
    """Return what routers read from Service and Deployment."""
    spec = model.spec
    annotations: dict[str, str] = {}
    if spec.service_labels:
        annotations[names.SERVICE_LABELS_ANNOTATION] = ",".join(sorted(spec.service_labels))
    if spec.litellm is None or not spec.litellm.enabled:
        return annotations
    annotations[names.SERVED_MODEL_ANNOTATION] = model.served_name
    aliases = {*spec.litellm.aliases, *spec.service_labels} - {model.served_name}
    if aliases:
        annotations[names.ALIASES_ANNOTATION] = ",".join(sorted(aliases))
    if spec.litellm.copilot_alias:
        annotations[names.COPILOT_ANNOTATION] = spec.litellm.copilot_alias
    annotations[names.CAPABILITIES_ANNOTATION] = encode_sorted(capabilities(model, plan)).decode()
    return annotations


def capabilities(model: Model, plan: Plan) -> dict[str, bool]:
    """Return what the model can do: what the spec says, else what backend and config suggest."""
    config = model.spec.config
    suggested = {
        "toolCalling": plan.backend.name in _CALL_TOOLS or config.get("jinja") is True,
        "vision": bool(config.get("mmproj")),
        "imageGeneration": plan.backend.makes_images,
    }
    said = model.spec.capabilities
    return suggested | (said.wire() if said else {})
