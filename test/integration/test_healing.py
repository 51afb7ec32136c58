# SPDX-License-Identifier: Apache-2.0
"""What breaks on the local cluster heals by itself, with the managers as real processes."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.eventually import eventually_sync
from hack.localcluster import local
from hack.localcluster.expectations import observed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree
    from hack.localcluster.processes import ManagerProcess

NAMESPACED = "namespaces/default"
MODELS = f"/apis/ai.flexinfer/v1alpha2/{NAMESPACED}/models"
DEPLOYMENTS = f"/apis/apps/v1/{NAMESPACED}/deployments"
REPLICA_SETS = f"/apis/apps/v1/{NAMESPACED}/replicasets"
SERVICES = f"/api/v1/{NAMESPACED}/services"
PODS = f"/api/v1/{NAMESPACED}/pods"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/flexinfer-system/leases/flexinfer-manager"
USER = f"system:serviceaccount:{local.NAMESPACE}:{local.SERVICE_ACCOUNT}"
# Lease 3 s, renew deadline 2 s, retry 0.4 s: a fifth of the defaults.
LEASE_SECONDS = 3.0
ELECTION = (
    "--leader-elect",
    f"--leader-elect-lease-duration={LEASE_SECONDS}",
    "--leader-elect-renew-deadline=2",
    "--leader-elect-retry-period=0.4",
)
SLACK = 5


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with local.cluster() as running:
        yield running


@contextmanager
def crew(plane: ControlPlane, *names: str) -> Iterator[list[ManagerProcess]]:
    """Candidates for one Lease; whatever became of them is ended."""
    with ExitStack() as stack:
        folder = stack.enter_context(local.service_account(plane))
        members = [local.prepare(plane, folder, name=name) for name in names]
        for member in members:
            stack.callback(plane.processes.stop, member.name, grace=40.0)
            member.start("--log-format=json", *ELECTION)
            member.wait_ready()
        eventually_sync(partial(is_led, plane), within=30)
        yield members


def is_led(plane: ControlPlane) -> bool:
    return bool(holder(plane))


def holder(plane: ControlPlane) -> str:
    return str(plane.admin.get(LEASE)["spec"].get("holderIdentity") or "")


def leading_first(members: list[ManagerProcess]) -> list[ManagerProcess]:
    """The one whose metric says that it leads, then the others."""

    def sorted_by_rank() -> list[ManagerProcess]:
        ranked = sorted(members, key=leads, reverse=True)
        assert leads(ranked[0])
        return ranked

    return eventually_sync(sorted_by_rank, within=20)


def leads(member: ManagerProcess) -> bool:
    lines = member.metrics().splitlines()
    return any(
        line.startswith("leader_election_master_status{") and line.endswith(" 1.0")
        for line in lines
    )


@contextmanager
def model(plane: ControlPlane, name: str) -> Iterator[None]:
    spec = {
        "backend": "llamacpp",
        "source": "HF://ggml-org/models",
        "cache": {"strategy": "None"},
        "serverless": {"minReplicas": 1},
        "config": {"ggufFile": "tiny.gguf"},
    }
    body = {"apiVersion": "ai.flexinfer/v1alpha2", "kind": "Model", "spec": spec}
    plane.admin.create(MODELS, body | {"metadata": {"name": name}})
    try:
        yield
    finally:
        plane.admin.delete(f"{MODELS}/{name}")


def is_ready(plane: ControlPlane, name: str) -> None:
    state = observed(plane.admin.get(f"{MODELS}/{name}"))
    assert (state.phase, state.ready) == ("Ready", "True"), state


def replicas(plane: ControlPlane, name: str) -> int:
    return int(plane.admin.get(f"{DEPLOYMENTS}/{name}")["spec"]["replicas"])


def ready_replicas(plane: ControlPlane, name: str) -> int:
    return int(plane.admin.get(f"{DEPLOYMENTS}/{name}")["status"].get("readyReplicas", 0))


def edit(plane: ControlPlane, name: str, count: int) -> None:
    plane.admin.merge(f"{MODELS}/{name}", {"spec": {"serverless": {"minReplicas": count}}})


def test_an_edit_just_before_the_api_server_dies_takes_effect(plane: ControlPlane) -> None:
    with crew(plane, "a") as (manager,), model(plane, "edited"):
        eventually_sync(partial(is_ready, plane, "edited"), within=60)
        edit(plane, "edited", 2)
        plane.processes.kill("kube-apiserver")
        time.sleep(20)  # the outage itself, not a wait for something
        plane.processes.start("kube-apiserver")
        plane.wait_ready(within=60)
        # 30 s is the longest backoff of a watch, and of a reconcile that failed meanwhile.
        eventually_sync(lambda: replicas(plane, "edited") == 2, within=60)
        # kube-controller-manager waits as long, and the next tests need it back.
        eventually_sync(lambda: ready_replicas(plane, "edited") == 2, within=80)
        eventually_sync(partial(is_ready, plane, "edited"), within=60)
        # It would be found by `check` if it had ended.
        plane.processes.check()
        manager.wait_ready()


def test_a_killed_leader_is_followed_within_the_lease(plane: ControlPlane) -> None:
    with crew(plane, "a", "b") as members, model(plane, "followed"):
        eventually_sync(partial(is_ready, plane, "followed"), within=60)
        leader, standby = leading_first(members)
        plane.processes.kill(leader.name)
        edit(plane, "followed", 2)
        eventually_sync(partial(leads, standby), within=LEASE_SECONDS * SLACK)
        eventually_sync(lambda: replicas(plane, "followed") == 2, within=30)


def test_a_stopped_leader_hands_over_at_once(plane: ControlPlane) -> None:
    with crew(plane, "a", "b") as members:
        leader, standby = leading_first(members)
        before = holder(plane)
        plane.processes.stop(leader.name, grace=40.0)
        eventually_sync(partial(leads, standby), within=1.0 * SLACK, every=0.02)
        assert holder(plane) != before


@pytest.mark.parametrize("collection", [DEPLOYMENTS, SERVICES], ids=["deployment", "service"])
def test_a_child_that_is_deleted_comes_back(plane: ControlPlane, collection: str) -> None:
    with crew(plane, "a"), model(plane, "missed"):
        eventually_sync(partial(is_ready, plane, "missed"), within=60)
        uid = plane.admin.get(f"{collection}/missed")["metadata"]["uid"]
        plane.admin.delete(f"{collection}/missed")
        eventually_sync(partial(is_made_anew, plane, f"{collection}/missed", uid), within=30)
        eventually_sync(partial(is_ready, plane, "missed"), within=60)


def is_made_anew(plane: ControlPlane, path: str, uid: str) -> bool:
    return bool(plane.admin.get(path)["metadata"]["uid"] != uid)


def test_a_child_that_is_edited_is_put_back(plane: ControlPlane) -> None:
    with crew(plane, "a"), model(plane, "mended"):
        eventually_sync(partial(is_ready, plane, "mended"), within=60)
        plane.admin.merge(f"{DEPLOYMENTS}/mended", {"spec": {"replicas": 5}})
        plane.admin.merge(f"{SERVICES}/mended", {"spec": {"selector": {"flexinfer.ai/model": "x"}}})
        eventually_sync(lambda: replicas(plane, "mended") == 1, within=30)
        eventually_sync(
            lambda: (
                plane.admin.get(f"{SERVICES}/mended")["spec"]["selector"]["flexinfer.ai/model"]
                == "mended"
            ),
            within=30,
        )


def nothing_of(plane: ControlPlane, name: str) -> None:
    for path in (MODELS, DEPLOYMENTS, SERVICES):
        names = [item["metadata"]["name"] for item in plane.admin.get(path)["items"]]
        assert name not in names, path
    for path in (REPLICA_SETS, PODS):
        made = plane.admin.get(path, labelSelector=f"flexinfer.ai/model={name}")["items"]
        # A pod that is being deleted waits for its simulated kubelet, which may be deaf meanwhile.
        assert [item for item in made if "deletionTimestamp" not in item["metadata"]] == [], path


def creates(plane: ControlPlane, mark: int, name: str) -> list[Tree]:
    trail = plane.audit(mark).by(USER).at("default", name).verbs("patch", "create")
    return [event.body for event in trail if event.code == 201]


def test_a_model_deleted_while_no_manager_runs_leaves_nothing(plane: ControlPlane) -> None:
    with crew(plane, "a"), model(plane, "orphaned"):
        eventually_sync(partial(is_ready, plane, "orphaned"), within=60)
        plane.processes.stop("a", grace=40.0)
        plane.admin.delete(f"{MODELS}/orphaned")
    mark = plane.audit_log.mark()
    with crew(plane, "b"):
        # The garbage collector looks for new kinds every 30 seconds, and Models are new here.
        eventually_sync(partial(nothing_of, plane, "orphaned"), within=90)
        assert creates(plane, mark, "orphaned") == []


def test_a_model_deleted_as_the_api_server_is_cut_off_leaves_nothing(plane: ControlPlane) -> None:
    with crew(plane, "a") as (manager,):
        with model(plane, "cut"):
            # In the middle of its first reconciles: a child is there, Ready is not.
            eventually_sync(lambda: replicas(plane, "cut") == 1, within=30, every=0.005)
            plane.processes.kill("kube-apiserver")
            plane.processes.start("kube-apiserver")
            plane.wait_ready(within=60)
        # Until its informer has seen the deletion, the manager may rightly make a child once more.
        sees_a_new_model(plane, "after")
        # For an owner that it could not see meanwhile, the garbage collector waits twice as long as
        # before each time, up to 1,000 s. What a new one does not collect, is not to be collected.
        plane.processes.kill("kube-controller-manager")
        plane.processes.start("kube-controller-manager")
        eventually_sync(partial(nothing_of, plane, "cut"), within=60)
        manager.wait_ready()
        mark = plane.audit_log.mark()
        sees_a_new_model(plane, "later")
        assert creates(plane, mark, "cut") == []
        nothing_of(plane, "cut")


def sees_a_new_model(plane: ControlPlane, name: str) -> None:
    """Proof that the manager saw every change before it: one informer, one order."""
    with model(plane, name):
        eventually_sync(lambda: replicas(plane, name) == 1, within=60)
