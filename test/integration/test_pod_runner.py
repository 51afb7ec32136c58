# SPDX-License-Identifier: Apache-2.0
"""Pods of local images really run: Jobs of a real control plane, as processes of this machine."""

from __future__ import annotations

import base64
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.eventually import eventually_sync
from flexinfer.envtest.ports import free_ports
from flexinfer.errors import NotFoundError
from hack.podrunner.process import PodRunner, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree

IMAGE = "flexinfer.local/flexinfer:dev"
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
            "nodeSelector": {"kubernetes.io/hostname": self.node},
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
        found: list[Tree]
        found = self.plane.admin.get(self.path("pods"), labelSelector=f"job-name={job}")["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def ends(self, job: str, condition: str) -> Tree:
        """Wait until a Job is Complete or Failed, and return that condition."""

        def claim() -> Tree:
            conditions: list[Tree] = self.get("jobs", job)["status"].get("conditions", [])
            found: dict[str, Tree] = {c["type"]: c for c in conditions}
            assert condition in found, (conditions, [pod["status"] for pod in self.pods(job)])
            return found[condition]

        return eventually_sync(claim, within=WITHIN)

    def state(self, pod: str, kind: str, *, within: float = 20.0, **expected: object) -> Tree:
        """Wait until the container of a pod is waiting, running or terminated like that."""

        def claim() -> Tree:
            status: Tree = self.get("pods", pod)["status"]
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


def free_of_taints(plane: ControlPlane, node: str) -> None:
    """Wait until the node controller has taken back the taint of a node that was not Ready."""
    path = f"/api/v1/nodes/{node}"
    eventually_sync(lambda: not plane.admin.get(path)["spec"].get("taints"))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second when it ends while it is read
        return False


@contextmanager
def clustered(
    plane: ControlPlane, namespace: str, *, backoff: float, processes: int = 16
) -> Iterator[Cluster]:
    node = plane.nodes.add("cpu", f"{namespace}-cpu")
    free_of_taints(plane, node)
    with running(plane, namespace=namespace, backoff=backoff, processes=processes) as runner:
        yield Cluster(plane, namespace, node, runner)
    plane.nodes.remove(node)


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[Cluster]:
    """A quick runner, shared by the tests: its first back-off is a tenth of a second."""
    name = f"runner-{secrets.token_hex(4)}"
    head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    control_plane.admin.create("/api/v1/namespaces", head)
    control_plane.wait_service_account(name)
    with clustered(control_plane, name, backoff=0.1) as shared:
        yield shared
    control_plane.admin.delete(f"/api/v1/namespaces/{name}")


def test_a_job_that_succeeds_is_complete_and_its_pod_says_how_it_went(cluster: Cluster) -> None:
    script = "import os; print(os.environ['GREETING']); print(os.environ['NAME'])"
    environment = [
        {"name": "WHOM", "value": "world"},
        {"name": "GREETING", "value": "hello $(WHOM)"},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    mark = cluster.plane.audit_log.mark()
    cluster.job("fine", {"command": ["python", "-c", script], "env": environment})
    cluster.ends("fine", "Complete")
    (pod,) = cluster.pods("fine")
    assert pod["status"]["phase"] == "Succeeded"
    ended = terminated(pod)
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert ended["startedAt"] <= ended["finishedAt"]
    conditions = {c["type"]: c for c in pod["status"]["conditions"]}
    assert conditions["Ready"]["reason"] == "PodCompleted"
    assert {"PodScheduled", "Initialized", "ContainersReady"} <= conditions.keys()
    name = pod["metadata"]["name"]
    assert cluster.runner.container_log(name, "main").read_text() == f"hello world\n{name}\n"
    # Running and Succeeded; a heartbeat would show here.
    writes = cluster.plane.audit(mark).by("admin").of("pods", "status")
    assert len([write for write in writes.at(cluster.namespace, name) if write.code == 200]) in {
        1,
        2,
    }


def test_the_flexinfer_image_needs_no_command(cluster: Cluster) -> None:
    cluster.job("version", {"args": ["--help"]})
    cluster.ends("version", "Complete")
    (pod,) = cluster.pods("version")
    log = cluster.runner.container_log(pod["metadata"]["name"], "main")
    assert "Usage: flexinfer" in log.read_text()


def test_a_job_whose_first_pod_fails_is_complete_by_its_second(cluster: Cluster) -> None:
    volume = claim(cluster, "attempts")
    script = "echo try >> tries; test $(wc -l < tries) -gt 1 || { echo no luck >&2; exit 1; }"
    cluster.job(
        "again",
        mounted("/data", 'cd "$DATA" && ' + script, DATA="/data")
        | {"terminationMessagePolicy": "FallbackToLogsOnError"},
        pod={"volumes": [volume]},
        backoffLimit=2,
    )
    cluster.ends("again", "Complete")
    first, second = cluster.pods("again")
    assert (terminated(first)["exitCode"], terminated(first)["message"]) == (1, "no luck\n")
    assert first["status"]["phase"] == "Failed"
    assert (terminated(second)["exitCode"], terminated(second).get("message")) == (0, None)


def test_a_pod_failure_policy_ends_a_job_by_the_exit_code(cluster: Cluster) -> None:
    rule = {"containerName": "main", "operator": "In", "values": [2]}
    cluster.job(
        "hopeless",
        shell("exit 2"),
        backoffLimit=6,
        podFailurePolicy={"rules": [{"action": "FailJob", "onExitCodes": rule}]},
    )
    assert cluster.ends("hopeless", "Failed")["reason"] == "PodFailurePolicy"
    (pod,) = cluster.pods("hopeless")
    assert terminated(pod)["exitCode"] == 2


def test_a_variable_comes_from_a_secret_once_it_is_there(cluster: Cluster) -> None:
    def secret(name: str, key: str, **more: object) -> Tree:
        return {"valueFrom": {"secretKeyRef": {"name": name, "key": key, **more}}}

    environment = [
        {"name": "MAY_LACK", **secret("none", "none", optional=True)},
        {"name": "HF_TOKEN", **secret("hub", "token")},
    ]
    cluster.pod("private", {**shell('echo "$HF_TOKEN ${MAY_LACK-unset}"'), "env": environment})
    reason = "CreateContainerConfigError"
    status = cluster.state("private", "waiting", reason=reason, message='secret "hub" not found')
    assert status["phase"] == "Pending"
    cluster.create("Secret", "hub", {"stringData": {"other": "x"}})
    missing = f"couldn't find key token in Secret {cluster.namespace}/hub"
    cluster.state("private", "waiting", reason=reason, message=missing)
    token = base64.b64encode(b"hf_secret").decode()
    cluster.plane.admin.merge(cluster.path("secrets", "hub"), {"data": {"token": token}})
    cluster.state("private", "terminated", exitCode=0)
    assert cluster.runner.container_log("private", "main").read_text() == "hf_secret unset\n"
    assert "hf_secret" not in cluster.runner.log.read_text()


def test_two_jobs_that_mount_one_claim_see_one_content(cluster: Cluster) -> None:
    volume = claim(cluster, "models")
    writer = {
        "command": ["python", "-c", "import sys; open(sys.argv[1], 'w').write('weights')"],
        "args": ["/models/tiny/model.bin"],
        "volumeMounts": [
            {"name": "data", "mountPath": "/models"},
            {"name": "data", "mountPath": "/models/tiny", "subPath": "tiny"},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
    }
    scratch = {"name": "scratch", "emptyDir": {}}
    cluster.job("writer", writer, pod={"volumes": [volume, scratch]})
    cluster.ends("writer", "Complete")
    cluster.job(
        "reader", mounted("/m", 'cat "$M/tiny/model.bin"', M="/m"), pod={"volumes": [volume]}
    )
    cluster.ends("reader", "Complete")
    (pod,) = cluster.pods("reader")
    log = cluster.runner.container_log(pod["metadata"]["name"], "main")
    assert log.read_text() == "weights"
    bound = cluster.get("persistentvolumeclaims", "models")["spec"]["volumeName"]
    assert (cluster.runner.folder / "volumes" / bound / "tiny/model.bin").exists()


def test_a_termination_message_is_what_the_container_wrote(cluster: Cluster) -> None:
    script = 'echo noise; printf done > "$FLEXINFER_TERMINATION_LOG"; exit 3'
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    cluster.pod("said", {**shell(script), **policy})
    cluster.state("said", "terminated", exitCode=3, message="done", reason="Error")
    cluster.pod("chatty", {**shell("seq 1 1000; exit 1"), **policy})
    status = cluster.state("chatty", "terminated", exitCode=1)
    lines = status["containerStatuses"][0]["state"]["terminated"]["message"].splitlines()
    assert lines == [str(number) for number in range(921, 1001)]
    cluster.pod("silent", shell("echo lost; exit 1"))
    status = cluster.state("silent", "terminated", exitCode=1)
    assert "message" not in status["containerStatuses"][0]["state"]["terminated"]


def test_a_container_that_fails_is_restarted_in_its_pod(cluster: Cluster) -> None:
    script = "echo run >> runs; test $(wc -l < runs) -gt 3"
    cluster.pod("stubborn", shell(script), restartPolicy="OnFailure")
    status = cluster.state("stubborn", "terminated", exitCode=0)
    (container,) = status["containerStatuses"]
    assert (container["restartCount"], status["phase"]) == (3, "Succeeded")
    assert container["lastState"]["terminated"]["exitCode"] == 1


def test_a_container_that_keeps_failing_backs_off_and_one_too_many_waits(
    control_plane: ControlPlane, namespace: str
) -> None:
    with clustered(control_plane, namespace, backoff=60.0, processes=1) as slow:
        slow.pod("crashing", shell("exit 1"), restartPolicy="Always")
        status = slow.state("crashing", "waiting", reason="CrashLoopBackOff")
        slow.pod("alone", shell("exec sleep 600"))
        slow.state("alone", "running")
        slow.pod("next", shell("true"))
        message = "1 containers run already: one has to end first"
        slow.state("next", "waiting", reason="ContainerCreating", message=message)
        slow.plane.admin.delete(slow.path("pods", "alone"))
        slow.state("next", "terminated", exitCode=0)
    (container,) = status["containerStatuses"]
    message = container["state"]["waiting"]["message"]
    assert message.startswith("back-off 60s restarting failed container=main pod=crashing_")
    assert (container["restartCount"], status["phase"]) == (1, "Running")
    assert container["lastState"]["terminated"]["exitCode"] == 1


def test_a_pod_without_a_command_or_with_an_unknown_one_says_so(cluster: Cluster) -> None:
    cluster.pod("commandless", {"image": "flexinfer.local/other:1"})
    message = "no command specified for flexinfer.local/other:1"
    cluster.state("commandless", "waiting", reason="CreateContainerError", message=message)
    cluster.pod("misspelt", {"command": ["no-such-program"]})
    status = cluster.state("misspelt", "terminated", exitCode=128, reason="StartError")
    assert status["phase"] == "Failed"
    assert "no-such-program" in status["containerStatuses"][0]["state"]["terminated"]["message"]
    volumes = [{"name": "data", "configMap": {"name": "any"}}]
    cluster.pod("configured", mounted("/data", "true"), volumes=volumes)
    message = "the pod runner does not support volume data of kind configMap"
    cluster.state("configured", "waiting", reason="CreateContainerConfigError", message=message)


def test_a_deleted_pod_is_asked_to_end_and_then_goes(cluster: Cluster) -> None:
    script = "trap 'echo asked; exit 7' TERM; echo $$$$; while :; do sleep 0.05; done"
    pod = cluster.pod("polite", shell(script))
    pid = pid_of(cluster, "polite")
    cluster.plane.admin.delete(cluster.path("pods", "polite"))
    eventually_sync(partial(cluster.is_gone, "pods", "polite"))
    assert not is_alive(pid)
    assert cluster.runner.container_log("polite", "main").read_text().endswith("asked\n")
    folder = cluster.runner.folder / "pods" / pod["metadata"]["uid"]
    eventually_sync(lambda: not folder.exists())


def test_a_deleted_pod_that_does_not_end_is_killed_after_its_grace_period(
    cluster: Cluster,
) -> None:
    script = "trap '' TERM; echo $$$$; while :; do sleep 0.05; done"
    cluster.pod("deaf", shell(script))
    pid = pid_of(cluster, "deaf")
    cluster.plane.admin.delete(cluster.path("pods", "deaf"), {"gracePeriodSeconds": 1})
    eventually_sync(partial(cluster.is_gone, "pods", "deaf"))
    assert not is_alive(pid)


def test_a_job_that_is_deleted_while_it_runs_takes_its_process_along(cluster: Cluster) -> None:
    cluster.job("long", shell("echo $$$$; exec sleep 600"))
    pod = eventually_sync(lambda: cluster.pods("long")[0])
    pid = pid_of(cluster, pod["metadata"]["name"])
    cluster.plane.admin.delete(cluster.path("jobs", "long"), {"propagationPolicy": "Foreground"})
    eventually_sync(partial(cluster.is_gone, "jobs", "long"))
    assert cluster.pods("long") == []
    assert not is_alive(pid)


def test_a_pod_that_vanishes_takes_its_process_along(cluster: Cluster) -> None:
    cluster.pod("forced", shell("echo $$$$; exec sleep 600"))
    pid = pid_of(cluster, "forced")
    cluster.plane.admin.delete(cluster.path("pods", "forced"), {"gracePeriodSeconds": 0})
    eventually_sync(lambda: not is_alive(pid))


def test_a_killed_runner_leaves_no_process_and_its_follower_says_what_was_lost(
    cluster: Cluster,
) -> None:
    cluster.pod("once", shell("echo $$$$; exec sleep 600"))
    counted = "echo $$$$ >> pids; test $(wc -l < pids) -gt 1 || exec sleep 600"
    cluster.pod("twice", shell(counted), restartPolicy="OnFailure")
    pid = pid_of(cluster, "once")
    cluster.state("twice", "running")
    cluster.runner.kill()
    eventually_sync(lambda: not is_alive(pid))
    cluster.runner.start()
    status = cluster.state("once", "terminated", exitCode=137, reason="ContainerStatusUnknown")
    assert status["phase"] == "Failed"
    status = cluster.state("twice", "terminated", exitCode=0)
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Succeeded", 1)
    assert status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137


def test_readiness_is_asked_of_the_server(cluster: Cluster) -> None:
    (port,) = free_ports(1)
    serve = "exec python -m http.server --bind 127.0.0.1 $PORT"
    script = f'test -e "$GATE/open" || mkdir -p "$GATE/site"; cd "$GATE/site"; {serve}'
    gate = {"name": "data", "emptyDir": {}}
    probe = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1}
    container = mounted("/gate", script, GATE="/gate", PORT=str(port)) | {"readinessProbe": probe}
    pod = cluster.pod("serving", container, volumes=[gate])
    cluster.state("serving", "running")
    assert not is_ready(cluster, "serving")
    site = cluster.runner.folder / "pods" / pod["metadata"]["uid"] / "volumes/data/site"
    eventually_sync(lambda: (site / "health").write_text("ok") > 0)
    eventually_sync(partial(is_ready, cluster, "serving"))


def is_ready(cluster: Cluster, pod: str) -> bool:
    conditions: list[Tree] = cluster.get("pods", pod)["status"]["conditions"]
    return "True" in [c["status"] for c in conditions if c["type"] == "Ready"]


def pid_of(cluster: Cluster, pod: str) -> int:
    """Wait for a running container that says its process id first."""
    cluster.state(pod, "running")
    log = cluster.runner.container_log(pod, "main")
    return eventually_sync(lambda: int(log.read_text().splitlines()[0]))


def claim(cluster: Cluster, name: str) -> Tree:
    """Create a claim and a volume for it on the node; return the pod's volume `data`."""
    cluster.plane.add_volume(cluster.node)
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    cluster.create("PersistentVolumeClaim", name, {"spec": spec})
    return claim_of(name)


def mounted(path: str, script: str, **environment: str) -> Tree:
    """A shell container with the volume `data` at *path*."""
    return {
        **shell(script),
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [{"name": "data", "mountPath": path}],
    }
