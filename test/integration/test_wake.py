# SPDX-License-Identifier: Apache-2.0
"""Models are woken by annotation and by hand, on a real API server."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import yaml
from anyio.streams.text import TextReceiveStream

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import names
from controllers.model.waking import FIELD_MANAGER, Waking, last_active_changed, wake
from flexinfer.apply import StatusWriter
from flexinfer.builder import controller_for
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.eventually import eventually
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.envelope import meta_from
from flexinfer.metrics import Registry
from flexinfer.predicate import annotations_changed, any_of, generation_changed
from flexinfer.reconcile import Request, Result

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from anyio.abc import ByteReceiveStream

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree

SPEC: Tree = {"backend": "ollama", "source": "ollama://mistral:7b"}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@asynccontextmanager
async def connected(plane: ControlPlane) -> AsyncIterator[Transport]:
    credentials = StaticCredentials(
        plane.url, token=plane.admin_token, context=client_context(plane.ca_file.read_text())
    )
    async with Transport(credentials) as transport:
        yield transport


def annotate(models: Any, name: str, value: str) -> None:
    models.plane.kubectl(
        *("annotate", f"mdl/{name}", "-n", models.namespace, "--overwrite"),
        f"{names.ACTIVATE_ANNOTATION}={value}",
    )


def annotation(models: Any, name: str) -> str | None:
    annotations = models.get("models", name)["metadata"].get("annotations", {})
    value: str | None = annotations.get(names.ACTIVATE_ANNOTATION)
    return value


def managers_of_the_signal(model: Tree) -> list[tuple[str, str, str]]:
    return [
        (entry["manager"], entry["operation"], entry.get("subresource", ""))
        for entry in model["metadata"]["managedFields"]
        if "f:lastActiveTime" in entry["fieldsV1"].get("f:status", {})
    ]


def ready(generation: int, *, holds: bool, message: str) -> Tree:
    return {
        "type": "Ready",
        "status": "True" if holds else "False",
        "reason": "R",
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


async def test_the_signal_has_its_own_manager_and_outlives_the_controllers_status(
    control_plane: ControlPlane, models: Any
) -> None:
    meta = meta_from(models.create("chat", SPEC)["metadata"])
    async with connected(control_plane) as transport:
        client = DirectClient(transport)
        writer = StatusWriter(
            client, field_manager=names.FIELD_MANAGER, foreign=("lastActiveTime",)
        )
        await writer.write(Model.resource, meta, {"phase": "Idle", "message": "idle"})
        await wake(client, meta, now=NOON)
        await writer.write(Model.resource, meta, {"phase": "Loading"})
        woken = models.get("models", "chat")
        assert woken["status"] == {"phase": "Loading", "lastActiveTime": "2026-01-01T12:00:00Z"}
        assert managers_of_the_signal(woken) == [(FIELD_MANAGER, "Apply", "status")]
        await wake(client, meta, now=NOON + timedelta(milliseconds=999))
        same = models.get("models", "chat")["metadata"]["resourceVersion"]
        assert same == woken["metadata"]["resourceVersion"]


async def test_of_two_annotations_none_is_lost(control_plane: ControlPlane, models: Any) -> None:
    models.create("chat", SPEC)
    times = iter([NOON, NOON + timedelta(minutes=1)])
    async with connected(control_plane) as transport:
        client = DirectClient(transport)
        waking = Waking(client, now=lambda: next(times))

        async def read() -> Model:
            model = await client.get(Model, Request(models.namespace, "chat"))
            assert model is not None
            return model

        annotate(models, "chat", "first")
        first = await read()
        assert await waking.heed(first.metadata) == NOON
        annotate(models, "chat", "second")
        await waking.settle(first.metadata)
        assert annotation(models, "chat") == "second"
        second = await read()
        assert second.status.last_active_time == NOON
        assert await waking.heed(second.metadata) == NOON + timedelta(minutes=1)
        await waking.settle(second.metadata)
        assert annotation(models, "chat") is None
        last = await read()
        assert last.status.last_active_time == NOON + timedelta(minutes=1)
        models.plane.admin.delete(models.path("models", "chat"))
        await waking.settle(last.metadata)


class Heeding:
    """A reconciler that does nothing but what waking asks of one."""

    def __init__(self, manager: Manager, namespace: str) -> None:
        self._client = manager.client
        self._waking = Waking(self._client)
        self._namespace = namespace
        self.seen: list[datetime | None] = []

    async def reconcile(self, request: Request) -> Result:
        if request.namespace == self._namespace:
            model = await self._client.get(Model, request)
            assert model is not None
            heeded = await self._waking.heed(model.metadata)
            self.seen.append(heeded or model.status.last_active_time)
            await self._waking.settle(model.metadata)
        return Result()


async def test_a_controller_hears_the_signal_and_the_annotation_and_then_is_quiet(
    control_plane: ControlPlane, models: Any
) -> None:
    meta = meta_from(models.create("chat", SPEC)["metadata"])
    options = ManagerOptions(metrics_address="0", probe_address="0", grace=10, signals=())
    hears = any_of(generation_changed, annotations_changed, last_active_changed)
    async with connected(control_plane) as transport:
        manager = Manager(transport, options=options, registry=Registry())
        heeding = Heeding(manager, models.namespace)
        controller_for(manager, Model, predicate=hears).complete(heeding)
        async with anyio.create_task_group() as group:
            await group.start(manager.run)
            await eventually(lambda: heeding.seen == [None])
            await wake(DirectClient(transport), meta, now=NOON)
            await eventually(lambda: heeding.seen == [None, NOON])
            annotate(models, "chat", "now")
            await eventually(lambda: annotation(models, "chat") is None)
            # The next change is heard, so the ones before it are over.
            models.change("chat", {"litellm": {"aliases": ["a"]}})
            await eventually(lambda: len(heeding.seen) > 2)
            mark = control_plane.audit_log.mark()
            models.change("chat", {"litellm": {"aliases": ["b"]}})
            runs = len(heeding.seen)
            await eventually(lambda: len(heeding.seen) > runs)
            manager.stop()
    assert heeding.seen[-1] is not None
    assert heeding.seen[-1] > NOON
    assert len(heeding.seen) < 8
    writes = control_plane.audit(mark).at(models.namespace).writes()
    assert len(writes) == 1  # the change of the spec


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "flexinfer", "wake", *words]


def environment(kubeconfig: Path) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(kubeconfig)}


async def flexinfer_wake(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    with anyio.fail_after(60):
        return await anyio.run_process(command(*words), env=environment(kubeconfig), check=False)


async def test_wake_writes_the_signal_as_the_user_of_the_context(
    control_plane: ControlPlane, models: Any, tmp_path: Path
) -> None:
    for name in ("chat", "embed"):
        models.create(name, SPEC)
    content = yaml.safe_load(control_plane.kubeconfig_path.read_text())
    content["contexts"][0]["context"]["namespace"] = models.namespace
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(yaml.safe_dump(content))
    done = await flexinfer_wake(kubeconfig, "chat", "embed", "chat")
    assert done.stdout.decode() == (
        "models.ai.flexinfer/chat woken\nmodels.ai.flexinfer/embed woken\n"
    )
    assert (done.returncode, done.stderr) == (0, b"")
    for name in ("chat", "embed"):
        model = models.get("models", name)
        assert managers_of_the_signal(model) == [(FIELD_MANAGER, "Apply", "status")]
        woken = datetime.fromisoformat(model["status"]["lastActiveTime"])
        assert abs(datetime.now(UTC) - woken) < timedelta(minutes=2)


async def test_wake_says_what_is_missing_and_wakes_the_others(
    control_plane: ControlPlane, models: Any
) -> None:
    models.create("chat", SPEC)
    where = ("-n", models.namespace)
    done = await flexinfer_wake(control_plane.kubeconfig_path, "ghost", "chat", *where)
    assert done.returncode == 1
    assert done.stdout == b"models.ai.flexinfer/chat woken\n"
    said = f"flexinfer wake: there is no Model ghost in namespace {models.namespace}\n"
    assert done.stderr.decode() == said


async def test_wake_says_what_keeps_a_woken_model_from_starting(
    control_plane: ControlPlane, models: Any
) -> None:
    models.create("chat", SPEC)
    condition = ready(1, holds=False, message="no node has an H100")
    body = {"status": {"phase": "Failed", "conditions": [condition]}}
    control_plane.admin.merge(f"{models.path('models', 'chat')}/status", body)
    done = await flexinfer_wake(control_plane.kubeconfig_path, "chat", "-n", models.namespace)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == (
        "models.ai.flexinfer/chat woken, but it cannot start: Failed: no node has an H100\n"
    )


async def test_wake_names_the_right_that_the_user_lacks(
    control_plane: ControlPlane, models: Any, tmp_path: Path
) -> None:
    models.create("chat", SPEC)
    kubeconfig = tmp_path / "config"
    token = control_plane.token_for(models.namespace, "default")
    control_plane.write_kubeconfig(kubeconfig, token=token)
    done = await flexinfer_wake(kubeconfig, "chat", f"--namespace={models.namespace}")
    assert (done.returncode, done.stdout) == (1, b"")
    said = done.stderr.decode()
    assert said.startswith("flexinfer wake: chat: ")
    assert 'cannot get resource "models" in API group "ai.flexinfer"' in said
    assert len(said.splitlines()) == 1


async def test_wake_waits_and_shows_how_the_model_comes_on(
    control_plane: ControlPlane, models: Any
) -> None:
    models.create("chat", SPEC)

    def report(phase: str, message: str) -> None:
        condition = ready(1, holds=phase == "Ready", message=message)
        body = {"status": {"phase": phase, "conditions": [condition]}}
        control_plane.admin.merge(f"{models.path('models', 'chat')}/status", body)

    report("Idle", "No replica is wanted")
    steps = {
        "models.ai.flexinfer/chat woken\n": ("Loading", "0 of 1 replicas are ready"),
        "chat: Loading: 0 of 1 replicas are ready\n": ("Ready", "1 of 1 replicas are ready"),
        "chat: Ready: 1 of 1 replicas are ready\n": None,
    }
    words = ("chat", "-n", models.namespace, "--wait=30s")
    with anyio.fail_after(60):
        async with await anyio.open_process(
            command(*words), env=environment(control_plane.kubeconfig_path)
        ) as process:
            assert process.stdout is not None
            said = [line async for line in lines_of(process.stdout, steps, report)]
            assert await process.wait() == 0
    assert said == list(steps)
    assert "lastActiveTime" in models.get("models", "chat")["status"]


async def lines_of(
    stream: ByteReceiveStream,
    steps: dict[str, tuple[str, str] | None],
    report: Callable[[str, str], None],
) -> AsyncIterator[str]:
    """Yield what the command prints, and report the step that each line is to be followed by."""
    rest = ""
    async for text in TextReceiveStream(stream):
        rest += text
        while "\n" in rest:
            line, _, rest = rest.partition("\n")
            if step := steps.get(f"{line}\n"):
                report(*step)
            yield f"{line}\n"


async def test_wake_ends_with_what_ready_says_when_it_does_not_become_true(
    control_plane: ControlPlane, models: Any
) -> None:
    models.create("chat", SPEC)
    condition = ready(1, holds=False, message="no node has room")
    body = {"status": {"phase": "Pending", "conditions": [condition]}}
    control_plane.admin.merge(f"{models.path('models', 'chat')}/status", body)
    done = await flexinfer_wake(
        control_plane.kubeconfig_path, "chat", "-n", models.namespace, "--wait=2s"
    )
    assert done.returncode == 1
    said = "flexinfer wake: chat is not ready after 2s: Pending: no node has room\n"
    assert done.stderr.decode() == said


@pytest.mark.parametrize("words", [["--wait=soon"], ["--context=nowhere"], ["--kubeconfig=nope"]])
async def test_wake_refuses_misuse(control_plane: ControlPlane, words: list[str]) -> None:
    done = await flexinfer_wake(control_plane.kubeconfig_path, "chat", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(b"flexinfer wake: ")
    assert len(done.stderr.splitlines()) == 1
