# SPDX-License-Identifier: Apache-2.0
"""Labels, annotations and names that the Model's objects carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api.flexinfer.v1alpha2.model_types import Model

FIELD_MANAGER = "flexinfer-model-controller"

MODEL_LABEL = "flexinfer.ai/model"
BACKEND_LABEL = "flexinfer.ai/backend"
GROUP_LABEL = "flexinfer.ai/gpu-group"

VRAM_ANNOTATION = "flexinfer.ai/gpu.vram-estimate-mb"
GENERATION_ANNOTATION = "flexinfer.ai/model-generation"
# On the Deployment: what nodes decided of the template, and the template itself, hashed.
PLACEMENT_ANNOTATION = "flexinfer.ai/placement"
TEMPLATE_ANNOTATION = "flexinfer.ai/template"
# In place of the hash: another version made the template, and it is left alone.
INHERITED = "inherited"
SERVICE_LABELS_ANNOTATION = "flexinfer.ai/service-labels"
SERVED_MODEL_ANNOTATION = "litellm.flexinfer.ai/served-model"
ALIASES_ANNOTATION = "litellm.flexinfer.ai/aliases"
COPILOT_ANNOTATION = "litellm.flexinfer.ai/copilot-model"
CAPABILITIES_ANNOTATION = "litellm.flexinfer.ai/capabilities"
ACTIVE_SERVICES_ANNOTATION = "ai.flexinfer/active-services"

# On a Model, any value: wake it.
ACTIVATE_ANNOTATION = "flexinfer.ai/activate"

# On the Jobs that prepare a claim, so that a change of what they do is seen.
SOURCE_ANNOTATION = "flexinfer.ai/source"
CACHE_KIND_ANNOTATION = "flexinfer.ai/cache-kind"
CACHE_CLAIM_ANNOTATION = "flexinfer.ai/cache-pvc"
# What the Job does and how, hashed; which try it is, and what the one before said.
CACHE_WORK_ANNOTATION = "flexinfer.ai/cache-work"
CACHE_SETUP_ANNOTATION = "flexinfer.ai/cache-setup"
CACHE_TRY_ANNOTATION = "flexinfer.ai/cache-try"
CACHE_ERROR_ANNOTATION = "flexinfer.ai/cache-last-error"
# On a claim that outlives its Model.
RETAINED_LABEL = "flexinfer.ai/retained"

CONTAINER = "model"
PORT = "http"


def made_claim(model: str) -> str:
    """Return the name of the claim made for the Model of that name."""
    return f"{model}-cache"


def selector_labels(model: Model) -> dict[str, str]:
    """Return the labels that select the Model's pods for as long as it lives."""
    return {
        "app.kubernetes.io/name": "model",
        "app.kubernetes.io/instance": model.metadata.name,
        "app.kubernetes.io/managed-by": "flexinfer",
        MODEL_LABEL: model.metadata.name,
    }


def cache_labels(model: Model) -> dict[str, str]:
    """Return the labels of claim and Jobs: the Model's, but none that selects its pods.

    A Service would send requests to a Job's pod, which is ready as soon as it runs.
    """
    return selector_labels(model) | {"app.kubernetes.io/name": "model-cache"}
