# SPDX-License-Identifier: Apache-2.0
"""Every backend on a real control plane, and what hardware says to a Model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import Tree

    Run = Callable[..., AbstractAsyncContextManager[Manager]]

IMAGE_MAKERS = ("vllm-omni", "diffusers", "comfyui")
PORTS = {"vllm-omni": 8000, "mlc-llm": 8000, "diffusers": 8000, "comfyui": 8188}


async def test_backends_for_images_and_compiled_models_come_up_and_stay_as_they_are(
    models: Any, controller: Run, h100s: Tree
) -> None:
    for backend in PORTS:
        spec = models.gpu_spec(h100s, backend=backend, source="file:///opt/model", litellm={})
        models.create(backend, spec | {"image": "registry.example/server:v1"})
    async with controller():
        for backend, port in PORTS.items():
            await models.reaches(backend, "BackendReady")
            service = models.get("services", backend)
            assert [p["port"] for p in service["spec"]["ports"]] == [port]
            capabilities = service["metadata"]["annotations"]["litellm.flexinfer.ai/capabilities"]
            is_maker = backend in IMAGE_MAKERS
            assert ('"imageGeneration":true' in capabilities) is is_maker
            models.change(backend, {"serviceLabels": ["art"]})
        for backend in PORTS:
            await models.reaches(backend, "BackendReady")
            mine = {"labelSelector": f"flexinfer.ai/model={backend}"}
            sets = models.plane.admin.get(models.path("replicasets"), **mine)["items"]
            assert len(sets) == 1


async def test_an_image_that_nobody_publishes_is_asked_for_by_name(
    models: Any, controller: Run, h100s: Tree
) -> None:
    models.create("painter", models.gpu_spec(h100s, backend="diffusers"))
    async with controller():
        await models.reaches("painter", "BackendUnsupported", phase="Failed")
        told = models.condition("painter", "Schedulable")
        assert (told["status"], told["reason"]) == ("False", "BackendUnsupported")
        assert "set spec.image, or DEFAULT_DIFFUSERS_IMAGE in the manager's" in told["message"]
        models.change("painter", {"image": "registry.example/diffusers:v1"})
        await models.reaches("painter", "BackendReady", phase="Ready")


async def test_a_replica_that_cannot_fit_is_refused_until_it_does(
    models: Any, controller: Run, h100s: Tree
) -> None:
    gpu = {"vendor": "nvidia", "vramEstimateMB": 100000}
    models.create("giant", models.gpu_spec(h100s, gpu=gpu))
    async with controller():
        await models.reaches("giant", "VRAMInsufficient", phase="Failed", text="raise spec.gpu.cou")
        assert models.condition("giant", "Schedulable")["reason"] == "VRAMInsufficient"
        models.change("giant", {"gpu": {"count": 2}})
        await models.reaches("giant", "BackendReady", phase="Ready")
    deployment = models.get("deployments", "giant")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
