# SPDX-License-Identifier: Apache-2.0
"""Managers that elect a leader on a real API server, and what takes the Lease from them.

The candidates are processes, so that they can be killed. Leases run at 3 s, 2 s and 0.4 s, a
fifth of the defaults; bounds on behaviour have a slack of five.
"""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.controlplane import ControlPlane, Options
from flexinfer.envtest.eventually import eventually_sync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flexinfer.meta.envelope import Tree

LEASE_DURATION, RENEW_DEADLINE, RETRY_PERIOD = 3.0, 2.0, 0.4
SLACK = 5
LOCK = "lock"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """Give a control plane of our own: its API server is killed now and then."""
    with ControlPlane.start(options=Options(controllers=False, kwok=False)) as running:
        yield running


@pytest.fixture
def home(plane: ControlPlane) -> str:
    """Give a namespace with an object to work on and a service account that may do so."""
    name = f"test-{secrets.token_hex(4)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    plane.admin.create("/api/v1/namespaces", body)
    plane.wait_service_account(name)
    plane.admin.create(f"/api/v1/namespaces/{name}/configmaps", configmap("first"))
    allow(plane, name, "get", "watch", "create", "update")
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": name}
    plane.admin.create(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}/rolebindings",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "candidate"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": "candidate",
            },
            "subjects": [subject],
        },
    )
    return name


def allow(plane: ControlPlane, namespace: str, *verbs: str) -> None:
    """Let candidates do *verbs* on Leases, and read their work."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/candidate"
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": list(verbs)},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]},
    ]
    body = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "candidate"},
        "rules": rules,
    }
    plane.admin.apply(path, body)


def configmap(name: str, **data: str) -> Tree:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def command(plane: ControlPlane, namespace: str, **data: str) -> None:
    """Have the leader do something in its next reconcile of a new object."""
    name = f"command-{secrets.token_hex(4)}"
    plane.admin.create(f"/api/v1/namespaces/{namespace}/configmaps", configmap(name, **data))


def leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def lease(plane: ControlPlane, namespace: str) -> Tree:
    return plane.admin.get(f"{leases(namespace)}/{LOCK}")


def holder(plane: ControlPlane, namespace: str) -> str:
    return str(lease(plane, namespace)["spec"]["holderIdentity"])


# --- candidates that are processes

CANDIDATE = """
import sys, time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar
import anyio
from flexinfer import log
from flexinfer.client.auth import ServiceAccountCredentials
from flexinfer.client.transport import Transport
from flexinfer.controller import Controller
from flexinfer.handler import enqueue_self
from flexinfer.leaderelection import LeaderElectionOptions, Leadership
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.reconcile import Result
from flexinfer.source import Source
from flexinfer.workqueue import WorkQueue

folder, server, namespace, identity, *times = sys.argv[1:]

class ConfigMap(Object):
    resource: ClassVar = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")
    data: dict[str, str] = {}

class Worker:
    def __init__(self, informer):
        self.informer = informer

    async def reconcile(self, request):
        logger.info("reconciling", object=request.name)
        found = ConfigMap.decode(self.informer.get(request))
        sleep, spin, shield = (float(found.data.get(key, 0)) for key in ("sleep", "spin", "shield"))
        time.sleep(sleep)
        until = time.monotonic() + spin
        while time.monotonic() < until:
            pass
        with anyio.CancelScope(shield=True):
            await anyio.sleep(shield)
        logger.info("reconciled", object=request.name)
        return Result()

@asynccontextmanager
async def connect():
    async with Transport(ServiceAccountCredentials(Path(folder), server)) as transport:
        yield transport

