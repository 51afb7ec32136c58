# SPDX-License-Identifier: Apache-2.0
"""What a user asks of a Model."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from flexinfer.crd.markers import PreserveUnknown, Rule
from flexinfer.meta.duration import NonNegativeDuration
from flexinfer.meta.object import Model
from flexinfer.meta.quantity import NonNegativeQuantity

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915")

_LABEL_VALUE = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
_DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_DNS_SUBDOMAIN = rf"^{_SUBDOMAIN}$"
_TAINT_KEY = rf"^(({_SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?)?$"

LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=_LABEL_VALUE)]
ServedName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[^,]*$")]
ClaimName = Annotated[str, StringConstraints(max_length=253, pattern=_DNS_SUBDOMAIN)]
SecretName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=_DNS_SUBDOMAIN)]
ImageName = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^\S+$")]
Group = Annotated[str, StringConstraints(max_length=63, pattern=_DNS_LABEL)]

_CLASS = rf"^({_SUBDOMAIN})?$"
CLASS_RULE = Rule(
    f"self.matches(r'{_CLASS}')",
    "spec.cache.storageClass must be the name of a StorageClass; see `kubectl get storageclass`, "
    "or remove it to use the cluster's default",
)
StorageClassName = Annotated[str, StringConstraints(max_length=253, pattern=_CLASS), CLASS_RULE]

HOST_PATH_RULE = Rule(
    r"self.startsWith('/') && !self.matches('(^|/)\\.\\.(/|$)')",
    "spec.cache.hostPath must be a directory of the node; write its whole path, from / on and "
    "without '..'",
)
HostPath = Annotated[str, StringConstraints(max_length=1024, pattern=r"^/"), HOST_PATH_RULE]

SIZE_RULE = Rule(
    "type(self) == int ? self > 0"
    " : !isQuantity(self) || quantity(self).isGreaterThan(quantity('0'))",
    "spec.cache.size must be more than 0; write how much the weights need, such as 50Gi",
)

TAINT_KEY_RULE = Rule(
    f"self.matches(r'{_TAINT_KEY}')",
    "a key in spec.tolerations must be that of a taint, such as dedicated or example.com/pool",
)
TaintKey = Annotated[str, StringConstraints(max_length=317, pattern=_TAINT_KEY), TAINT_KEY_RULE]

_DIGEST = r"^(sha256:)?[a-f0-9]{64}$"
DIGEST_RULE = Rule(
    f"self.matches('{_DIGEST}')",
    "spec.imageDigest must be a SHA-256 digest: 64 digits 0-9 and a-f, with or without 'sha256:' "
    "in front",
)
# Longer than it may be, for the rule to be reached by digests of other kinds.
ImageDigest = Annotated[str, StringConstraints(max_length=256, pattern=_DIGEST), DIGEST_RULE]

# Patterns name files inside the source; each is handed to a program as one argument, never to a
# shell, so nothing but what would leave the source is refused.
_PATTERN = r"^[^/\s\x00]\S*$"
PATTERN_RULE = Rule(
    r"!self.matches('(^|/)\\.\\.(/|$)')",
    "patterns of spec.cache name files inside the source; write them without '..'",
)
FilePattern = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=_PATTERN), PATTERN_RULE
]
Revision = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")
]


class GPUVendor(StrEnum):
    """Say whose GPUs a Model runs on."""

    AUTO = "auto"
    NVIDIA = "nvidia"
    AMD = "amd"
    CPU = "cpu"


class CacheStrategy(StrEnum):
    """Say where weights are kept."""

    MEMORY = "Memory"
    SHARED_PVC = "SharedPVC"
    LOCAL = "Local"
    NONE = "None"


class ImagePullPolicy(StrEnum):
    """Say when the kubelet pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class TolerationOperator(StrEnum):
    """Say how a toleration's value is compared."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """Name what a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


CPU_RULES = (
    Rule(
        "!has(self.vendor) || self.vendor != 'cpu' || !has(self.count)",
        "spec.gpu.count must be absent when spec.gpu.vendor is cpu; remove count or change vendor",
    ),
    Rule(
        "!has(self.vendor) || self.vendor != 'cpu' || !has(self.vramEstimateMB)",
        "spec.gpu.vramEstimateMB must be absent when spec.gpu.vendor is cpu; "
        "remove it or change vendor",
    ),
    Rule(
        "!has(self.vendor) || self.vendor != 'cpu' || !has(self.shared) || self.shared == ''",
        "spec.gpu.shared must be absent when spec.gpu.vendor is cpu; remove it or change vendor",
    ),
)


