# SPDX-License-Identifier: Apache-2.0
"""`flexinfer manager --leader-elect` with exactly the rights of config/rbac."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.eventually import eventually_sync
from hack.localcluster import local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.controlplane import ControlPlane

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{local.NAMESPACE}/leases/flexinfer-manager"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with local.cluster() as running:
        yield running


def test_the_role_allows_all_that_an_election_needs(plane: ControlPlane) -> None:
    with local.service_account(plane) as folder:
        process = local.prepare(plane, folder)
        mark = plane.audit_log.mark()
        process.start("--log-format=json", "--leader-elect")
        try:
            process.wait_ready()
            eventually_sync(
                lambda: (
                    'leader_election_master_status{name="flexinfer-manager"} 1.0'
                    in process.metrics()
                )
            )
            identity = plane.admin.get(LEASE)["spec"]["holderIdentity"]
            assert "[+]leader-election ok" in process.probe("/readyz?verbose")[1]
            assert "[+]leader-election ok" in process.probe("/healthz?verbose")[1]
        finally:
            plane.processes.stop("manager")
        assert plane.admin.get(LEASE)["spec"]["holderIdentity"] == ""
        # A dead holder, so that the next one has to stand by and watch.
        plane.admin.merge(LEASE, {"spec": {"holderIdentity": "dead", "leaseDurationSeconds": 2}})
        process.start("--log-format=json", "--leader-elect")
        try:
            eventually_sync(
                lambda: plane.admin.get(LEASE)["spec"]["holderIdentity"] not in {"dead", identity},
                within=30,
            )
        finally:
            plane.processes.stop("manager")
    sent = plane.audit(mark).of("leases").at(local.NAMESPACE)
    assert {event.verb for event in sent} >= {"get", "create", "watch", "update"}
    assert [event for event in sent if event.code == 403] == []
    agents = {event.user_agent for event in sent if "leader-election" in event.user_agent}
    assert len(agents) == 2
    assert any(identity in agent for agent in agents)