async def main():
    lease, deadline, retry = map(float, times)
    options = LeaderElectionOptions(
        name="lock", namespace=namespace, identity=identity,
        lease_duration=lease, renew_deadline=deadline, retry_period=retry,
    )
    settings = ManagerOptions(
        metrics_address="127.0.0.1:0", probe_address="127.0.0.1:0", grace=10
    )
    async with connect() as transport:
        manager = Manager(transport, options=settings, leadership=Leadership(options, connect))
        informer = manager.informers.informer(ConfigMap.resource, namespace=namespace)
        queue = WorkQueue("worker")
        sources = [Source(informer, enqueue_self)]
        manager.add(Controller("worker", Worker(informer), queue=queue, sources=sources))
        await manager.run()

log.configure(form=log.LogFormat.JSON, stream=sys.stdout)
logger = log.get_logger("candidate")
anyio.run(main)
"""


class Candidate:
    """Be one process that may lead."""

    def __init__(self, identity: str, argv: list[str], log: Path) -> None:
        self.identity = identity
        self._path = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CANDIDATE, *argv], stdout=file, stderr=file
            )

    def log(self) -> list[Tree]:
        lines = self._path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def count(self, msg: str, **values: object) -> int:
        wanted = {"msg": msg, **values}.items()
        return sum(wanted <= line.items() for line in self.log())

    def wait_for(self, msg: str, *, times: int = 1, within: float = 30.0, **values: object) -> None:
        def logged() -> None:
            assert self.count(msg, **values) >= times, self._path.read_text()[-3000:]

        eventually_sync(logged, within=within, every=0.02)

    def get(self, path: str, *, server: str = "probes") -> tuple[int, str]:
        (port,) = (line["port"] for line in self.log() if line["msg"] == f"serving {server}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def is_master(self) -> bool:
        metrics = self.get("/metrics", server="metrics")[1]
        assert f'leader_election_master_status{{name="{LOCK}"}}' in metrics
        return f'leader_election_master_status{{name="{LOCK}"}} 1.0' in metrics

    def exit_code(self, *, within: float) -> int:
        """Wait for its end."""
        return self.process.wait(within)


class Candidates:
    """Start processes of one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        self.plane = plane
        self.namespace = namespace
        self.folder = folder
        self.account = folder / "account"
        self.started: list[Candidate] = []
        self.write_account()

    def write_account(self) -> None:
        self.plane.write_service_account(self.account, self.namespace, "default")

    def start(self, identity: str) -> Candidate:
        times = [str(x) for x in (LEASE_DURATION, RENEW_DEADLINE, RETRY_PERIOD)]
        argv = [str(self.account), self.plane.url, self.namespace, identity, *times]
        self.started.append(Candidate(identity, argv, self.folder / f"{identity}.log"))
        return self.started[-1]

    def leader(self, identity: str) -> Candidate:
        started = self.start(identity)
        started.wait_for("reconciled", object="first")
        return started

    def standby(self, identity: str) -> Candidate:
        started = self.start(identity)
        started.wait_for("standing by")
        return started

    def kill(self) -> None:
        for candidate in self.started:
            candidate.process.kill()
            candidate.process.wait(20)


@pytest.fixture
def candidates(plane: ControlPlane, home: str, tmp_path: Path) -> Iterator[Candidates]:
    made = Candidates(plane, home, tmp_path)
    yield made
    made.kill()


def test_c51_sigterm_hands_over_at_once(
    plane: ControlPlane, home: str, candidates: Candidates
) -> None:
    first, second = candidates.leader("first"), candidates.standby("second")
    assert first.is_master()
    assert not second.is_master()
    eventually_sync(lambda: second.get("/readyz")[0] == 200)
    assert second.count("reconciling") == 0
    before = lease(plane, home)["spec"]
    began = time.monotonic()
    first.process.send_signal(signal.SIGTERM)
    second.wait_for("reconciled", object="first", within=1.0 * SLACK)
    assert time.monotonic() - began < 1.0 * SLACK
    assert first.exit_code(within=10) == 0
    after = lease(plane, home)["spec"]
    assert after["holderIdentity"] == "second"
    assert after["leaseTransitions"] == before["leaseTransitions"] + 1
    assert second.is_master()
    released = [line["msg"] for line in first.log()]
    assert released[-2:] == ["lease released", "stopped"]


