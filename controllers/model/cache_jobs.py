# SPDX-License-Identifier: Apache-2.0
"""The Jobs that bring weights into a claim, or look whether they are there. Pure.

A Job runs `flexinfer fetch` with arguments and environment alone: no shell reads what a user
wrote. Two hashes tell whether a Job is still the right one: *work* is what it does and to which
claim, *setup* is all the rest, such as image, token and place. Work that is done stays done
whatever the setup.
"""

from __future__ import annotations

import glob
import string
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_spec import CacheSpec, GPUVendor
from controllers.model import names
from controllers.model.cache import Work, fetched_path
from controllers.model.desired import tolerations
from flexinfer.apply.intent import clean, digest
from flexinfer.kinds.job import Job
from internal.backends.backend import MODELS_PATH
from internal.backends.config import literal
from internal.gpu.inventory import AMD_ARCHITECTURE, NVIDIA_MAJOR, OWN_ARCHITECTURE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from api.flexinfer.v1alpha2.model_types import Model
    from controllers.model.cache import Cache
    from flexinfer.meta.envelope import Tree

IMAGE_VARIABLE = "DEFAULT_FETCH_IMAGE"
ENDPOINT_VARIABLE = "HF_ENDPOINT"
CONTAINER = "fetch"

# How the fetcher says that trying again is no use.
_HOPELESS = 2
_SOURCE_PATH = "/source"
_SCRATCH_PATH = "/tmp"  # noqa: S108 - the pod's own
_USER = 65532  # that of the project's image
_BACKOFF_LIMIT = {Work.PREFETCH: 3, Work.COPY: 1, Work.CHECK: 1}
# Seconds, from the start of the Job: time for a terabyte at 100 Mbit/s, or for a place to run.
_DEADLINE = {Work.PREFETCH: 86400, Work.COPY: 86400, Work.CHECK: 3600}
# Labels that nodes with such GPUs usually carry.
_GPU_LABELS = {
    GPUVendor.AUTO: (AMD_ARCHITECTURE, NVIDIA_MAJOR, OWN_ARCHITECTURE),
    GPUVendor.NVIDIA: (NVIDIA_MAJOR, OWN_ARCHITECTURE),
    GPUVendor.AMD: (AMD_ARCHITECTURE, OWN_ARCHITECTURE),
}


def work_of(cache: Cache) -> Work:
    """Return what a Job has to do; raise ValueError when there is nothing."""
    if cache.work is None:
        raise ValueError("nothing has to be prepared: look at Cache.work before asking for a Job")
    return cache.work


def job_name(model: Model, work: Work) -> str:
    """Return the name of the Job that does *work* for the Model."""
    return f"{model.metadata.name}-cache-{work}"


def job_names(model: Model) -> tuple[str, ...]:
    """Return the names of all Jobs that a Model may have."""
    return tuple(job_name(model, work) for work in Work)


def fetch_image(environment: Mapping[str, str]) -> str:
    """Return the image that the Jobs run, empty when the manager was given none."""
    return environment.get(IMAGE_VARIABLE, "").strip()


