# SPDX-License-Identifier: Apache-2.0
"""How to see that a server is up: by an HTTP path, or by a connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Ask for `path` by HTTP, or with none open a TCP connection.

    `period_seconds` and `failure_threshold` hold once the server has been up; how long it may
    take to come up is the backend's.
    """

    path: str = ""
    period_seconds: int = 10
    timeout_seconds: int = 5
    failure_threshold: int = 3

    def __str__(self) -> str:
        """Return what has to answer, for messages."""
        return self.path or "TCP"

    def check(self, port: str) -> Tree:
        """Return the handler of a probe, with its timeout, for a port by its name."""
        handler: Tree = (
            {"httpGet": {"path": self.path, "port": port}}
            if self.path
            else {"tcpSocket": {"port": port}}
        )
        return handler | {"timeoutSeconds": self.timeout_seconds}
