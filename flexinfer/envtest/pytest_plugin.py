# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests against a real control plane.

Name this module as one of the `pytest_plugins` of the top-level `conftest.py`.
With `KEEP_ENVTEST=1` the control plane outlives the run, and how to reach and end it is printed.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest import loopback
from flexinfer.envtest.build import BinariesError
from flexinfer.envtest.controlplane import ControlPlane
from flexinfer.envtest.eventually import eventually as poll
from flexinfer.envtest.eventually import eventually_sync as poll_sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.eventually import Eventually, EventuallySync

__all__ = [
    "anyio_backend",
    "control_plane",
    "eventually",
    "eventually_sync",
    "namespace",
    "pytest_terminal_summary",
]


_KEPT = pytest.StashKey[ControlPlane]()


@pytest.fixture(scope="session", autouse=True)
def _loopback_only() -> Iterator[None]:
    """Fail whatever connects outside loopback, in every test."""
    with loopback.loopback_only():
        yield


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """Give the session's control plane; fail with the cure where there can be none."""
    try:
        plane = ControlPlane.start()
    except BinariesError as error:
        pytest.fail(str(error), pytrace=False)
    if os.environ.get("KEEP_ENVTEST"):
        yield plane
        plane.detach()
        request.config.stash[_KEPT] = plane
    else:
        with plane:
            yield plane


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to reach and how to end a control plane that was kept."""
    plane = terminalreporter.config.stash.get(_KEPT, None)
    if plane is not None:
        terminalreporter.section("control plane kept")
        terminalreporter.line(f"to reach it: export KUBECONFIG={plane.kubeconfig_path}")
        terminalreporter.line(f"to end it:   kill {plane.processes.supervisor_pid}")


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """Give a fresh namespace that admits pods; it is deleted afterwards, without waiting."""
    name = f"test-{secrets.token_hex(4)}"
    control_plane.admin.create(
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
    )
    control_plane.wait_service_account(name)
    yield name
    control_plane.admin.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Give the event loop that `pytest.mark.anyio` runs tests on: aiohttp knows no other."""
    return "asyncio"


@pytest.fixture
def eventually() -> Eventually:
    """Give `flexinfer.envtest.eventually.eventually`, to be awaited."""
    return poll


@pytest.fixture
def eventually_sync() -> EventuallySync:
    """Give `flexinfer.envtest.eventually.eventually_sync`."""
    return poll_sync
