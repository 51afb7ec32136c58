# SPDX-License-Identifier: Apache-2.0
"""The controller of `docs/framework.md` does what the page says of it, and what it does not say."""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import flexinfer
from flexinfer.crd.generate import crd_for
from flexinfer.envtest.eventually import eventually
from flexinfer.errors import NotFoundError
from hack import docpages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree

PAGE = (Path(__file__).resolve().parents[2] / "docs/framework.md").read_text(encoding="utf-8")
CODE = "configmapcopy.py"
COPIES = "/apis/example.com/v1/configmapcopies"


@pytest.fixture(scope="module")
def guide(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModuleType]:
    """The guide's controller as a module, and its kind on the control plane."""
    path = tmp_path_factory.mktemp("guide") / CODE
    path.write_text(docpages.files(PAGE)[CODE], encoding="utf-8")
    spec = spec_from_file_location("configmapcopy", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["configmapcopy"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    crd = crd_for(module.ConfigMapCopy)
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    control_plane.admin.apply(f"{crds}/{crd['metadata']['name']}", crd)
    control_plane.wait_established(crd["metadata"]["name"])
    yield module
    del sys.modules["configmapcopy"]


@dataclass(frozen=True, slots=True)
class World:
    """A source in one namespace, and further namespaces to copy it into."""

    plane: ControlPlane
    name: str
    others: tuple[str, ...]

    def copy(self, namespace: str) -> Tree:
        return self.plane.admin.get(f"/api/v1/namespaces/{namespace}/configmaps/{self.name}")

    def text(self, namespace: str) -> str:
        return str(self.copy(namespace)["data"]["text"])

    def is_gone(self, namespace: str) -> bool:
        try:
            self.copy(namespace)
        except NotFoundError:
            return True
        return False

    def write(self, namespace: str, text: str) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name}}
        path = f"/api/v1/namespaces/{namespace}/configmaps/{self.name}"
        self.plane.admin.apply(path, body | {"data": {"text": text}})

    def label(self, namespace: str, value: str | None) -> None:
        path = f"/api/v1/namespaces/{namespace}"
        self.plane.admin.merge(path, {"metadata": {"labels": {self.name: value}}})

    def create(self, **spec: object) -> None:
        head = {"apiVersion": "example.com/v1", "kind": "ConfigMapCopy"}
        whole = {"namespace": self.name, "name": self.name} | spec
        self.plane.admin.create(COPIES, head | {"metadata": {"name": self.name}, "spec": whole})

    def ready(self, reason: str, text: str = "") -> bool:
        (ready,) = self.plane.admin.get(f"{COPIES}/{self.name}")["status"]["conditions"]
        assert ready["reason"] == reason, ready
        assert text in ready["message"], ready
        return True

    def notes(self) -> set[tuple[str, str]]:
        events = self.plane.admin.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return {(e["reason"], e["note"]) for e in events if e["regarding"]["name"] == self.name}


@pytest.fixture
def world(control_plane: ControlPlane, namespace: str) -> Iterator[World]:
    others = tuple(f"{namespace}-{secrets.token_hex(2)}" for _ in range(3))
    for name in others:
        head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        control_plane.admin.create("/api/v1/namespaces", head)
    made = World(control_plane, namespace, others)
    made.write(namespace, "first")
    yield made
    control_plane.admin.delete(f"{COPIES}/{namespace}")
    for name in others:
        control_plane.admin.delete(f"/api/v1/namespaces/{name}")


async def test_copies_are_where_the_selector_says_and_nowhere_else(
    guide: ModuleType, world: World
) -> None:
    one, two, three = world.others
    world.label(one, "yes")
    world.create(selector={"matchLabels": {world.name: "yes"}})
    metric = "configmapcopy_written_total"
    before = flexinfer.REGISTRY.get_sample_value(metric) or 0.0
    async with flexinfer.running(guide.set_up, world.plane.kubeconfig_path):
        await eventually(lambda: world.text(one) == "first")
        world.write(world.name, "second")
        await eventually(lambda: world.text(one) == "second")
        world.label(two, "yes")
        await eventually(lambda: world.text(two) == "second")
        world.label(one, None)
        await eventually(lambda: world.is_gone(one))
        world.plane.admin.merge(
            f"{COPIES}/{world.name}", {"spec": {"selector": {"matchLabels": {world.name: "no"}}}}
        )
        await eventually(lambda: world.is_gone(two))
        world.label(three, "no")
        await eventually(lambda: world.text(three) == "second")
        await eventually(lambda: world.ready("Copied", "1 copies"))
        world.plane.admin.delete(f"/api/v1/namespaces/{three}/configmaps/{world.name}")
        await eventually(lambda: world.text(three) == "second")
        await eventually(lambda: ("Copied", f"wrote {one}/{world.name}") in world.notes())
    after = flexinfer.REGISTRY.get_sample_value(metric) or 0.0
    assert after - before == 5
    assert world.text(world.name) == "second"


