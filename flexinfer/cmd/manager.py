# SPDX-License-Identifier: Apache-2.0
"""`flexinfer manager`: all controllers in one process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: F401 - cyclopts reads annotations that Flags inherits here
from typing import Literal  # noqa: F401 - so it does

from cyclopts import Parameter

from flexinfer import program


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags(program.Flags):
    """The manager's settings, named as controller-runtime's are."""

    max_concurrent_reconciles: int = 4
    """How many objects of one kind are worked on at once"""
    leader_election_id: str = "flexinfer-manager"
    """The name of the Lease by which a leader is elected"""


def manager(flags: Flags | None = None) -> int:
    """Run the controllers until SIGTERM or SIGINT; a second signal ends it at once.

    In a pod no option is needed. Elsewhere name a kubeconfig, or a service-account folder and the
    API server. Default images of the backends come from variables such as DEFAULT_VLLM_IMAGE.
    """
    from controllers.model import set_up

    return program.execute("flexinfer manager", set_up, flags or Flags())
