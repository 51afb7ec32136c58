# SPDX-License-Identifier: Apache-2.0
"""The manager's role is the least that works: without any one right, something says which."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
import yaml
from structlog.testing import capture_logs

from flexinfer.client.auth import ServiceAccountCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.transport import Transport
from flexinfer.envtest.clock import ManualClock
from flexinfer.envtest.eventually import eventually_sync
from flexinfer.metrics import Registry
from flexinfer.recorder import EventBroadcaster, EventType, ObjectReference
from hack.localcluster import local
from hack.localcluster.expectations import ready_condition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree
    from hack.localcluster.processes import ManagerProcess

ROOT = Path(__file__).resolve().parents[2]
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/flexinfer-manager-role"
EVENTS = "events.k8s.io"
MODELS = "/apis/ai.flexinfer/v1alpha2/namespaces/default/models"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
SERVICES = "/api/v1/namespaces/default/services"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
GENERATED: Tree = yaml.safe_load((ROOT / "config/rbac/role.yaml").read_text())
RIGHTS = [
    (group, resource, verb)
    for rule in GENERATED["rules"]
    for group in rule["apiGroups"]
    for resource in rule["resources"]
    for verb in rule["verbs"]
]


def without(group: str, resource: str, verb: str) -> list[Tree]:
    """The generated rules, one right at a time, less this one."""
    return [
        {"apiGroups": [g], "resources": [r], "verbs": [v]}
        for g, r, v in RIGHTS
        if (g, r, v) != (group, resource, verb)
    ]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with local.cluster() as running:
        yield running


def allowed(plane: ControlPlane, group: str, resource: str, verb: str) -> bool:
    """What the API server's own authorizer says of the manager."""
    plural, _, subresource = resource.partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{local.NAMESPACE}:{local.SERVICE_ACCOUNT}",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {
                "group": group,
                "resource": plural,
                "subresource": subresource,
                "verb": verb,
            },
        },
    }
    answer = plane.admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def complaints(plane: ControlPlane, process: ManagerProcess) -> str:
    """All that says what is wrong: the probe, the model's condition, and the log."""
    message = ""
    for model in plane.admin.get(MODELS)["items"]:
        message += ready_condition(model).get("message", "")
    return "\n".join([process.probe("/readyz?verbose")[1], message, process.log.read_text()])


@pytest.mark.parametrize(("group", "resource", "verb"), RIGHTS, ids=lambda part: part or "core")
def test_without_a_right_something_names_it(
    plane: ControlPlane, group: str, resource: str, verb: str
) -> None:
    with role_without(plane, group, resource, verb), local.service_account(plane) as folder:
        if group == EVENTS:
            said = eventful(plane, folder)
        else:
            said = working(plane, folder, resource.partition("/")[0], verb)
    plural = resource.partition("/")[0]
    assert named(said, plural, verb), said[-3000:]


@contextmanager
def role_without(plane: ControlPlane, group: str, resource: str, verb: str) -> Iterator[None]:
    plane.admin.merge(ROLE, {"rules": without(group, resource, verb)})
    eventually_sync(lambda: not allowed(plane, group, resource, verb), within=10)
    try:
        yield
    finally:
        plane.admin.merge(ROLE, {"rules": GENERATED["rules"]})
        eventually_sync(lambda: allowed(plane, group, resource, verb), within=10)


def working(plane: ControlPlane, folder: Path, plural: str, verb: str) -> str:
    """What the manager says while it works on a model."""
    process = local.prepare(plane, folder)
    process.log.unlink(missing_ok=True)
    process.start("--log-format=json")
    try:
        if (plural, verb) == ("jobs", "get"):
            have_job(plane)
        make_work(plane)

        def says_it() -> str:
            change_work(plane)
            text = complaints(plane, process)
            assert named(text, plural, verb), text[-3000:]
            return text

        return eventually_sync(says_it, within=20, every=0.1)
    finally:
        plane.processes.stop("manager")
        if (plural, verb) == ("jobs", "get"):
            plane.admin.delete(f"{JOBS}/worker-cache-prefetch")
        clear(plane)


def eventful(plane: ControlPlane, folder: Path) -> str:
    """What the recorder says when an event and then its count are sent."""

    async def record() -> None:
        async with Transport(ServiceAccountCredentials(folder, plane.url)) as transport:
            clock = ManualClock()
            events = EventBroadcaster(DirectClient(transport), registry=Registry(), clock=clock)
            recorder = events.recorder("model-controller")
            about = ObjectReference("v1", "ConfigMap", "default", "subject")
            for _ in range(2):
                recorder.emit(
                    about, type=EventType.NORMAL, reason="Tested", action="Test", note="a right"
                )
                await events.send()
                await clock.sleep(60)
                await events.send()

    with capture_logs() as lines:
        anyio.run(record)
    return "\n".join(str(line) for line in lines)


