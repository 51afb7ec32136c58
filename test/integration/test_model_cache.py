# SPDX-License-Identifier: Apache-2.0
"""Caches: claims and Jobs that really run, against a stand-in of the hub on loopback."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from flexinfer.envtest import volumes
from flexinfer.envtest.eventually import eventually
from hack.hub.catalog import READER_TOKEN
from hack.hub.server import HubServer
from hack.localcluster.local import LOCAL_IMAGE
from hack.podrunner import process as podrunner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import Tree
    from hack.podrunner.process import PodRunner

    Run = Callable[..., AbstractAsyncContextManager[Manager]]

CHAT = "HF://acme/tiny-chat"


@pytest.fixture
async def hub() -> AsyncIterator[HubServer]:
    async with HubServer.start() as server:
        yield server


@pytest.fixture
def runner(control_plane: ControlPlane, namespace: str) -> Iterator[PodRunner]:
    with podrunner.running(control_plane, namespace=namespace) as running:
        yield running


@pytest.fixture
def volume(models: Any, h100s: Tree) -> Iterator[str]:
    """Give a volume on one of the nodes with GPUs; it goes with the test."""
    del h100s
    with a_volume(models) as name:
        yield name


@contextmanager
def a_volume(models: Any, *, size: str = "50Gi") -> Iterator[str]:
    admin = models.plane.admin
    name = volumes.add(admin, f"{models.namespace}-zone-a", size=size)
    try:
        yield name
    finally:
        admin.delete(f"/api/v1/persistentvolumes/{name}")


def environment(hub: HubServer) -> dict[str, str]:
    return {"DEFAULT_FETCH_IMAGE": LOCAL_IMAGE, "HF_ENDPOINT": hub.url}


def cached(models: Any, selector: Tree, source: str = CHAT, **cache: object) -> Tree:
    spec: Tree = models.gpu_spec(selector, source=source, cache=cache)
    return spec


def jobs(models: Any) -> list[Tree]:
    path = f"/apis/batch/v1/namespaces/{models.namespace}/jobs"
    found: list[Tree] = models.plane.admin.get(path)["items"]
    return found


async def test_weights_are_fetched_into_a_claim_before_the_server_starts(  # noqa: PLR0917
    models: Any, controller: Run, h100s: Tree, hub: HubServer, runner: PodRunner, volume: str
) -> None:
    models.create("cached", cached(models, h100s))
    async with controller(**environment(hub)):
        model = await models.reaches("cached", "BackendReady", phase="Ready", within=60)
    assert models.condition("cached", "Cached")["reason"] == "PrefetchSucceeded"
    cache = model["status"]["cache"]
    assert (cache["pvcName"], cache["jobName"]) == ("cached-cache", "cached-cache-prefetch")
    assert (cache["ready"], cache["jobPhase"]) == (True, "Succeeded")
    files = runner.folder / "volumes" / volume / "cached"
    assert cache["sizeBytes"] == sum(
        file.stat().st_size
        for file in files.rglob("*")
        if file.is_file() and not file.name.startswith(".flexinfer")
    )
    (pod,) = [p for p in models.pods("cached") if "vllm" in p["spec"]["containers"][0]["image"]]
    assert "/models/cached" in pod["spec"]["containers"][0]["args"]


async def test_point_22_another_source_never_meets_the_marker_of_the_old_one(  # noqa: PLR0917
    models: Any, controller: Run, h100s: Tree, hub: HubServer, runner: PodRunner, volume: str
) -> None:
    models.create("moved", cached(models, h100s))
    async with controller(**environment(hub)):
        await models.reaches("moved", "BackendReady", phase="Ready", within=60)
        files = runner.folder / "volumes" / volume / "moved"
        old = {file.name for file in files.iterdir()}
        models.change("moved", {"cache": {"revision": "v2"}})
        marker = files / ".flexinfer_cached"
        await eventually(lambda: marker.exists() and "v2" in marker.read_text(), within=60)
        await models.reaches("moved", "BackendReady", phase="Ready", within=60)
    new = {file.name for file in files.iterdir()}
    assert "chat_template.jinja" in new - old


async def test_point_24_a_gated_source_needs_the_token_and_no_other_container_sees_it(  # noqa: PLR0917
    models: Any, controller: Run, h100s: Tree, hub: HubServer, runner: PodRunner, volume: str
) -> None:
    del runner, volume
    gated = cached(models, h100s, "HF://acme/gated", tokenSecretRef={"name": "hub"})
    models.create("gated", gated)
    async with controller(**environment(hub)):
        cure = f"create Secret hub in namespace {models.namespace}"
        await models.reaches("gated", "CacheNotReady", phase="Pending", text=cure)
        secret = {"token": base64.b64encode(READER_TOKEN.encode()).decode()}
        models.plane.admin.create(
            models.path("secrets"), {"metadata": {"name": "hub"}, "data": secret}
        )
        await models.reaches("gated", "BackendReady", phase="Ready", within=90)
    deployment = models.get("deployments", "gated")
    names = [e["name"] for e in deployment["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert "HF_TOKEN" not in names


async def test_point_23_a_job_that_failed_for_good_says_why_and_a_changed_spec_tries_at_once(  # noqa: PLR0917
    models: Any, controller: Run, h100s: Tree, hub: HubServer, runner: PodRunner, volume: str
) -> None:
    del runner, volume
    models.create("lost", cached(models, h100s, "HF://acme/no-such-repository"))
    async with controller(**environment(hub)):
        failed = await models.reaches(
            "lost", "CacheNotReady", phase="Failed", text="no-such-repository", within=60
        )
        assert failed["status"]["cache"]["jobPhase"] == "Failed"
        assert models.condition("lost", "Cached")["reason"] == "CacheNotReady"
        models.change("lost", {"source": CHAT})
        await models.reaches("lost", "BackendReady", phase="Ready", within=60)


async def test_a_pvc_source_is_missed_then_checked_then_served(  # noqa: PLR0917
    models: Any, controller: Run, h100s: Tree, hub: HubServer, runner: PodRunner, volume: str
) -> None:
    models.create("mounted", models.gpu_spec(h100s, source="pvc://weights/llama", cache=None))
    async with controller(**environment(hub)):
        text = "PersistentVolumeClaim weights does not exist"
        await models.reaches("mounted", "CacheNotReady", phase="Pending", text=text)
        files = runner.folder / "volumes" / volume / "llama"
        files.mkdir(parents=True)
        (files / "config.json").write_text("{}")
        claim(models, "weights", volume)
        model = await models.reaches("mounted", "BackendReady", phase="Ready", within=60)
    assert models.condition("mounted", "Cached")["reason"] == "CacheCheck"
    assert model["status"]["cache"]["pvcName"] == "weights"
    assert [job["metadata"]["name"] for job in jobs(models)] == ["mounted-cache-check"]


def claim(models: Any, name: str, volume: str) -> None:
    """Make a claim that is bound to *volume* although no pod has used it yet."""
    models.plane.admin.create(
        models.path("persistentvolumeclaims"),
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "volumeName": volume,
                "resources": {"requests": {"storage": "10Gi"}},
            },
        },
    )


async def test_a_retained_claim_outlives_its_model_and_is_taken_over_by_the_next(  # noqa: PLR0917
    models: Any, controller: Run, h100s: Tree, hub: HubServer, runner: PodRunner, volume: str
) -> None:
    del runner, volume
    admin = models.plane.admin
    path = models.path("persistentvolumeclaims", "keeper-cache")
    models.create("keeper", cached(models, h100s, retain=True))
    async with controller(**environment(hub)):
        await models.reaches("keeper", "BackendReady", phase="Ready", within=60)
        kept = admin.get(path)["metadata"]
        assert not kept.get("ownerReferences")
        admin.delete(models.path("models", "keeper"))
        await eventually(lambda: not models.pods("keeper"), within=90)
        await eventually(lambda: not jobs(models), within=90)
        models.create("keeper", cached(models, h100s))
        await models.reaches("keeper", "BackendReady", phase="Ready", within=60)
    taken = admin.get(path)["metadata"]
    assert taken["uid"] == kept["uid"]
    assert taken["ownerReferences"][0]["name"] == "keeper"


async def test_a_claim_that_is_to_shrink_keeps_its_size_and_says_so(  # noqa: PLR0917
    models: Any, controller: Run, h100s: Tree, hub: HubServer, runner: PodRunner, volume: str
) -> None:
    del runner, volume
    models.create("shrunk", cached(models, h100s, size="20Gi"))
    async with controller(**environment(hub)):
        await models.reaches("shrunk", "BackendReady", phase="Ready", within=60)
        models.change("shrunk", {"cache": {"size": "10Gi"}})
        await models.reaches("shrunk", "BackendReady", text="a claim cannot shrink")
        drift = models.condition("shrunk", "ImmutableFieldDrift")
        assert "spec.resources.requests.storage" in drift["message"]
    live = models.get("persistentvolumeclaims", "shrunk-cache")
    assert live["spec"]["resources"]["requests"]["storage"] == "20Gi"
