# SPDX-License-Identifier: Apache-2.0
"""The same run as on the local control plane, on a kind cluster; needs a container engine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

# Building kind, pulling its node image and starting three nodes.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def make(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    up = make("kind-up")
    assert up.returncode == 0, up.stdout + up.stderr
    yield
    make("kind-down")


@pytest.mark.usefixtures("cluster")
def test_the_manager_is_ready_on_kind() -> None:
    result = make("run", CLUSTER="kind", ONCE="1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "The manager is ready" in result.stdout
