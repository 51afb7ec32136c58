# SPDX-License-Identifier: Apache-2.0
"""What the tests of Models share: the CRD, a manager inside the test, and a namespace's Models."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import pytest
from prometheus_client import CollectorRegistry

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import set_up
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.crd.generate import crd_for
from flexinfer.envtest.eventually import eventually, eventually_sync
from flexinfer.manager import Manager, ManagerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ZONES = ("zone-a", "zone-b")


@dataclass(frozen=True)
class Models:
    """The Models of one namespace, and what belongs to them."""

    plane: ControlPlane
    namespace: str

    @staticmethod
    def gpu_spec(selector: Tree, **more: object) -> Tree:
        """Return the spec of a Model on one GPU of the nodes that *selector* selects."""
        return {
            "backend": "vllm",
            "source": "HF://Qwen/Qwen2.5-7B-Instruct",
            "gpu": {"vendor": "nvidia"},
            "cache": {"strategy": "None"},
            "nodeSelector": selector,
            "serverless": {"enabled": False},
            **more,
        }

    @staticmethod
    def cpu_spec(selector: Tree, **more: object) -> Tree:
        """Return the spec of a Model on the CPUs of the nodes that *selector* selects."""
        return {
            "backend": "llamacpp",
            "source": "HF://Qwen/Qwen2.5-0.5B-Instruct-GGUF",
            "config": {"ggufFile": "qwen2.5-0.5b-instruct-q4_k_m.gguf"},
            "cache": {"strategy": "None"},
            "nodeSelector": selector,
            "serverless": {"enabled": False},
            **more,
        }

    def path(self, plural: str, name: str = "") -> str:
        roots = {
            "models": "/apis/ai.flexinfer/v1alpha2",
            "deployments": "/apis/apps/v1",
            "replicasets": "/apis/apps/v1",
        }
        root = roots.get(plural, "/api/v1")
        return f"{root}/namespaces/{self.namespace}/{plural}{'/' if name else ''}{name}"

    def create(self, name: str, spec: Tree) -> Tree:
        body = {"apiVersion": "ai.flexinfer/v1alpha2", "kind": "Model", "spec": spec}
        metadata = {"name": name, "namespace": self.namespace}
        return self.plane.admin.create(self.path("models"), body | {"metadata": metadata})

    def change(self, name: str, spec: Tree) -> Tree:
        return self.plane.admin.merge(self.path("models", name), {"spec": spec})

    def get(self, plural: str, name: str) -> Tree:
        return self.plane.admin.get(self.path(plural, name))

    def pods(self, name: str) -> list[Tree]:
        labels = f"flexinfer.ai/model={name}"
        found: list[Tree] = self.plane.admin.get(self.path("pods"), labelSelector=labels)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def condition(self, name: str, type_: str = "Ready") -> Tree:
        """Return a condition that speaks of the present generation."""
        model = self.get("models", name)
        found: Tree = {c["type"]: c for c in model["status"]["conditions"]}[type_]
        assert found["observedGeneration"] == model["metadata"]["generation"], found
        return found

    async def reaches(
        self, name: str, reason: str, *, phase: str = "", text: str = "", within: float = 30.0
    ) -> Tree:
        """Wait until Ready has *reason*, the Model *phase*, and the message *text* in it."""

        def claim() -> Tree:
            ready = self.condition(name)
            assert ready["reason"] == reason, ready
            assert text in ready["message"], ready
            model = self.get("models", name)
            assert phase in {"", model["status"]["phase"]}, model["status"]
            return model

        return await eventually(claim, within=within)

    async def cordon_zones(self, name: str) -> None:
        """Cordon both nodes of `h100s`, and wait until the Model has seen it."""
        for zone in ZONES:
            self.plane.nodes.cordon(f"{self.namespace}-{zone}")

        def is_seen() -> None:
            assert self.condition(name, "Schedulable")["reason"] == "NoMatchingNodes"

        await eventually(is_seen, within=45)


@pytest.fixture(scope="session")
def model_crd(control_plane: ControlPlane) -> None:
    """Install the Model's CRD; it stays until the control plane goes."""
    crd = crd_for(Model)
    path = f"{CRDS}/{crd['metadata']['name']}"
    control_plane.admin.apply(path, crd)
    control_plane.wait_established(crd["metadata"]["name"])


@pytest.fixture
def models(control_plane: ControlPlane, namespace: str, model_crd: None) -> Models:
    del model_crd
    return Models(control_plane, namespace)


@pytest.fixture
def controller(control_plane: ControlPlane) -> object:
    """Give a function that runs the Model controller inside the test, as administrator."""

    @asynccontextmanager
    async def run(**environment: str) -> AsyncIterator[Manager]:
        credentials = StaticCredentials(
            control_plane.url,
            token=control_plane.admin_token,
            context=client_context(control_plane.ca_file.read_text()),
        )
        options = ManagerOptions(
            metrics_address="0", probe_address="127.0.0.1:0", grace=10, signals=()
        )
        async with Transport(credentials) as transport:
            manager = Manager(transport, options=options, registry=CollectorRegistry())
            set_up(manager, environment=environment)
            async with anyio.create_task_group() as group:
                await group.start(manager.run)
                yield manager
                manager.stop()

    return run


def free_of_taints(plane: ControlPlane, name: str) -> None:
    """Wait until the node controller has taken back the taint of a node that was not Ready."""
    path = f"/api/v1/nodes/{name}"
    eventually_sync(lambda: not plane.admin.get(path)["spec"].get("taints"), within=15)


@pytest.fixture
def h100s(control_plane: ControlPlane, namespace: str) -> Iterator[Tree]:
    """Give two NVIDIA nodes, and the nodeSelector that finds these two alone."""
    labels = {"test.flexinfer.ai/namespace": namespace}
    names = [
        control_plane.nodes.add("nvidia-h100", f"{namespace}-{zone}", zone=zone, labels=labels)
        for zone in ZONES
    ]
    for name in names:
        free_of_taints(control_plane, name)
    yield labels
    for name in names:
        control_plane.nodes.remove(name)


@pytest.fixture
def cpus(control_plane: ControlPlane, namespace: str) -> Iterator[Tree]:
    """Give one node without GPUs, and the nodeSelector that finds it."""
    labels = {"test.flexinfer.ai/namespace": namespace}
    name = control_plane.nodes.add("cpu", f"{namespace}-cpu", labels=labels)
    free_of_taints(control_plane, name)
    yield labels
    control_plane.nodes.remove(name)