def job(
    model: Model, cache: Cache, environment: Mapping[str, str], *, annotations: Mapping[str, str]
) -> Tree:
    """Return the Job that does `cache.work`, with *annotations* beside its own.

    They are on the pods as well, so that another try is another template, for which the applier
    makes the Job anew. *environment* holds DEFAULT_FETCH_IMAGE, and HF_ENDPOINT if that is not
    the public hub.
    """
    work = work_of(cache)
    own = {
        names.SOURCE_ANNOTATION: model.spec.source,
        names.CACHE_KIND_ANNOTATION: str(work),
        names.CACHE_CLAIM_ANNOTATION: cache.claim,
    }
    labels, annotations = names.cache_labels(model), own | dict(annotations)
    spec = _spec(model, cache, environment)
    pod = spec["template"]["spec"] | {"affinity": _near_gpus(model)}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}
    return {
        "apiVersion": Job.resource.api_version,
        "kind": Job.resource.kind,
        "metadata": {
            "name": job_name(model, work),
            "namespace": model.metadata.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": spec | {"template": template},
    }


def work_hash(model: Model, cache: Cache, uids: Sequence[str]) -> str:
    """Return what tells whether two Jobs do the same; *uids* are those of `cache.claims`."""
    what = {"args": list(arguments(model, cache)), "claims": list(cache.claims), "uids": list(uids)}
    return digest(what).hex()


def setup_hash(model: Model, cache: Cache, environment: Mapping[str, str]) -> str:
    """Return what tells whether two Jobs run alike."""
    return digest(clean(_spec(model, cache, environment))).hex()


def arguments(model: Model, cache: Cache) -> tuple[str, ...]:
    """Return the words after `flexinfer` that do `cache.work`."""
    source, target, work = str(cache.source), fetched_path(model, cache), work_of(cache)
    if work is Work.CHECK:
        place = f"{MODELS_PATH}/{cache.source.reference}".rstrip("/")
        return ("fetch", "check", "--source", source, "--path", place)
    if work is Work.COPY:
        place = f"{_SOURCE_PATH}/{cache.source.reference}".rstrip("/")
        return ("fetch", "copy", "--source", source, "--from", place, "--to", target)
    spec = model.spec.cache or CacheSpec()
    return (
        *("fetch", "hub", "--source", source, "--to", target),
        *(("--revision", spec.revision) if spec.revision else ()),
        # In one word with its option: a pattern may begin with a dash.
        *(f"--allow={pattern}" for pattern in patterns(spec.allow_patterns, cache.files)),
        *(f"--ignore={pattern}" for pattern in patterns(spec.ignore_patterns)),
    )


def patterns(said: Iterable[str], files: Iterable[str] = ()) -> tuple[str, ...]:
    """Return patterns in one spelling: trimmed, sorted, none twice, none outside the source.

    *files* are names, in which no character stands for others. So equal wishes give equal Jobs.
    """
    trimmed = {*map(_trim, said), *(glob.escape(_trim(file)) for file in files)}
    return tuple(sorted(p for p in trimmed if p and ".." not in p.split("/")))


def _trim(pattern: str) -> str:
    return pattern.strip().lstrip(f"/{string.whitespace}")


def _spec(model: Model, cache: Cache, environment: Mapping[str, str]) -> Tree:
    work = work_of(cache)
    hopeless = {"containerName": CONTAINER, "operator": "In", "values": [_HOPELESS]}
    drained = {"type": "DisruptionTarget", "status": "True"}
    return {
        "backoffLimit": _BACKOFF_LIMIT[work],
        "activeDeadlineSeconds": _DEADLINE[work],
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": hopeless},
                {"action": "Ignore", "onPodConditions": [drained]},
            ]
        },
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                # Where the Model may run: a claim may be bound to the node that uses it first.
                "nodeSelector": model.spec.node_selector or None,
                "tolerations": tolerations(model) or None,
                "securityContext": _pod_security(work),
                "containers": [_container(model, cache, environment)],
                "volumes": _volumes(cache),
            }
        },
    }


def _near_gpus(model: Model) -> Tree | None:
    """Prefer nodes with GPUs, for a claim that is bound to the node that uses it first.

    No label is sure to be there, so it is no more than a wish.
    """
    if not model.gpu_count or model.spec.gpu is None:
        return None
    terms = [
        {
            "weight": 100,
            "preference": {"matchExpressions": [{"key": label, "operator": "Exists"}]},
        }
        for label in _GPU_LABELS[model.spec.gpu.vendor]
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def _pod_security(work: Work) -> Tree:
    """Return what Pod Security calls restricted; a check leaves a claim's files as they are."""
    security: Tree = {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if work is not Work.CHECK:
        security |= {"fsGroup": _USER, "fsGroupChangePolicy": "OnRootMismatch"}
    return security


def _container(model: Model, cache: Cache, environment: Mapping[str, str]) -> Tree:
    mounts = [{"name": "model", "mountPath": MODELS_PATH}]
    if cache.work is Work.COPY:
        mounts.append({"name": "source", "mountPath": _SOURCE_PATH})
    return {
        "name": CONTAINER,
        "image": fetch_image(environment),
        "imagePullPolicy": "IfNotPresent",
        "command": ["flexinfer"],
        # A pattern such as $(HF_TOKEN) stays one.
        "args": [literal(word) for word in arguments(model, cache)],
        "env": _variables(model, cache, environment),
        "resources": {
            "requests": {"cpu": "100m", "memory": "1Gi"},
            "limits": {"memory": "8Gi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, {"name": "scratch", "mountPath": _SCRATCH_PATH}],
    }


def _variables(model: Model, cache: Cache, environment: Mapping[str, str]) -> Sequence[Tree]:
    if cache.work is not Work.PREFETCH:
        return []
    variables: list[Tree] = [{"name": "HF_HOME", "value": f"{_SCRATCH_PATH}/huggingface"}]
    if endpoint := environment.get(ENDPOINT_VARIABLE, "").strip():
        variables.append({"name": ENDPOINT_VARIABLE, "value": endpoint})
    if model.spec.cache and model.spec.cache.token_secret_ref:
        secret = {"name": model.spec.cache.token_secret_ref.name, "key": "token"}
        variables.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    return variables


def _volumes(cache: Cache) -> Sequence[Tree]:
    volumes = [{"name": "model", **_claim(cache.claim, read_only=cache.work is Work.CHECK)}]
    if cache.source_claim:
        volumes.append({"name": "source", **_claim(cache.source_claim, read_only=True)})
    return [*volumes, {"name": "scratch", "emptyDir": {}}]


def _claim(name: str, *, read_only: bool) -> Tree:
    # On the volume and not on the mount alone, or else the kubelet hands its files to fsGroup.
    return {"persistentVolumeClaim": {"claimName": name, "readOnly": read_only or None}}