def test_sigkill_is_followed_within_the_lease(
    plane: ControlPlane, home: str, candidates: Candidates
) -> None:
    first, second = candidates.leader("first"), candidates.standby("second")
    # Queued for the leader alone, and known to the standby too: it has to take it up.
    command(plane, home)
    first.wait_for("reconciled", times=2)
    renewed = lease(plane, home)["spec"]["renewTime"]
    first.process.send_signal(signal.SIGKILL)
    second.wait_for("reconciled", times=2, within=LEASE_DURATION * SLACK)
    taken = lease(plane, home)["spec"]
    assert taken["holderIdentity"] == "second"
    # One machine, one clock: the record was left alone for as long as it said.
    waited = datetime.fromisoformat(taken["acquireTime"]) - datetime.fromisoformat(renewed)
    assert waited.total_seconds() >= LEASE_DURATION
    assert second.count("reconciled") == 2


def test_c46_c74_a_leader_that_may_not_update_says_so_steps_down_and_comes_back(
    plane: ControlPlane, home: str, candidates: Candidates
) -> None:
    first = candidates.leader("first")
    allow(plane, home, "get", "watch", "create")
    first.wait_for("lease lost", within=RENEW_DEADLINE * SLACK)
    (lost,) = (line for line in first.log() if line["msg"] == "lease lost")
    assert "it was not renewed for 2 s" in lost["reason"]
    assert "cannot update resource" in lost["reason"]
    assert not first.is_master()

    def not_ready() -> None:
        status, text = first.get("/readyz")
        assert status == 500
        assert "[-]leader-election failed: lease" in text
        assert "cannot update resource" in text
        assert "[+]informer-configmaps" in text

    eventually_sync(not_ready, within=LEASE_DURATION * SLACK)
    assert first.get("/healthz") == (200, "ok")
    command(plane, home)
    allow(plane, home, "get", "watch", "create", "update")
    first.wait_for("reconciled", times=2, within=20)
    assert first.count("starting workers") == 2
    eventually_sync(lambda: first.get("/readyz")[0] == 200)
    assert first.process.poll() is None


@pytest.mark.parametrize("how", ["sleep", "spin"])
def test_c48_a_blocked_loop_keeps_the_lease(
    plane: ControlPlane, home: str, candidates: Candidates, how: str
) -> None:
    first, second = candidates.leader("first"), candidates.standby("second")
    before = lease(plane, home)["spec"]
    blocked = LEASE_DURATION + 1
    command(plane, home, **{how: str(blocked)})
    first.wait_for("reconciled", times=2, within=blocked * SLACK)
    after = lease(plane, home)["spec"]
    assert after["holderIdentity"] == "first"
    assert after["leaseTransitions"] == before["leaseTransitions"]
    assert second.count("leading") == 0
    assert second.count("reconciling") == 0
    status, text = first.get("/readyz")
    assert status == 500
    assert "[-]event-loop failed: the event loop was blocked for" in text


def test_c48_a_loop_that_does_not_stop_after_a_loss_ends_the_process(
    plane: ControlPlane, home: str, candidates: Candidates
) -> None:
    first = candidates.leader("first")
    command(plane, home, sleep="60")
    first.wait_for("reconciling", times=2)
    plane.admin.delete(f"{leases(home)}/{LOCK}")
    assert first.exit_code(within=(LEASE_DURATION - RENEW_DEADLINE + RETRY_PERIOD) * SLACK) == 1
    assert first.count("lease lost") == 1
    assert first.count("work went on after the lease was lost: ending the process") == 1


