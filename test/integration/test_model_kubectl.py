# SPDX-License-Identifier: Apache-2.0
"""Models as an operator handles them: with kubectl alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import yaml
from anyio import to_thread

from flexinfer.envtest.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    import pytest

    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import Tree

    Run = Callable[..., AbstractAsyncContextManager[Manager]]


class Kubectl:
    """kubectl in one namespace, run beside the event loop."""

    def __init__(self, models: Any) -> None:
        self.plane, self.namespace = models.plane, models.namespace

    async def __call__(self, *args: str, stdin: str | None = None) -> str:
        run = partial(self.plane.kubectl, "--namespace", self.namespace, *args, stdin=stdin)
        return str(await to_thread.run_sync(run))


def manifest(models: Any, name: str, spec: Tree) -> str:
    head = {"apiVersion": "ai.flexinfer/v1alpha2", "kind": "Model"}
    metadata = {"name": name, "namespace": models.namespace}
    return yaml.safe_dump(head | {"metadata": metadata, "spec": spec})


async def test_apply_wait_explain_edit_scale_and_delete(
    models: Any,
    controller: Run,
    h100s: Tree,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kubectl = Kubectl(models)
    spec = models.gpu_spec(h100s, config={"maxModelLen": 1024})
    text = manifest(models, "handled", spec)
    async with controller():
        await kubectl("apply", "-f", "-", stdin=text)
        await kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
        await kubectl("wait", "--for=condition=Ready", "mdl/handled", "--timeout=30s")
        assert "inference server" in await kubectl("explain", "mdl.spec.backend")
        editor = tmp_path / "editor"
        editor.write_text('#!/bin/sh\nsed -i "s/maxModelLen: 1024/maxModelLen: 2048/" "$1"\n')
        editor.chmod(0o755)
        monkeypatch.setenv("KUBE_EDITOR", str(editor))
        await kubectl("edit", "mdl", "handled")
        await eventually(lambda: has_argument(models, "handled", "2048"))
        await kubectl("scale", "deployment/handled", "--replicas=3")
        await eventually(lambda: models.get("deployments", "handled")["spec"]["replicas"] == 1)
        row = (await kubectl("get", "mdl", "handled", "--no-headers")).split()
        assert row[:2] == ["handled", "vllm"]
        await kubectl("delete", "mdl", "handled", "--wait=true")
    await eventually(lambda: not models.pods("handled"), within=90)


def has_argument(models: Any, name: str, argument: str) -> bool:
    template = models.get("deployments", name)["spec"]["template"]
    return argument in template["spec"]["containers"][0]["args"]


async def test_the_yaml_of_a_model_alone_says_why_it_is_not_ready(
    models: Any, controller: Run, h100s: Tree
) -> None:
    kubectl = Kubectl(models)
    specs = {
        "nowhere": {"nodeSelector": {"example.com/rack": "none"}},
        "cpu-only": {"gpu": None},
        "asleep": {"serverless": {}},
    }
    says = {
        "nowhere": ("NoMatchingNodes", "looked for a Ready, schedulable node"),
        "cpu-only": ("BackendUnsupported", "backend vllm does not run on CPUs"),
        "asleep": ("WaitingForActivation", "flexinfer wake asleep"),
    }
    async with controller():
        for name, more in specs.items():
            spec = {k: v for k, v in (models.gpu_spec(h100s) | more).items() if v is not None}
            await kubectl("apply", "-f", "-", stdin=manifest(models, name, spec))
        for name, (reason, words) in says.items():
            await models.reaches(name, reason)
            shown = await kubectl("get", "mdl", name, "-o", "yaml")
            assert reason in shown
            assert words in " ".join(shown.split())
            assert words in await kubectl("get", "mdl", name, "-o", "wide")