class GPUSpec(Model):
    """Ask for GPUs and say how they are shared."""

    vendor: GPUVendor = GPUVendor.AUTO
    """Whose GPUs to use. With auto the nodes decide, as long as only one vendor's nodes fit;
    cpu runs without a GPU."""

    count: int | None = Field(default=None, ge=1, le=8)
    """GPUs per replica; 1 when unset."""

    shared: Group | None = None
    """Name of the group of Models of this namespace that take turns on the same GPUs; of one
    group only one Model runs at a time."""

    priority: int = Field(default=100, ge=0, le=1000)
    """Rank within the shared group; the higher number goes first."""

    vram_estimate_mb: int | None = Field(default=None, ge=1, le=16777216, alias="vramEstimateMB")
    """Memory that a replica is expected to need on all its GPUs together, in MB."""

    swap_cooldown: NonNegativeDuration | None = None
    """How long the shared group keeps its leader after a swap."""

    force_promotion: bool = False
    """Make this Model the leader of its shared group, whatever the priorities."""


class ServerlessSpec(Model):
    """Say how far a Model scales down while nobody asks for it."""

    enabled: bool = True
    """Whether the Model scales to `minReplicas` while idle. When false at least one replica
    runs all the time."""

    min_replicas: int = Field(default=0, ge=0, le=10)
    """Replicas that run even while nobody asks for the model; 0 means none until it is woken.

    More than one run on as many nodes, so that no two share the fate of a node.
    """

    idle_timeout: NonNegativeDuration | None = None
    """How long without a request makes the Model idle; unset, the backend's own time. 0 means
    that a Model that was woken stays awake."""

    cold_start_timeout: NonNegativeDuration = Field(default="60s", validate_default=True)
    """How long a request waits for a Model to wake. Backends that need longer to start get
    longer."""


class SecretReference(Model):
    """Name a Secret of the same namespace."""

    name: SecretName
    """Name of the Secret."""


class CacheSpec(Model):
    """Say where the weights are kept between restarts."""

    strategy: CacheStrategy | None = None
    """Memory, SharedPVC, Local or None; unset, Memory for shared GPUs and SharedPVC otherwise."""

    pvc_name: ClaimName | None = None
    """An existing PersistentVolumeClaim of this namespace to keep the weights in. It is never
    created or deleted."""

    storage_class: StorageClassName | None = None
    """Storage class of a claim made for the Model; unset, the cluster's default."""

    size: Annotated[NonNegativeQuantity, SIZE_RULE] = Field(default="50Gi", validate_default=True)
    """Size of a claim made for the Model."""

    host_path: HostPath = "/var/lib/flexinfer/models"
    """Directory on the node under which strategy Local keeps weights."""

    allow_patterns: tuple[FilePattern, ...] = Field(default=(), max_length=64)
    """Files of an `HF://` source to fetch, such as `*.safetensors`; unset, all of them."""

    ignore_patterns: tuple[FilePattern, ...] = Field(default=(), max_length=64)
    """Files of an `HF://` source not to fetch, even when allowPatterns names them."""

    revision: Revision | None = None
    """Branch, tag or commit of an `HF://` source; unset, its main branch."""

    token_secret_ref: SecretReference | None = None
    """Secret of this namespace whose key `token` opens gated `HF://` sources. Only the Job
    that fetches the weights sees it."""

    retain: bool = False
    """Keep the claim made for the Model when the Model is deleted. A Model of the same name
    takes it over."""


_NO_GPU_KEYS = " && ".join(f"!('{key}' in self.{{0}})" for key in GPU_RESOURCES)
RESOURCE_RULES = tuple(
    Rule(
        f"!has(self.{part}) || ({_NO_GPU_KEYS.format(part)})",
        f"spec.resources.{part} must not name {', '.join(GPU_RESOURCES)}; "
        "ask for GPUs with spec.gpu.count",
    )
    for part in ("limits", "requests")
)

ResourceList = Annotated[dict[str, NonNegativeQuantity], Field(max_length=32)]


class ResourceRequirements(Model):
    """Ask for CPU, memory and the like; GPUs are asked for with `spec.gpu`."""

    limits: ResourceList | None = None
    """The most that a replica may use, such as cpu and memory."""

    requests: ResourceList | None = None
    """What the scheduler sets aside for a replica."""


class Toleration(Model):
    """Let replicas go to nodes with a taint."""

    key: TaintKey = ""
    """Key of the taint; empty with operator Exists means every taint."""

    operator: TolerationOperator = TolerationOperator.EQUAL
    """Equal compares the value, Exists takes any."""

    value: LabelValue = ""
    """Value of the taint, for operator Equal."""

    effect: TaintEffect | None = None
    """Effect of the taint; unset means every effect."""

    toleration_seconds: int | None = Field(default=None, ge=0, le=2147483647)
    """How long a NoExecute taint is tolerated; unset means for ever."""