def test_c49_c74_a_leader_cut_off_says_so_steps_down_and_leads_again_in_the_same_process(
    plane: ControlPlane, home: str, candidates: Candidates
) -> None:
    first = candidates.leader("first")
    command(plane, home, shield="0.1")
    plane.processes.kill("kube-apiserver")
    try:
        first.wait_for("lease lost", within=RENEW_DEADLINE * SLACK)
        assert not first.is_master()
        eventually_sync(lambda: "[-]leader-election failed" in first.get("/readyz")[1])
        assert first.get("/healthz") == (200, "ok")
        assert first.count("leading") == 1
    finally:
        plane.processes.start("kube-apiserver")
        plane.wait_ready()
    first.wait_for("leading", times=2, within=20)
    eventually_sync(first.is_master)
    command(plane, home)
    first.wait_for("reconciled", times=3, within=30)
    assert first.process.poll() is None
    assert lease(plane, home)["spec"]["leaseTransitions"] == 1


def foreign(name: str = LOCK, **spec: object) -> Tree:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": {"team": "x"}},
        "spec": spec,
    }


@pytest.mark.parametrize(
    "spec",
    [
        {
            "holderIdentity": "of-client-go",
            "leaseDurationSeconds": 2,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000001Z",
            "leaseTransitions": 6,
        },
        {
            "holderIdentity": "of-another-zone",
            "leaseDurationSeconds": 2,
            "renewTime": "2026-01-01T02:00:00.000000+02:00",
        },
        {
            "holderIdentity": "of-the-future",
            "leaseDurationSeconds": 2,
            "renewTime": "2999-01-01T00:00:00.000000Z",
        },
        {"holderIdentity": "without-times"},
        {},
    ],
    ids=lambda spec: str(spec.get("holderIdentity", "empty")),
)
def test_c50_a_lease_of_anybody_is_read_waited_for_and_taken_over(
    plane: ControlPlane, home: str, candidates: Candidates, spec: Tree
) -> None:
    plane.kubectl("create", "-n", home, "-f", "-", stdin=json.dumps(foreign(**spec)))
    first = candidates.start("first")
    first.wait_for("reconciled", within=LEASE_DURATION * SLACK)
    taken = lease(plane, home)
    assert taken["metadata"]["labels"] == {"team": "x"}
    assert taken["spec"]["leaseTransitions"] == spec.get("leaseTransitions", 0) + 1
    for field in ("acquireTime", "renewTime"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", taken["spec"][field])


def test_c51_sigterm_while_standing_by_ends_at_once_and_leaves_the_lease_alone(
    plane: ControlPlane, home: str, candidates: Candidates
) -> None:
    candidates.leader("first")
    second = candidates.standby("second")
    mark = plane.audit_log.mark()
    second.process.send_signal(signal.SIGTERM)
    assert second.exit_code(within=2.0 * SLACK) == 0
    agents = {event.user_agent for event in plane.audit(mark).of("leases").at(home).writes()}
    assert len(agents) <= 1
    assert holder(plane, home) == "first"


def test_c51_sigterm_while_starting_leaves_no_lease_held(
    plane: ControlPlane, home: str, candidates: Candidates
) -> None:
    for number, msg in enumerate(["serving probes", "informers synced", "leading"]):
        started = candidates.start(f"started-{number}")
        started.wait_for(msg)
        started.process.send_signal(signal.SIGTERM)
        assert started.exit_code(within=2.0 * SLACK) == 0
        found = plane.admin.get(leases(home))["items"]
        assert [item["spec"]["holderIdentity"] for item in found] in ([], [""])


def test_c51_sigterm_with_a_token_that_has_just_expired_releases_with_the_new_one(
    plane: ControlPlane, home: str, candidates: Candidates
) -> None:
    first = candidates.leader("first")
    account = f"/api/v1/namespaces/{home}/serviceaccounts"
    # Tokens end with their account; the kubelet would have written a new one by now.
    plane.admin.delete(f"{account}/default")
    plane.wait_service_account(home)
    candidates.write_account()
    mark = plane.audit_log.mark()
    first.process.send_signal(signal.SIGTERM)
    assert first.exit_code(within=RENEW_DEADLINE * SLACK) == 0
    assert holder(plane, home) == ""
    refused = [event for event in plane.audit(mark) if event.code == 401]
    assert len(refused) <= 2
