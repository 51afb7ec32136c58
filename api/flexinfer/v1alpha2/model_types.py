# SPDX-License-Identifier: Apache-2.0
"""The Model: one large language model, served inside the cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from api.flexinfer.v1alpha2.groupversion_info import GROUP, VERSION
from api.flexinfer.v1alpha2.model_spec import SPEC_RULES, GPUVendor, ModelSpec
from api.flexinfer.v1alpha2.model_status import ModelStatus, read_status
from flexinfer.crd.markers import PrintColumn, Rule, resource
from flexinfer.meta.object import Object

MAX_NAME = 48

NAME_RULE = Rule(
    f"self.metadata.name.size() <= {MAX_NAME}"
    " && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name must be a DNS-1035 label (lower-case letters, digits and '-', starting with "
    f"a letter, not ending with '-') of at most {MAX_NAME} characters, because the Service and "
    "everything else made for the Model is named after it",
    on_create_only=True,
)


_READY = ".status.conditions[?(@.type=='Ready')]"


@resource(
    group=GROUP,
    version=VERSION,
    plural="models",
    short_names=("mdl",),
    categories=("flexinfer",),
    columns=(
        PrintColumn("Backend", ".spec.backend"),
        PrintColumn("Phase", ".status.phase"),
        PrintColumn("Ready", f"{_READY}.status"),
        PrintColumn("Reason", f"{_READY}.reason"),
        PrintColumn("Shared", ".spec.gpu.shared", priority=1),
        PrintColumn("Priority", ".spec.gpu.priority", type="integer", priority=1),
        PrintColumn("Age", ".metadata.creationTimestamp", type="date"),
        # Last, since it is as long as it is.
        PrintColumn("Message", f"{_READY}.message", priority=1),
    ),
    rules=(NAME_RULE,),
)
class Model(Object):
    """Serve one large language model inside the cluster."""

    spec: Annotated[ModelSpec, *SPEC_RULES]
    """Which model to serve, with what, and on which hardware."""

    status: Annotated[ModelStatus, BeforeValidator(read_status)] = ModelStatus()
    """How the Model is doing."""

    @property
    def gpu_count(self) -> int:
        """Return the GPUs per replica: none without a gpu block or with vendor cpu, else ≥ 1."""
        gpu = self.spec.gpu
        if gpu is None or gpu.vendor is GPUVendor.CPU:
            return 0
        return gpu.count or 1

    @property
    def wanted_replicas(self) -> int:
        """Return the replicas that run without anybody asking for the model."""
        serverless = self.spec.serverless
        if serverless is None:
            return 0
        return max(serverless.min_replicas, 0 if serverless.enabled else 1)

    @property
    def most_replicas(self) -> int:
        """Return the replicas that run while somebody asks for the model."""
        return max(1, self.wanted_replicas)

    @property
    def is_placed_by_nodes(self) -> bool:
        """Tell whether nodes have a say in what its pods are made of."""
        return self.gpu_count > 0 or self.most_replicas > 1

    @property
    def served_name(self) -> str:
        """Return the name that clients use."""
        litellm = self.spec.litellm
        return (litellm and litellm.served_model_name) or self.metadata.name
