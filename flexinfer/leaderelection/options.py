# SPDX-License-Identifier: Apache-2.0
"""The names and times of an election."""

from __future__ import annotations

import math
import socket
import uuid
from dataclasses import dataclass, field

from flexinfer.errors import ConfigurationError

__all__ = ["LeaderElectionOptions", "new_identity"]

# client-go's: what a retry may be late by, as it is spread, must still fit the renew deadline.
_SPREAD = 1.2
# Many standbys, or one that loops on an error, must not hammer the API server.
_SHORTEST_RETRY = 0.1
# controller-runtime's: 1 s of a lease of 15 s, or half the renew deadline if that is more.
_SHORTEST_ATTEMPT = 1 / 15


def new_identity() -> str:
    """Return `hostname_uuid`: readable, and never that of another process."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionOptions:
    """Be the settings of one election; raise ConfigurationError for impossible ones.

    Candidates for the Lease `name` in `namespace` elect one leader. Times are in seconds, the
    defaults client-go's. A leader that dies is followed after `lease_duration`, whole seconds as
    the API has it. A leader that cannot renew gives up after `renew_deadline`; what is left of
    the lease then is for stopping its work. It renews every `retry_period`. `identity` has to be
    this process's alone.
    """

    name: str
    namespace: str
    identity: str = field(default_factory=new_identity)
    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        for setting in ("name", "namespace", "identity"):
            if not getattr(self, setting):
                raise ConfigurationError(f"{setting} of the leader election is empty: give one")
        if not (1 <= self.lease_duration < math.inf and self.lease_duration % 1 == 0):
            raise ConfigurationError(
                f"lease_duration is {self.lease_duration}: use whole seconds, at least 1"
            )
        if not self.renew_deadline < self.lease_duration:
            raise ConfigurationError(
                f"renew_deadline is {self.renew_deadline}: use less than lease_duration"
                f" ({self.lease_duration:g}), so that a leader gives up before it is followed"
            )
        if not self.retry_period >= _SHORTEST_RETRY:
            raise ConfigurationError(
                f"retry_period is {self.retry_period}: use at least {_SHORTEST_RETRY} seconds"
            )
        if not self.retry_period * _SPREAD < self.renew_deadline:
            raise ConfigurationError(
                f"retry_period is {self.retry_period}: {_SPREAD} times it must be less than"
                f" renew_deadline ({self.renew_deadline:g}), so that there is a second try"
            )

    @property
    def attempt_timeout(self) -> float:
        """Return how long one request may take, so that a hung one does not lose the lease."""
        return max(self.lease_duration * _SHORTEST_ATTEMPT, self.renew_deadline / 2)

    @property
    def stop_grace(self) -> float:
        """Return how long the work has to stop after a loss: until somebody may follow."""
        return self.lease_duration - self.renew_deadline
