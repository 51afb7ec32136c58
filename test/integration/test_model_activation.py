# SPDX-License-Identifier: Apache-2.0
"""Models that scale to zero: woken by the signal or by the annotation, and idle again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from controllers.model.names import ACTIVATE_ANNOTATION
from flexinfer.envtest.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import Tree

    Run = Callable[..., AbstractAsyncContextManager[Manager]]


IDLE = timedelta(seconds=1)


def annotate(models: Any, name: str, value: str) -> None:
    body = {"metadata": {"annotations": {ACTIVATE_ANNOTATION: value}}}
    models.plane.admin.merge(models.path("models", name), body)


async def test_a_model_walks_from_idle_through_starting_to_ready_and_is_idle_again(
    models: Any, controller: Run, h100s: Tree
) -> None:
    spec = models.gpu_spec(h100s, serverless={"idleTimeout": "4s"})
    models.create("sleeper", spec)
    async with controller():
        idle = await models.reaches("sleeper", "WaitingForActivation", phase="Idle")
        assert "lastActiveTime" not in idle["status"]
        assert models.get("deployments", "sleeper")["spec"]["replicas"] == 0
        annotate(models, "sleeper", "now")
        awake = await models.reaches("sleeper", "BackendReady", phase="Ready")
        assert awake["status"]["lastActiveTime"]
        annotations = awake["metadata"].get("annotations", {})
        assert ACTIVATE_ANNOTATION not in annotations
        await models.reaches("sleeper", "WaitingForActivation", phase="Idle")
        await eventually(lambda: not models.pods("sleeper"))


async def test_a_loading_model_says_what_it_is_at_and_is_not_reaped(
    models: Any, controller: Run, h100s: Tree
) -> None:
    spec = models.gpu_spec(h100s, serverless={"idleTimeout": f"{IDLE.seconds}s"})
    models.create("loader", spec)
    async with controller():
        await models.reaches("loader", "WaitingForActivation", phase="Idle")
        hold(models, "loader")
        annotate(models, "loader", "now")
        loading = await models.reaches("loader", "StartingBackend", phase="Loading")
        assert loading["status"]["loadingSubstage"] in {"Initializing", "HealthCheckPending"}
        asked = datetime.fromisoformat(loading["status"]["lastActiveTime"])
        await eventually(lambda: datetime.now(UTC) > asked + 4 * IDLE)
        await models.reaches("loader", "StartingBackend", phase="Loading")
        assert models.pods("loader")


def hold(models: Any, name: str) -> None:
    """Let pods of the Model run without ever becoming ready."""
    body = {
        "spec": {
            "template": {
                "metadata": {"annotations": {"envtest.flexinfer.ai/behaviour": "never-ready"}}
            }
        }
    }
    models.plane.admin.merge(models.path("deployments", name), body)