TOLERATION_RULES = (
    Rule(
        "(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')",
        "a toleration in spec.tolerations needs a key, unless its operator is Exists",
    ),
    Rule(
        "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
        "a toleration in spec.tolerations with operator Exists takes any value; "
        "remove value or use operator Equal",
    ),
    Rule(
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "tolerationSeconds in spec.tolerations needs effect NoExecute; "
        "set that effect or remove tolerationSeconds",
    ),
)


class LiteLLMSpec(Model):
    """Say under which names clients reach the Model."""

    enabled: bool = True
    """Whether the Model is offered to clients."""

    served_model_name: ServedName | None = None
    """The name that clients use; unset, the Model's own."""

    aliases: tuple[ServedName, ...] = Field(default=(), max_length=32)
    """Further names for the same Model."""

    copilot_alias: ServedName | None = None
    """The name that coding assistants use."""


class Capabilities(Model):
    """Say what the model can do, where that is not what its backend suggests."""

    tool_calling: bool | None = None
    """Whether the model calls tools."""

    vision: bool | None = None
    """Whether the model takes images."""

    image_generation: bool | None = None
    """Whether the model makes images."""


SOURCE_RULE = Rule(
    r"self.matches('^(HF://[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*"
    r"|ollama://[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)*(:[A-Za-z0-9_.-]+)?"
    r"|file:///.*[^/].*"
    r"|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/.*)?)$')"
    r" && !self.matches('(^|/)\\.\\.(/|$)')",
    "spec.source must be HF://org/name, ollama://name:tag, file:///path or pvc://claim/path, "
    "without '..'",
)

SPEC_RULES = (
    Rule(
        "!self.source.startsWith('pvc://') || !has(self.cache) || !has(self.cache.strategy)"
        " || self.cache.strategy != 'Memory'",
        "spec.cache.strategy must not be Memory with a pvc:// source; "
        "remove it or use SharedPVC, Local or None",
    ),
    Rule(
        "!has(self.cache) || !has(self.cache.pvcName) || !has(self.cache.strategy)"
        " || self.cache.strategy == 'SharedPVC'",
        "spec.cache.pvcName needs spec.cache.strategy SharedPVC; "
        "remove pvcName, or remove strategy or set it to SharedPVC",
    ),
)


class ModelSpec(Model):
    """Say which model to serve, with what, and on which hardware."""

    backend: str = Field(min_length=1, max_length=63)
    """The inference server: vllm, ollama, llamacpp or mlc-llm for text, vllm-omni, diffusers or
    comfyui for images. An unknown name is reported on the Schedulable condition."""

    source: Annotated[str, SOURCE_RULE] = Field(min_length=1, max_length=1024)
    """Where the weights come from: `HF://org/name`, `ollama://name:tag`, `file:///path` or
    `pvc://claim/path`."""

    gpu: Annotated[GPUSpec, *CPU_RULES] | None = None
    """GPUs per replica; absent means that the Model runs on CPUs."""

    serverless: ServerlessSpec | None = None
    """Scaling to zero; absent means that the Model scales to zero while idle."""

    cache: CacheSpec | None = None
    """Where the weights are kept between restarts."""

    config: Annotated[dict[str, Any], PreserveUnknown()] = Field(default_factory=dict)
    """Settings of the backend, such as maxModelLen for vllm. A value of the wrong type is
    reported on the Ready condition; keys that the backend does not know have no effect and are
    named there."""

    resources: Annotated[ResourceRequirements, *RESOURCE_RULES] | None = None
    """CPU and memory per replica."""

    node_selector: dict[str, LabelValue] = Field(default_factory=dict, max_length=32)
    """Labels that a node must have to run the Model."""

    tolerations: tuple[Annotated[Toleration, *TOLERATION_RULES], ...] = Field(
        default=(), max_length=16
    )
    """Taints that replicas accept, beside `dedicated=gpu:NoSchedule`, which every replica with
    GPUs accepts."""

    litellm: LiteLLMSpec | None = None
    """Names under which clients reach the Model; absent means by the Model's own name only."""

    service_labels: tuple[Group, ...] = Field(default=(), max_length=10)
    """Names of groups that requests can be sent to, such as textgen or code."""

    capabilities: Capabilities | None = None
    """What the model can do; what is unset follows from the backend and its config."""

    image: ImageName | None = None
    """Image to run instead of the backend's own."""

    image_digest: ImageDigest | None = None
    """SHA-256 digest that pins the image, whichever it is: 64 hexadecimal digits, with or
    without `sha256:` in front."""

    image_pull_policy: ImagePullPolicy | None = None
    """When to pull the image; unset, Kubernetes' rule: Always for the tag latest, otherwise
    IfNotPresent."""
