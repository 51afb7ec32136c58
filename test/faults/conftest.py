# SPDX-License-Identifier: Apache-2.0
"""A control plane that the fault cases may kill, roll back and cut off, and a proxy in front."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.controlplane import ControlPlane, Options
from flexinfer.envtest.faults import FaultProxy
from hack.faultcases import Case

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def fault_plane() -> Iterator[ControlPlane]:
    """Give a kube-apiserver and an etcd; no controllers and no kubelet."""
    with ControlPlane.start(options=Options(controllers=False, kwok=False)) as plane:
        yield plane


@pytest.fixture
def case(fault_plane: ControlPlane) -> Iterator[Case]:
    """Give a fresh namespace, and a proxy of its own in front of the control plane."""
    name = f"case-{secrets.token_hex(4)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    fault_plane.admin.create("/api/v1/namespaces", body)
    with FaultProxy.start(fault_plane) as proxy:
        yield Case(fault_plane, proxy, name)
    # Nobody here deletes what is in a namespace, and later managers would look at it.
    fault_plane.admin.delete(f"/api/v1/namespaces/{name}/configmaps")
    fault_plane.admin.delete(f"/api/v1/namespaces/{name}")
