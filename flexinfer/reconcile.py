# SPDX-License-Identifier: Apache-2.0
"""The contract between a controller and the author of a reconciler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flexinfer.meta.resource import NamespacedName as Request

__all__ = ["Reconciler", "Request", "Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """Say when the object wants to be looked at again without an event.

    `requeue_after` is in seconds; None means on the next event.
    """

    requeue_after: float | None = None


class Reconciler(Protocol):
    """Bring one object nearer to what its spec asks for.

    Called with the name alone, never with an event; never twice at once for one name. An
    exception means "again, with backoff"; `TerminalError` means "not until it changes".
    """

    async def reconcile(self, request: Request) -> Result:
        """Look at the object as it is now and act; a missing object is a success."""
        ...
