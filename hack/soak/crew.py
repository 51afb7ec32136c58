# SPDX-License-Identifier: Apache-2.0
"""The managers as processes, all candidates for one Lease."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.envtest.ports import LOOPBACK, free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flexinfer.envtest.controlplane import ControlPlane

LEASE = "/apis/coordination.k8s.io/v1/namespaces/flexinfer-system/leases/flexinfer-manager"
# Lease, renew deadline and retry period of the soak, in seconds: a fifth of the defaults.
TIMES = (3.0, 2.0, 0.4)
SPARED = "manager-0"
"""Is never ended, only made to hang: its memory is measured from the first minute to the last."""
_OK = 200


@dataclass
class Member:
    """One manager: its process, and what is known of its incarnations."""

    name: str
    pid: int
    probe_port: int
    started: float
    born: datetime
    rss: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the start of the process, and MiB."""


class Crew:
    """Start, find, kill and measure the managers."""

    def __init__(self, plane: ControlPlane, folder: Path, *, count: int) -> None:
        self._plane = plane
        self._folder = folder
        self.kills: list[tuple[str, datetime]] = []
        self.pauses: list[tuple[str, datetime]] = []
        self.past: list[Member] = []
        self.members = {
            f"manager-{number}": self._start(f"manager-{number}") for number in range(count)
        }

    def _start(self, name: str) -> Member:
        metrics_port, probe_port = free_ports(2)
        lease, renew, retry = TIMES
        pid = self._plane.processes.start(
            name,
            [
                str(Path(sys.executable).with_name("flexinfer")),
                "manager",
                "--leader-elect",
                f"--leader-elect-lease-duration={lease}",
                f"--leader-elect-renew-deadline={renew}",
                f"--leader-elect-retry-period={retry}",
                f"--metrics-bind-address={LOOPBACK}:{metrics_port}",
                f"--health-probe-bind-address={LOOPBACK}:{probe_port}",
                f"--service-account-dir={self._folder}",
                f"--server={self._plane.url}",
                "--log-level=debug",
                "--log-format=json",
            ],
        )
        return Member(name, pid, probe_port, time.monotonic(), datetime.now(UTC))

    def holder(self) -> str:
        """Return the identity that holds the Lease, empty for none."""
        return str(self._plane.admin.get(LEASE)["spec"].get("holderIdentity") or "")

    def leader(self) -> Member | None:
        """Return the member that leads, by what its own log said last."""
        identity = self.holder()
        for member in self.members.values():
            if identity and identity in self.log(member.name).read_text(errors="replace"):
                return member
        return None

    def log(self, name: str) -> Path:
        """Return the log of a member, of all its incarnations."""
        return self._plane.processes.log(name)

    def kill(self, member: Member) -> None:
        """End a member with SIGKILL and start it anew."""
        self._plane.processes.kill(member.name)
        self.kills.append((member.name, datetime.now(UTC)))
        self._renew(member)

    def stop(self, member: Member) -> None:
        """End a member with SIGTERM and start it anew."""
        self._plane.processes.stop(member.name, grace=40.0)
        self._renew(member)

    def pause(self, member: Member, seconds: float) -> None:
        """Let a member hang, as on a machine that is out of memory, and go on."""
        self.pauses.append((member.name, datetime.now(UTC)))
        self._plane.processes.send(member.name, signal.SIGSTOP)
        time.sleep(seconds)
        self._plane.processes.send(member.name, signal.SIGCONT)

    def _renew(self, member: Member) -> None:
        self.past.append(member)
        self.members[member.name] = self._start(member.name)

    def sample(self) -> None:
        """Note how much memory each member has now."""
        for member in self.members.values():
            status = Path(f"/proc/{member.pid}/status").read_text(encoding="utf-8")
            rss = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
            age = time.monotonic() - member.started
            member.rss.append((age, int(rss.split()[1]) / 1024))

    def lines(self) -> Sequence[tuple[str, dict[str, object]]]:
        """Return every line of every log as JSON, with the member it is of."""
        return [
            (name, json.loads(line))
            for name in self.members
            for line in self.log(name).read_text(errors="replace").splitlines()
            if line.startswith("{")
        ]