async def test_what_is_somebody_elses_is_left_alone_and_named(
    guide: ModuleType, world: World
) -> None:
    one, two, _ = world.others
    world.write(one, "theirs")
    world.label(one, "yes")
    world.label(two, "yes")
    world.create(selector={"matchLabels": {world.name: "yes"}})
    async with flexinfer.running(guide.set_up, world.plane.kubeconfig_path):
        await eventually(lambda: world.ready("NotOurs", f"ConfigMap {one}/{world.name} is left"))
        assert world.text(two) == "first"
        assert world.text(one) == "theirs"
        world.plane.admin.delete(f"{COPIES}/{world.name}")
        await eventually(lambda: world.is_gone(two))
        assert world.text(one) == "theirs"


async def test_a_finalizer_takes_every_copy_before_the_object_goes(
    guide: ModuleType, world: World
) -> None:
    for name in world.others:
        world.label(name, "yes")
    world.create(selector={"matchLabels": {world.name: "yes"}})
    path = f"{COPIES}/{world.name}"
    async with flexinfer.running(guide.set_up, world.plane.kubeconfig_path):
        await eventually(lambda: world.ready("Copied", "3 copies"))
        assert world.plane.admin.get(path)["metadata"]["finalizers"] == ["example.com/copies"]
    world.plane.admin.delete(path)
    assert world.plane.admin.get(path)["metadata"]["deletionTimestamp"]
    assert world.text(world.others[0]) == "first"
    async with flexinfer.running(guide.set_up, world.plane.kubeconfig_path):
        await eventually(lambda: all(map(world.is_gone, world.others)))
        await eventually(lambda: not is_there(world.plane, path))


async def test_a_copy_that_does_not_go_holds_the_object_back(
    guide: ModuleType, world: World
) -> None:
    one, two, _ = world.others
    world.label(one, "yes")
    world.label(two, "yes")
    world.create(selector={"matchLabels": {world.name: "yes"}})
    path = f"{COPIES}/{world.name}"
    copy = f"/api/v1/namespaces/{one}/configmaps/{world.name}"
    async with flexinfer.running(guide.set_up, world.plane.kubeconfig_path):
        await eventually(lambda: world.ready("Copied", "2 copies"))
        world.plane.admin.merge(copy, {"metadata": {"finalizers": ["example.com/held"]}})
        world.plane.admin.delete(path)
        await eventually(lambda: "deletionTimestamp" in world.copy(one)["metadata"])
        await eventually(lambda: world.is_gone(two))
    # Another process finds a copy that was deleted already, and is still there.
    before = held_back()
    async with flexinfer.running(guide.set_up, world.plane.kubeconfig_path) as manager:
        await manager.informers.wait_synced(30)
        await eventually(lambda: held_back() > before)
        assert world.plane.admin.get(path)["metadata"]["finalizers"] == ["example.com/copies"]
        world.plane.admin.merge(copy, {"metadata": {"finalizers": None}})
        await eventually(lambda: not is_there(world.plane, path))


def held_back() -> float:
    labels = {"controller": "configmapcopy", "result": "requeue_after"}
    name = "controller_runtime_reconcile_total"
    return flexinfer.REGISTRY.get_sample_value(name, labels) or 0.0


def is_there(plane: ControlPlane, path: str) -> bool:
    try:
        plane.admin.get(path)
    except NotFoundError:
        return False
    return True


async def test_what_cannot_be_done_is_said_in_ready(guide: ModuleType, world: World) -> None:
    wrong = {"matchExpressions": [{"key": world.name, "operator": "In"}]}
    world.create(selector=wrong)
    path = f"{COPIES}/{world.name}"
    async with flexinfer.running(guide.set_up, world.plane.kubeconfig_path):
        await eventually(lambda: world.ready("InvalidSpec", "takes at least one value"))
        world.plane.admin.merge(path, {"spec": {"selector": {"matchExpressions": None}}})
        world.plane.admin.merge(path, {"spec": {"selector": {"matchLabels": {world.name: "yes"}}}})
        await eventually(lambda: world.ready("Copied", "0 copies"))
        world.plane.admin.merge(path, {"spec": {"name": "nothing"}})
        await eventually(lambda: world.ready("SourceMissing", f"ConfigMap {world.name}/nothing"))
