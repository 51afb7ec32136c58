# SPDX-License-Identifier: Apache-2.0
"""The Service and the Deployment of a Model, as plain dicts that read like their YAML. Pure.

An intent names only what this controller has an opinion on: no field that the API server
allocates or defaults, such as a Service's type and addresses.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from controllers.model import names
from controllers.model.cache import model_volume
from controllers.model.metadata import (
    managed_annotations,
    pod_annotations,
    pod_labels,
)
from controllers.model.placement import Spread, template_hash
from flexinfer.errors import ConfigurationError
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.service import Service
from flexinfer.meta.quantity import Quantity
from internal.backends.backend import MODELS_PATH
from internal.backends.source import Scheme
from internal.gpu.accelerator import Vendor
from internal.gpu.detection import GPU_TAINT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from api.flexinfer.v1alpha2.model_types import Model
    from controllers.model.decision import Plan
    from flexinfer.meta.envelope import Tree

_SHM_VARIABLE, _SHM_SIZE = "DEFAULT_SHM_SIZE_LIMIT", "8Gi"
_HUGGING_FACE_CACHE = f"{MODELS_PATH}/.cache/huggingface"
# The groups that own /dev/kfd and /dev/dri on the common distributions: video and render.
_AMD_DEVICE_GROUPS = (109, 992)
_STARTUP_PERIOD = 5
_HEAVIEST = 100  # of a preferred term, by Kubernetes' rule


def selector(model: Model, live: Deployment | None) -> dict[str, str]:
    """Return the labels that select the pods: those of *live*, since they never change.

    *live* is the Model's own Deployment, or None.
    """
    if live is not None and live.spec.selector.match_labels:
        return dict(live.spec.selector.match_labels)
    return names.selector_labels(model)


def service(
    model: Model, plan: Plan, labels: Mapping[str, str], *, active: str | None = None
) -> Tree:
    """Return the Service; it selects the pods by *labels*, as their Deployment does.

    So old and new pods stay behind it during a rollout, whatever the selector was made of.
    *active* are the names that the Model of a group answers for now, None outside of groups.
    """
    port = plan.backend.port
    metadata = _metadata(model, plan)
    if active is not None:
        metadata["annotations"] |= {names.ACTIVE_SERVICES_ANNOTATION: active}
    return {
        "apiVersion": Service.resource.api_version,
        "kind": Service.resource.kind,
        "metadata": metadata,
        "spec": {
            "selector": dict(labels),
            "ports": [{"name": names.PORT, "port": port, "targetPort": port, "protocol": "TCP"}],
        },
    }


def deployment(
    model: Model, plan: Plan, labels: Mapping[str, str], environment: Mapping[str, str]
) -> Tree:
    """Return the Deployment whose selector is *labels*; the template carries them all.

    *environment* may hold DEFAULT_SHM_SIZE_LIMIT.
    """
    template: Tree = {
        "metadata": {
            "labels": {**pod_labels(model, plan), **labels},
            "annotations": pod_annotations(model, plan),
        },
        "spec": _pod_spec(model, plan, labels, shm_size(environment)),
    }
    metadata = _metadata(model, plan)
    hashed = names.INHERITED if plan.keeps_template else template_hash(template)
    metadata["annotations"] |= {
        names.GENERATION_ANNOTATION: str(model.metadata.generation),
        names.PLACEMENT_ANNOTATION: plan.placement.encode(),
        names.TEMPLATE_ANNOTATION: hashed,
    }
    return {
        "apiVersion": Deployment.resource.api_version,
        "kind": Deployment.resource.kind,
        "metadata": metadata,
        "spec": {
            "replicas": plan.replicas,
            "selector": {"matchLabels": dict(labels)},
            "strategy": _strategy(plan),
            **({} if plan.keeps_template else {"template": template}),
        },
    }


def shm_size(environment: Mapping[str, str]) -> str:
    """Return how much shared memory a pod may use; raise ConfigurationError for no quantity."""
    size = environment.get(_SHM_VARIABLE, "").strip() or _SHM_SIZE
    try:
        Quantity.parse(size)
    except ConfigurationError as error:
        raise ConfigurationError(f"{_SHM_VARIABLE}: {error}") from None
    return size


def tolerations(model: Model) -> Sequence[Tree]:
    """Return the toleration of GPU nodes beside the Model's own, none twice."""
    key, value, effect = GPU_TAINT
    gpu = {"key": key, "operator": "Equal", "value": value, "effect": effect}
    wanted = [gpu] if model.gpu_count else []
    for toleration in model.spec.tolerations:
        tree = {name: v for name, v in toleration.wire().items() if v != ""}
        if tree not in wanted:
            wanted.append(tree)
    return wanted


