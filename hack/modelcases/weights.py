# SPDX-License-Identifier: Apache-2.0
"""Models whose weights are to be brought, their claims, Jobs and pods, and what follows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from api.flexinfer.v1alpha2.model_status import ModelStatus
from api.flexinfer.v1alpha2.model_types import Model
from controllers.model.cache import Cache, plan_cache
from controllers.model.cache_run import Seen
from controllers.model.cache_state import CacheState, observe
from flexinfer.kinds.job import Job
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import meta_from
from hack.modelcases import NOW
from internal.backends.source import parse_source
from internal.backends.vllm import VLLM

if TYPE_CHECKING:
    from datetime import datetime

    from flexinfer.meta.envelope import Tree

HUB, PVC, FILE = "HF://o/m", "pvc://weights/sub", "file:///srv/m"
ENVIRONMENT = {"DEFAULT_FETCH_IMAGE": "registry.example/flexinfer:v1"}
FAILED_AT = "2026-01-02T03:04:00Z"
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 1}
SIZE = '{"bytes": 42, "files": 2}'


def failed(reason: str = "BackoffLimitExceeded", *, at: str = FAILED_AT) -> Tree:
    """Return the status of a Job that failed for good."""
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": reason,
        "message": f"the Job says {reason}",
        "lastTransitionTime": at,
    }
    return {"failed": 4, "conditions": [condition]}


def model(source: str = HUB, cache: Tree | None = None, *, name: str = "m") -> Model:
    """Return a Model of *source*, with *cache* in its spec."""
    meta = meta_from({"name": name, "namespace": "ns", "uid": "u", "generation": 3})
    block = {} if cache is None else {"cache": cache}
    return Model.model_validate(
        {"metadata": meta, "spec": {"backend": "vllm", "source": source, **block}}
    )


def claim(name: str = "m-cache", phase: str = "Bound", **meta: str) -> PersistentVolumeClaim:
    """Return a claim as the API server has it."""
    made = {"creationTimestamp": "2026-01-01T00:00:00Z", "uid": f"uid-{name}"}
    tree = {"name": name, "namespace": "ns", **made, **meta}
    return PersistentVolumeClaim.model_validate(
        {"metadata": meta_from(tree), "status": {"phase": phase}}
    )


def plan(of: Model) -> Cache:
    """Return what is to be done for the weights of *of*."""
    return plan_cache(of, parse_source(of.spec.source), VLLM)


def look(
    of: Model,
    *,
    environment: dict[str, str] | None = None,
    now: datetime = NOW,
    **seen: Any,
) -> CacheState:
    """Return what follows for *of* from what is seen."""
    env = ENVIRONMENT if environment is None else environment
    return observe(of, plan(of), Seen(**seen), env, now=now)


def made_for(of: Model, status: Tree | None = None, *, uid: str = "j1", **meta: Any) -> Job:
    """Return the Job that is made for *of*, as it is found again."""
    cache = plan(of)
    source = claim("weights") if cache.source_claim else None
    wanted = look(of, claim=claim(cache.claim), source_claim=source).job
    if wanted is None:
        raise AssertionError("no Job is made for this Model")
    annotations = wanted["metadata"]["annotations"] | meta.pop("annotations", {})
    tree = {"name": wanted["metadata"]["name"], "uid": uid, "annotations": annotations, **meta}
    return Job.model_validate({"metadata": meta_from(tree), "status": status or {}})


def pod(
    phase: str = "Running",
    message: str = "",
    *,
    uid: str = "j1",
    name: str = "p",
    job: str = "m-cache-prefetch",
    at: str = "2026-01-02T00:00:00Z",
    **status: Any,
) -> Pod:
    """Return a pod of a Job; *message* is how it ended, if it has."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": True}
    meta = meta_from({"name": name, "creationTimestamp": at, "ownerReferences": [owner]})
    code = 0 if phase == "Succeeded" else 1
    end = (
        {"terminated": {"exitCode": code, "message": message}}
        if phase in {"Failed", "Succeeded"}
        else {}
    )
    found = [{"name": "fetch", "state": end}]
    return Pod.model_validate(
        {"metadata": meta, "status": {"phase": phase, "containerStatuses": found, **status}}
    )


def annotation(state: CacheState, name: str) -> str:
    """Return an annotation of the Job that is to be made, or ""; its pods have the same ones."""
    if state.job is None:
        raise AssertionError("no Job is to be made")
    found = state.job["metadata"]["annotations"]
    if state.job["spec"]["template"]["metadata"]["annotations"] != found:
        raise AssertionError(f"the pods of the Job have other annotations than {found}")
    return str(found.get(name, ""))


def cached_status(of: Model, *, since: str = "2026-01-01T12:00:00Z", **cache: Any) -> ModelStatus:
    """Return the status of a Model whose weights are in its claim."""
    condition = {
        "type": "Cached",
        "status": "True",
        "lastTransitionTime": since,
        "reason": "PrefetchSucceeded",
        "message": "",
    }
    status = {"ready": True, "pvcName": "m-cache", "jobName": "m-cache-prefetch", **cache}
    tree = {
        "observedGeneration": of.metadata.generation,
        "conditions": [condition],
        "cache": status,
    }
    return ModelStatus.model_validate(tree)