def named(text: str, plural: str, verb: str) -> bool:
    """Whether one line says that this verb on this resource is forbidden."""
    lines = [line for line in text.splitlines() if plural in line and verb in line]
    return any("forbidden" in line.lower() for line in lines)


def make_work(plane: ControlPlane) -> None:
    """A model that makes the manager use every right it has, once `change_work` changed it."""
    release_volumes(plane)
    leave_behind(plane)
    plane.admin.create(
        MODELS,
        {
            "apiVersion": "ai.flexinfer/v1alpha2",
            "kind": "Model",
            "metadata": {"name": "worker", "annotations": {"flexinfer.ai/activate": "now"}},
            "spec": {
                "backend": "llamacpp",
                "source": "HF://acme/tiny-gguf",
                "serverless": {"enabled": False},
                "config": {"ggufFile": "tiny-q4_k_m.gguf"},
                "cache": {"size": "1Gi"},
            },
        },
    )


def leave_behind(plane: ControlPlane) -> None:
    """What an earlier model of the name left; an unknown version keeps the collector from it."""
    owner = {
        "apiVersion": "ai.flexinfer/v0",
        "kind": "Model",
        "name": "worker",
        "uid": "of-the-earlier-one",
        "controller": True,
    }
    labels = {"app": "left-behind"}
    pods = {"containers": [{"name": "main", "image": "example.com/left"}]}
    for path, name, spec in (
        (SERVICES, "worker", {"ports": [{"port": 80}]}),
        (
            DEPLOYMENTS,
            "worker",
            {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pods},
            },
        ),
        (
            CLAIMS,
            "worker-cache",
            {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "none",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        ),
    ):
        metadata = {"name": name, "ownerReferences": [owner]}
        plane.admin.create(path, {"metadata": metadata, "spec": spec})


def have_job(plane: ControlPlane) -> None:
    """A Job that is there before the model's own is made: one that is not is not asked for."""
    pods = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "example.com/left"}],
    }
    spec = {"suspend": True, "template": {"spec": pods}}
    plane.admin.create(JOBS, {"metadata": {"name": "worker-cache-prefetch"}, "spec": spec})


def change_work(plane: ControlPlane) -> None:
    """Let the Job of the model have something else to do as soon as there is one."""
    if plane.admin.get(JOBS)["items"]:
        config = {"ggufFile": "tiny-q8_0.gguf"}
        plane.admin.merge(f"{MODELS}/worker", {"spec": {"config": config}})


def release_volumes(plane: ControlPlane) -> None:
    """Let the volumes of claims that are gone be bound anew."""
    for volume in plane.admin.get(VOLUMES)["items"]:
        if volume["status"].get("phase") == "Released":
            name = volume["metadata"]["name"]
            plane.admin.merge(f"{VOLUMES}/{name}", {"spec": {"claimRef": None}})


def clear(plane: ControlPlane) -> None:
    """Remove the model, and wait until what it owned is gone too."""
    for path in (f"{MODELS}/worker", f"{DEPLOYMENTS}/worker", f"{SERVICES}/worker"):
        plane.admin.delete(path)
    plane.admin.delete(f"{CLAIMS}/worker-cache")

    def gone() -> None:
        for path in (DEPLOYMENTS, SERVICES, CLAIMS, JOBS):
            names = [item["metadata"]["name"] for item in plane.admin.get(path)["items"]]
            assert not [name for name in names if name.startswith("worker")]

    # The garbage collector looks for new kinds every 30 seconds, and Models are new here.
    eventually_sync(gone, within=90)


def test_the_role_has_no_wildcard() -> None:
    words = [word for right in RIGHTS for word in right]
    assert not [word for word in words if "*" in word]


def test_with_all_rights_nothing_is_forbidden(plane: ControlPlane) -> None:
    plane.processes.log("manager").unlink(missing_ok=True)
    with local.manager(plane) as process:
        make_work(plane)
        try:
            eventually_sync(
                lambda: (
                    ready_condition(plane.admin.get(f"{MODELS}/worker")).get("status") == "True"
                ),
                within=30,
            )
            assert "forbidden" not in complaints(plane, process).lower()
        finally:
            clear(plane)


def test_the_generated_role_is_the_one_installed(plane: ControlPlane) -> None:
    assert plane.admin.get(ROLE)["rules"] == GENERATED["rules"]
    check = subprocess.run(
        [str(Path(sys.executable).with_name("flexinfer")), "manifests", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stderr