def _metadata(model: Model, plan: Plan) -> Tree:
    return {
        "name": model.metadata.name,
        "namespace": model.metadata.namespace,
        "labels": pod_labels(model, plan),
        "annotations": managed_annotations(model, plan),
    }


def _strategy(plan: Plan) -> Tree | None:
    """End an old pod first if its successor asks for what it holds: GPUs, its node, a volume."""
    if not plan.launch.accelerator.count and plan.most <= 1 and not plan.claim:
        return None
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def _pod_spec(model: Model, plan: Plan, labels: Mapping[str, str], shm_size: str) -> Tree:
    accelerator = plan.launch.accelerator
    on_nvidia = accelerator.count > 0 and accelerator.vendor is Vendor.NVIDIA
    return {
        "automountServiceAccountToken": False,
        # A Service named after the backend would set variables such as VLLM_PORT in every pod.
        "enableServiceLinks": False,
        "runtimeClassName": "nvidia" if on_nvidia else None,
        "nodeSelector": model.spec.node_selector or None,
        "tolerations": tolerations(model) or None,
        "affinity": _apart(labels, plan.spread),
        "topologySpreadConstraints": _evenly(labels),
        "securityContext": _pod_security(plan),
        "containers": [_container(model, plan)],
        "volumes": [
            {"name": "model", **model_volume(model, plan.cache)},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm_size}},
        ],
    }


def _apart(labels: Mapping[str, str], spread: Spread) -> Tree:
    """Keep replicas on nodes of their own, as a rule or as a wish; see `placement`."""
    term = {
        "labelSelector": {"matchLabels": dict(labels)},
        "topologyKey": "kubernetes.io/hostname",
    }
    if spread is Spread.REQUIRED:
        # Among the pods of one template: those of the last one would keep the next off their
        # nodes, and a rollout that relaxes the rule would wait for a place for ever.
        rule = term | {"matchLabelKeys": ["pod-template-hash"]}
        return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
    wish = {"weight": _HEAVIEST, "podAffinityTerm": term}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}


def _evenly(labels: Mapping[str, str]) -> Sequence[Tree]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(labels)},
        }
    ]


def _pod_security(plan: Plan) -> Tree:
    accelerator = plan.launch.accelerator
    on_amd = accelerator.count > 0 and accelerator.vendor is Vendor.AMD
    return {
        "seccompProfile": {"type": "RuntimeDefault"},
        "supplementalGroups": list(_AMD_DEVICE_GROUPS) if on_amd else None,
    }


def _container(model: Model, plan: Plan) -> Tree:
    backend, launch = plan.backend, plan.launch
    startup, readiness = backend.startup_probe, backend.readiness
    attempts = math.ceil(plan.startup_seconds / _STARTUP_PERIOD)
    return {
        "name": names.CONTAINER,
        "image": plan.image,
        "imagePullPolicy": model.spec.image_pull_policy,
        "command": list(backend.command) or None,
        "args": list(backend.arguments(launch)),
        "env": [{"name": name, "value": value} for name, value in _variables(plan).items()],
        "ports": [{"name": names.PORT, "containerPort": backend.port, "protocol": "TCP"}],
        "resources": _resources(model, plan),
        "startupProbe": startup.check(names.PORT)
        | {"periodSeconds": _STARTUP_PERIOD, "failureThreshold": attempts},
        "readinessProbe": readiness.check(names.PORT)
        | {
            "periodSeconds": readiness.period_seconds,
            "failureThreshold": readiness.failure_threshold,
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "model", "mountPath": MODELS_PATH},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's own shared memory
        ],
    }


def _variables(plan: Plan) -> Mapping[str, str]:
    variables = dict(plan.backend.environment(plan.launch))
    if plan.launch.source.scheme is Scheme.HUGGING_FACE:
        hub = f"{_HUGGING_FACE_CACHE}/hub"
        variables |= {
            "HF_HOME": _HUGGING_FACE_CACHE,
            "HF_HUB_CACHE": hub,
            "HUGGINGFACE_HUB_CACHE": hub,
            "TRANSFORMERS_CACHE": hub,
        }
    return dict(sorted(variables.items()))


def _resources(model: Model, plan: Plan) -> Tree:
    """Return the Model's resources; GPUs go to the limits, from where they are requested too."""
    resources: Tree = model.spec.resources.wire() if model.spec.resources else {}
    accelerator = plan.launch.accelerator
    if accelerator.count:
        gpus = {accelerator.vendor.resource: str(accelerator.count)}
        resources["limits"] = resources.get("limits", {}) | gpus
    return resources
