# SPDX-License-Identifier: Apache-2.0
"""Is every object in its right state: by what was asked for, and by what users read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hack.localcluster.expectations import ready_condition
from hack.soak.world import MODELS, NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.admin import Admin
    from flexinfer.meta.envelope import Tree
    from hack.soak.world import Wish, World

_DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
_SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_LABEL = "flexinfer.ai/model"


def faults(admin: Admin, world: World) -> list[str]:
    """Return a line for everything that is not as it should be; empty when all is right."""
    models = _by_name(admin, MODELS)
    deployments = _by_name(admin, _DEPLOYMENTS)
    services = _by_name(admin, _SERVICES)
    kinds = (("Model", models), ("Deployment", deployments), ("Service", services))
    pods: dict[str, int] = {}
    for pod in admin.get(_PODS)["items"]:
        owner = pod["metadata"]["labels"].get(_LABEL, "")
        pods[owner] = pods.get(owner, 0) + ("deletionTimestamp" not in pod["metadata"])
    found: list[str] = []
    for name, wish in world.wishes.items():
        if wish is None:
            found += [f"{name}: deleted, but its {k} is there" for k, o in kinds if name in o]
            continue
        try:
            problems = _problems(wish, models[name], deployments[name], services[name])
            found += [f"{name}: {problem}" for problem in problems]
        except KeyError as missing:
            found.append(f"{name}: an object or a field is missing: {missing}")
        if pods.get(name, 0) != wish.replicas:
            found.append(f"{name}: {pods.get(name, 0)} pods, not {wish.replicas}")
    strangers = (set(deployments) | set(pods)) - {n for n, w in world.wishes.items() if w} - {""}
    return found + [f"{name}: belongs to no Model" for name in sorted(strangers)]


def _problems(wish: Wish, model: Tree, deployment: Tree, service: Tree) -> Iterator[str]:
    status, ready = model["status"], ready_condition(model)
    if status["observedGeneration"] != model["metadata"]["generation"]:
        yield f"status is of generation {status['observedGeneration']}"
    wanted = ("True", "BackendReady") if wish.replicas else ("False", "WaitingForActivation")
    if (ready.get("status"), ready.get("reason")) != wanted:
        yield f"Ready={ready.get('status')}/{ready.get('reason')}: {ready.get('message')}"
    if deployment["spec"]["replicas"] != wish.replicas:
        yield f"{deployment['spec']['replicas']} replicas, not {wish.replicas}"
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    if str(wish.context_size) not in arguments:
        yield f"arguments without the context size {wish.context_size}"
    for child in (deployment, service):
        owners = [owner["uid"] for owner in child["metadata"].get("ownerReferences", ())]
        if owners != [model["metadata"]["uid"]]:
            yield f"{child['metadata']['name']} is owned by {owners}"
    if service["spec"]["ports"][0]["port"] <= 0:
        yield "a Service without a port"


def _by_name(admin: Admin, path: str) -> dict[str, Tree]:
    items: list[Tree] = admin.get(path)["items"]
    skipped = {"kubernetes"}
    return {i["metadata"]["name"]: i for i in items if i["metadata"]["name"] not in skipped}
