# SPDX-License-Identifier: Apache-2.0
"""Pods of local images really run: Jobs of a real control plane, as processes of this machine."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.eventually import eventually_sync
from flexinfer.errors import NotFoundError
from hack.podrunner.process import PodRunner, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree

IMAGE = "flexinfer.local/flexinfer:dev"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"
# A failed pod of a Job is followed after ten seconds, and only by the Job controller.
WITHIN = 45.0


@dataclass(frozen=True)
class Cluster:
    """One namespace with a node of its own and a runner that heeds it alone."""

    plane: ControlPlane
    namespace: str
    node: str
    runner: PodRunner

    def path(self, plural: str, name: str = "") -> str:
        root = "/apis/batch/v1" if plural == "jobs" else "/api/v1"
        return f"{root}/namespaces/{self.namespace}/{plural}{'/' if name else ''}{name}"

    def create(self, kind: str, name: str, body: Tree) -> Tree:
        version = "batch/v1" if kind == "Job" else "v1"
        head = {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
        return self.plane.admin.create(self.path(plurals(kind)), head | body)

    def get(self, plural: str, name: str) -> Tree:
        return self.plane.admin.get(self.path(plural, name))

    def template(self, container: Tree, **spec: object) -> Tree:
        return {
            "nodeName": self.node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 20,
            "containers": [{"name": "main", "image": IMAGE, **container}],
            **spec,
        }

    def job(self, name: str, container: Tree, *, pod: Tree | None = None, **spec: object) -> Tree:
        """Create a Job of one container."""
        template = {"spec": self.template(container, **(pod or {}))}
        return self.create("Job", name, {"spec": {"template": template, **spec}})

    def pod(self, name: str, container: Tree, **spec: object) -> Tree:
        return self.create("Pod", name, {"spec": self.template(container, **spec)})

    def pods(self, job: str) -> list[Tree]:
        """Return the pods of a Job, the oldest first."""
        found = self.plane.admin.get(self.path("pods"), labelSelector=f"job-name={job}")["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def ends(self, job: str, condition: str) -> Tree:
        """Wait until a Job is Complete or Failed, and return that condition."""

        def claim() -> Tree:
            conditions: list[Tree] = self.get("jobs", job)["status"].get("conditions", [])
            found = {c["type"]: c for c in conditions}
            assert condition in found, (conditions, [pod["status"] for pod in self.pods(job)])
            return found[condition]

        return eventually_sync(claim, within=WITHIN)

    def state(self, pod: str, kind: str, *, within: float = 20.0, **expected: object) -> Tree:
        """Wait until the container of a pod is waiting, running or terminated like that."""

        def claim() -> Tree:
            status = self.get("pods", pod)["status"]
            state: Tree = status["containerStatuses"][0]["state"]
            assert kind in state, status
            assert expected.items() <= state[kind].items(), status
            return status

        return eventually_sync(claim, within=within)

    def is_gone(self, plural: str, name: str) -> bool:
        try:
            self.get(plural, name)
        except NotFoundError:
            return True
        return False


def plurals(kind: str) -> str:
    return f"{kind.lower()}s"


def shell(script: str) -> Tree:
    return {"command": ["sh", "-c", script]}


def terminated(pod: Tree) -> Tree:
    state: Tree = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return state


def claim_of(name: str) -> Tree:
    return {"name": "data", "persistentVolumeClaim": {"claimName": name}}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str) -> Iterator[Cluster]:
    """A quick runner: its first back-off is a tenth of a second."""
    node = control_plane.nodes.add("cpu", f"{namespace}-cpu")
    with running(control_plane, namespace=namespace, backoff=0.1) as runner:
        yield Cluster(control_plane, namespace, node, runner)
    control_plane.nodes.remove(node)


def test_a_job_that_succeeds_is_complete_and_its_pod_says_how_it_went(cluster: Cluster) -> None:
    script = "import os; print(os.environ['GREETING']); print(os.environ['NAME'])"
    environment = [
        {"name": "WHOM", "value": "world"},
        {"name": "GREETING", "value": "hello $(WHOM)"},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    cluster.job("fine", {"command": ["python", "-c", script], "env": environment})
    cluster.ends("fine", "Complete")
    (pod,) = cluster.pods("fine")
    assert pod["status"]["phase"] == "Succeeded"
    ended = terminated(pod)
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert ended["startedAt"] <= ended["finishedAt"]
    conditions = {c["type"]: c for c in pod["status"]["conditions"]}
    assert conditions["Ready"]["reason"] == "PodCompleted"
    assert {"PodScheduled", "Initialized", "ContainersReady"} <= conditions.keys() or (
        "Initialized" in conditions
    )
    name = pod["metadata"]["name"]
    assert cluster.runner.container_log(name, "main").read_text() == f"hello world\n{name}\n"


def test_the_flexinfer_image_needs_no_command(cluster: Cluster) -> None:
    cluster.job("version", {"args": ["--help"]})
    cluster.ends("version", "Complete")
    (pod,) = cluster.pods("version")
    log = cluster.runner.container_log(pod["metadata"]["name"], "main")
    assert "Usage: flexinfer" in log.read_text()
