# SPDX-License-Identifier: Apache-2.0
"""FlexInfer's processes, run as their pods would be: same flags, same service account."""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.envtest.ports import LOOPBACK, free_ports
from flexinfer.envtest.processes import ProcessError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flexinfer.envtest.processes import Processes

_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerProcess:
    """The manager as a local process; `credentials` are the flags that say who it is.

    `environment` adds to that of this process.
    """

    processes: Processes
    credentials: Sequence[str]
    metrics_port: int
    probe_port: int
    name: str = "manager"
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def prepare(
        cls,
        processes: Processes,
        credentials: Sequence[str],
        *,
        name: str = "manager",
        environment: Mapping[str, str] | None = None,
    ) -> ManagerProcess:
        """Choose free ports; nothing is started yet."""
        metrics_port, probe_port = free_ports(2)
        return cls(
            processes=processes,
            credentials=credentials,
            metrics_port=metrics_port,
            probe_port=probe_port,
            name=name,
            environment=environment or {},
        )

    @property
    def log(self) -> Path:
        """Return the file that holds what the manager says."""
        return self.processes.log(self.name)

    def start(self, *extra: str) -> int:
        """Start the manager and return its process id."""
        return self.processes.start(
            self.name,
            [
                str(Path(sys.executable).with_name("flexinfer")),
                "manager",
                f"--metrics-bind-address={LOOPBACK}:{self.metrics_port}",
                f"--health-probe-bind-address={LOOPBACK}:{self.probe_port}",
                *self.credentials,
                *extra,
            ],
            env=self.environment,
        )

    def wait_ready(self, *, within: float = 60.0) -> None:
        """Wait until `/readyz` answers; raise ProcessError with what it, and the log, say."""
        deadline = time.monotonic() + within
        answer = (0, "")
        while time.monotonic() < deadline:
            self.processes.check()
            answer = self.probe("/readyz?verbose")
            if answer[0] == _OK:
                return
            time.sleep(0.05)
        raise ProcessError(
            f"the manager was not ready within {within:g} s; /readyz says: {answer[1].strip()}\n"
            f"its log is {self.log}"
        )

    def probe(self, path: str) -> tuple[int, str]:
        """Return status and text of a probe path; status 0 when nothing answers."""
        return http_get(f"http://{LOOPBACK}:{self.probe_port}{path}")

    def metrics(self) -> str:
        """Return what `/metrics` says."""
        return http_get(f"http://{LOOPBACK}:{self.metrics_port}/metrics")[1]


def http_get(url: str) -> tuple[int, str]:
    """Return status and text of a GET; status 0 when nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own process
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
