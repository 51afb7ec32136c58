# SPDX-License-Identifier: Apache-2.0
"""The runner as a process of a local control plane, and its `with` block."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.controlplane import ControlPlane

ROOT = Path(__file__).resolve().parents[2]
_GRACE = 15.0  # seconds: running reconciles may have ten, and the containers three


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRunner:
    """A pod runner under the control plane's supervisor, as administrator.

    `folder` holds everything that its containers write. `backoff` is the first back-off in
    seconds, the kubelet's unless given. A `namespace` leaves all others alone.
    """

    plane: ControlPlane
    folder: Path
    namespace: str = ""
    backoff: float = 10.0
    processes: int = 16
    name: str = "pod-runner"

    @property
    def log(self) -> Path:
        """Return the file that holds what the runner says."""
        return self.plane.processes.log(self.name)

    def container_log(self, pod: str, container: str, *, namespace: str = "") -> Path:
        """Return the file that holds what a container said; *namespace* unless the runner's own."""
        return self.folder / f"{namespace or self.namespace}_{pod}_{container}.log"

    def start(self) -> int:
        """Start the runner and return its process id."""
        # So that runner and containers are of this checkout, wherever they are started.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        return self.plane.processes.start(
            self.name,
            [
                sys.executable,
                "-m",
                "hack.podrunner",
                f"--kubeconfig={self.plane.kubeconfig_path}",
                f"--folder={self.folder}",
                f"--namespace={self.namespace}",
                f"--processes={self.processes}",
                f"--backoff={self.backoff}",
            ],
            env={"PYTHONPATH": path},
        )

    def stop(self) -> None:
        """End the runner and every container."""
        self.plane.processes.stop(self.name, grace=_GRACE)

    def kill(self) -> None:
        """End the runner with SIGKILL; its containers end soon after it."""
        self.plane.processes.kill(self.name)


@contextmanager
def running(
    plane: ControlPlane,
    *,
    namespace: str = "",
    folder: Path | None = None,
    backoff: float = 10.0,
    processes: int = 16,
) -> Iterator[PodRunner]:
    """Run the pods of local images for the block, under *folder* or the control plane's own."""
    name = f"pod-runner-{namespace}" if namespace else "pod-runner"
    runner = PodRunner(
        plane=plane,
        folder=folder or plane.layout.folder / name,
        namespace=namespace,
        backoff=backoff,
        processes=processes,
        name=name,
    )
    runner.start()
    try:
        yield runner
    finally:
        runner.stop()
