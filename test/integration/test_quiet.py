# SPDX-License-Identifier: Apache-2.0
"""Nothing is sent when nothing changed: the API server's audit log is the witness."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.eventually import eventually_sync
from flexinfer.envtest.processes import ProcessError
from hack.localcluster import local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.audit import AuditTrail
    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree
    from hack.localcluster.processes import ManagerProcess

USER = f"system:serviceaccount:{local.NAMESPACE}:{local.SERVICE_ACCOUNT}"
MODELS = "/apis/ai.flexinfer/v1alpha2/namespaces/default/models"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
SERVICES = "/api/v1/namespaces/default/services"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with local.cluster() as running:
        yield running


SPEC = {
    "backend": "llamacpp",
    "source": "HF://ggml-org/models",
    "cache": {"strategy": "None"},
    "serverless": {"enabled": False},
    "config": {"ggufFile": "tiny.gguf"},
}


def model(name: str) -> Tree:
    head = {"apiVersion": "ai.flexinfer/v1alpha2", "kind": "Model", "metadata": {"name": name}}
    return head | {"spec": SPEC}


@contextmanager
def ready_model(plane: ControlPlane, name: str) -> Iterator[None]:
    """A model that is Ready and whose manager has nothing left to do."""
    plane.admin.create(MODELS, model(name))
    try:
        eventually_sync(lambda: condition(plane, name, "Ready")["status"] == "True", within=30)
        yield
    finally:
        plane.admin.delete(f"{MODELS}/{name}")


def condition(plane: ControlPlane, name: str, kind: str) -> Tree:
    live = plane.admin.get(f"{MODELS}/{name}")
    found: Tree = next(c for c in live["status"]["conditions"] if c["type"] == kind)
    return found


def reconciles(process: ManagerProcess) -> int:
    """How many reconciles of models have ended, by the manager's own metric."""
    text = process.metrics()
    counts = re.findall(
        r'controller_runtime_reconcile_total\{controller="model",result="\w+"\} ([\d.e+]+)', text
    )
    assert counts, text
    return sum(int(float(count)) for count in counts)


def reached(process: ManagerProcess, count: int) -> bool:
    return reconciles(process) >= count


def settle(plane: ControlPlane, process: ManagerProcess) -> None:
    """Wait until a touch of every model is one reconcile each: all earlier events are through."""
    for live in plane.admin.get(MODELS)["items"]:
        name = live["metadata"]["name"]
        eventually_sync(partial(one_touch_is_one_reconcile, plane, process, name), within=30)


def one_touch_is_one_reconcile(plane: ControlPlane, process: ManagerProcess, name: str) -> bool:
    before = reconciles(process)
    touch(plane, name, f"settle-{before}")
    eventually_sync(partial(reached, process, before + 1), within=10, every=0.01)
    return reconciles(process) == before + 1


def touch(plane: ControlPlane, name: str, value: str) -> None:
    """Cause a reconcile that has nothing to do."""
    plane.admin.merge(f"{MODELS}/{name}", {"metadata": {"annotations": {"touched": value}}})


def writes(plane: ControlPlane, mark: int) -> AuditTrail:
    return plane.audit(mark).by(USER).writes()


def test_a_hundred_reconciles_of_an_unchanged_model_send_no_write(plane: ControlPlane) -> None:
    with local.manager(plane) as process, ready_model(plane, "quiet"):
        settle(plane, process)
        mark, start = plane.audit_log.mark(), reconciles(process)
        for number in range(100):
            touch(plane, "quiet", str(number))
            eventually_sync(partial(reached, process, start + number + 1), within=10, every=0.005)
        assert reconciles(process) == start + 100
        assert writes(plane, mark) == ()


def test_a_restarted_manager_applies_each_child_at_most_once_and_changes_nothing(
    plane: ControlPlane,
) -> None:
    with local.manager(plane) as process, ready_model(plane, "restarted"):
        settle(plane, process)
        before = versions(plane, "restarted")
        mark = plane.audit_log.mark()
        plane.processes.stop("manager")
        with pytest.raises(ProcessError):
            process.wait_ready(within=0.2)
        process.start()
        process.wait_ready()
        eventually_sync(lambda: reconciles(process) >= 1, within=10)
        settle(plane, process)
        sent = writes(plane, mark)
        for resource in ("deployments", "services"):
            assert len(sent.of(resource, "").at("default", "restarted")) <= 1, sent
        assert sent.of("models") == ()
        after = versions(plane, "restarted")
        assert after["deployment"] == before["deployment"]
        assert after["service"] == before["service"]


def versions(plane: ControlPlane, name: str) -> dict[str, str]:
    return {
        "deployment": plane.admin.get(f"{DEPLOYMENTS}/{name}")["metadata"]["resourceVersion"],
        "service": plane.admin.get(f"{SERVICES}/{name}")["metadata"]["resourceVersion"],
    }


def test_a_foreign_write_to_an_owned_field_causes_exactly_one_apply(plane: ControlPlane) -> None:
    with local.manager(plane) as process, ready_model(plane, "fought"):
        settle(plane, process)
        mark = plane.audit_log.mark()
        plane.admin.merge(f"{DEPLOYMENTS}/fought", {"spec": {"replicas": 3}})
        eventually_sync(
            lambda: plane.admin.get(f"{DEPLOYMENTS}/fought")["spec"]["replicas"] == 1, within=10
        )
        eventually_sync(lambda: condition(plane, "fought", "Ready")["status"] == "True", within=30)
        settle(plane, process)
        assert len(writes(plane, mark).of("deployments")) == 1


def test_a_foreign_write_to_an_unowned_field_causes_none(plane: ControlPlane) -> None:
    with local.manager(plane) as process, ready_model(plane, "annotated"):
        settle(plane, process)
        mark, before = plane.audit_log.mark(), reconciles(process)
        note = {"metadata": {"annotations": {"team": "search"}}, "spec": {"paused": False}}
        plane.admin.merge(f"{DEPLOYMENTS}/annotated", note)
        plane.admin.merge(f"{SERVICES}/annotated", {"spec": {"sessionAffinity": "ClientIP"}})
        eventually_sync(lambda: reconciles(process) > before, within=10)
        settle(plane, process)
        assert writes(plane, mark) == ()
        service = plane.admin.get(f"{SERVICES}/annotated")
        assert service["spec"]["sessionAffinity"] == "ClientIP"


def test_a_model_that_goes_with_its_namespace_is_no_failure(plane: ControlPlane) -> None:
    head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "going"}}
    service = f"{SERVICES}/gone".replace("default", "going")
    with local.manager(plane) as process:
        plane.admin.create("/api/v1/namespaces", head)
        plane.admin.create(MODELS.replace("default", "going"), model("gone"))
        eventually_sync(lambda: plane.admin.get(service))
        with stopped(plane, "kube-controller-manager"):
            plane.kubectl("delete", "namespace", "going", "--wait=false")
            mark = plane.audit_log.mark()
            plane.admin.delete(service)
            eventually_sync(lambda: writes(plane, mark).of("services") != (), within=10)
        plane.kubectl("wait", "namespace", "going", "--for=delete", "--timeout=60s")
        sent = writes(plane, mark).of("services").at("going", "gone")
        assert {event.code for event in sent} == {403}
        assert "reconcile failed" not in process.log.read_text()


@contextmanager
def stopped(plane: ControlPlane, component: str) -> Iterator[None]:
    """Do without a component for a while."""
    plane.processes.stop(component)
    try:
        yield
    finally:
        plane.processes.start(component)
