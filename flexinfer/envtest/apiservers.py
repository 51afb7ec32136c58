# SPDX-License-Identifier: Apache-2.0
"""Further API servers on the etcd of a control plane."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Self

from flexinfer.envtest import arguments, binaries
from flexinfer.envtest.admin import Admin
from flexinfer.envtest.eventually import eventually_sync
from flexinfer.envtest.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from flexinfer.envtest.processes import Processes

__all__ = ["ApiServer"]


class ApiServer:
    """Run one more kube-apiserver, with the same authority, tokens and state as the first.

    Its audit log is apart. It ends with `close`, with the `with` block, or with its plane.
    """

    def __init__(
        self,
        layout: arguments.Layout,
        processes: Processes,
        name: str,
        *,
        flags: Sequence[str] = (),
        within: float,
    ) -> None:
        (port,) = free_ports(1)
        own = dataclasses.replace(layout, api_port=port)
        self.name = name
        self.url = own.url
        self.ca_file: Path = layout.file("pki") / "ca.crt"
        self.admin = Admin(self.url, ca_file=self.ca_file, token=layout.tokens[arguments.ADMIN])
        self._processes = processes
        log = f"--audit-log-path={layout.file(f'audit-{name}.log')}"
        program = str(binaries.find()["kube-apiserver"])
        processes.start(name, [program, *arguments.kube_apiserver(own), log, *flags])
        self.wait_ready(within=within)

    def wait_ready(self, *, within: float = 30.0) -> None:
        """Wait until it says that it is ready."""

        def is_ready() -> None:
            self._processes.check()
            self.admin.get("/readyz")

        eventually_sync(is_ready, within=within, every=0.025)

    def close(self) -> None:
        """End it at once."""
        self._processes.kill(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
