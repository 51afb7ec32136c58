# SPDX-License-Identifier: Apache-2.0
"""Models that share GPUs: one has them, the others are told by whom, and never do two."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from controllers.model.names import ACTIVATE_ANNOTATION, ACTIVE_SERVICES_ANNOTATION
from flexinfer.envtest.behaviour import BEHAVIOUR, Behaviour
from flexinfer.envtest.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import Tree

    Run = Callable[..., AbstractAsyncContextManager[Manager]]


def member(models: Any, selector: Tree, *, priority: int, least: int = 0, **gpu: object) -> Tree:
    spec: Tree = models.gpu_spec(
        selector,
        gpu={"vendor": "nvidia", "shared": "desk", "priority": priority, **gpu},
        serverless={"minReplicas": least},
        serviceLabels=["chat"],
    )
    return spec


def wake(models: Any, name: str) -> None:
    body = {"metadata": {"annotations": {ACTIVATE_ANNOTATION: "now"}}}
    models.plane.admin.merge(models.path("models", name), body)


def active_services(models: Any, name: str) -> object:
    return models.get("services", name)["metadata"]["annotations"][ACTIVE_SERVICES_ANNOTATION]


async def test_demand_of_a_higher_priority_preempts_and_never_do_two_have_pods(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("low", member(models, h100s, priority=100, least=1))
    models.create("high", member(models, h100s, priority=200))
    async with controller():
        await models.reaches("low", "BackendReady", phase="Ready")
        await models.reaches("high", "WaitingForActivation", phase="Idle")
        assert (active_services(models, "low"), active_services(models, "high")) == ("chat", "")
        wake(models, "high")
        together = await pods_together(models, until="high")
        assert not together
        await models.reaches("high", "BackendReady", phase="Ready")
        why = "high has its turn in group desk; high has a higher priority, 200 to 100, and leads"
        lost = await models.reaches("low", "Preempted", phase="Preempted", text=why)
        assert (active_services(models, "low"), active_services(models, "high")) == ("", "chat")
        events = models.plane.admin.get(
            f"/apis/events.k8s.io/v1/namespaces/{models.namespace}/events"
        )["items"]
    shared = lost["status"]["sharedGroup"]
    assert (shared["state"], shared["preemptedBy"]) == ("Preempted", "high")
    assert shared["preemptedAt"]
    assert "Preempted" in {event["reason"] for event in events}


async def pods_together(models: Any, *, until: str) -> list[set[str]]:
    """Watch the pods until *until* has a ready one; return the moments at which two had some."""
    seen: list[set[str]] = []

    def look() -> bool:
        pods = models.plane.admin.get(models.path("pods"))["items"]
        owners = {pod["metadata"]["labels"]["flexinfer.ai/model"] for pod in pods}
        if len(owners) > 1:
            seen.append(owners)
        ready = [pod for pod in pods if "True" in ready_of(pod)]
        return until in {pod["metadata"]["labels"]["flexinfer.ai/model"] for pod in ready}

    await eventually(partial(to_thread.run_sync, look), within=30, every=0.01)
    return seen


def ready_of(pod: Tree) -> list[str]:
    conditions = pod.get("status", {}).get("conditions", ())
    return [c["status"] for c in conditions if c["type"] == "Ready"]


async def test_a_leader_that_becomes_invalid_gives_its_gpus_up(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("broken", member(models, h100s, priority=100, least=1))
    models.create("next", member(models, h100s, priority=100, swapCooldown="0s"))
    async with controller():
        await models.reaches("broken", "BackendReady", phase="Ready")
        models.change("broken", {"config": {"maxModelLen": "many"}})
        await models.reaches("broken", "InvalidSpec", phase="Failed")
        wake(models, "next")
        await models.reaches("next", "BackendReady", phase="Ready")
        await eventually(lambda: not models.pods("broken"))
        assert models.condition("broken")["reason"] == "InvalidSpec"


async def test_a_member_that_cannot_start_gives_the_gpus_back_and_does_not_take_them_again(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("well", member(models, h100s, priority=100, least=1, swapCooldown="0s"))
    models.create("sick", member(models, h100s, priority=200))
    async with controller():
        await models.reaches("well", "BackendReady", phase="Ready")
        await models.reaches("sick", "WaitingForActivation", phase="Idle")
        broken = {"metadata": {"annotations": {BEHAVIOUR: Behaviour.IMAGE_PULL_FAILURE}}}
        models.plane.admin.merge(models.path("deployments", "sick"), {"spec": {"template": broken}})
        wake(models, "sick")
        await models.reaches("sick", "Preempted", text="sick could not start at", within=60)
        await models.reaches("well", "BackendReady", phase="Ready")
        wake(models, "sick")
        await eventually(lambda: not annotated(models, "sick"))
        await models.reaches("sick", "Preempted", phase="Preempted")
        await models.reaches("well", "BackendReady", phase="Ready")
    assert models.get("models", "sick")["status"]["sharedGroup"]["failedAt"]


def annotated(models: Any, name: str) -> bool:
    return ACTIVATE_ANNOTATION in models.get("models", name)["metadata"].get("annotations", {})


async def test_a_member_whose_deletion_is_held_up_keeps_no_gpu(
    models: Any, controller: Run, h100s: Tree
) -> None:
    path = models.path("models", "leaving")
    models.create("leaving", member(models, h100s, priority=200, least=1))
    models.create("staying", member(models, h100s, priority=100, least=1))
    async with controller():
        await models.reaches("leaving", "BackendReady", phase="Ready")
        models.plane.admin.merge(path, {"metadata": {"finalizers": ["example.com/held"]}})
        models.plane.admin.delete(path)
        try:
            await models.reaches("staying", "BackendReady", phase="Ready")
            assert not models.pods("leaving")
        finally:
            models.plane.admin.merge(path, {"metadata": {"finalizers": None}})
