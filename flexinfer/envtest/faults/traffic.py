# SPDX-License-Identifier: Apache-2.0
"""What went through a proxy: counted by route, by second and by connection."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.envtest.script import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.envtest.faults.forward import FaultAction
    from flexinfer.envtest.wire import Received


@dataclass(slots=True)
class Exchange:
    """Be one request and what became of it.

    `at` and `ended_at` are monotonic seconds, the latter None while it is open. `status` is what
    the client was told, None when it was told nothing. `lines` counts the lines of a watch that
    were sent to it.
    """

    request: Received
    action: FaultAction
    at: float
    status: int | None = None
    lines: int = 0
    ended_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether the client may still get something."""
        return self.ended_at is None


class Traffic(tuple[Exchange, ...]):
    """Exchanges in the order of their requests, to be narrowed down."""

    __slots__ = ()

    def select(
        self,
        *,
        method: str = "*",
        path: str = "*",
        query: Mapping[str, str | None] | None = None,
        since: float = 0.0,
    ) -> Traffic:
        """Keep what fits, as in a script, and came at *since* or later."""
        target = Target(method, path, query or {})
        return Traffic(
            exchange
            for exchange in self
            if exchange.at >= since
            and target.fits(exchange.request.method, exchange.request.path, exchange.request.query)
        )

    def lists(self, path: str = "*", *, since: float = 0.0) -> Traffic:
        """Keep the requests for lists, each page counting as one."""
        return self.select(method="GET", path=path, query={"watch": None}, since=since)

    def watches(self, path: str = "*", *, since: float = 0.0) -> Traffic:
        """Keep the requests for watches."""
        return self.select(method="GET", path=path, query={"watch": "true"}, since=since)

    def writes(self, path: str = "*", *, since: float = 0.0) -> Traffic:
        """Keep what is no GET."""
        kept = self.select(path=path, since=since)
        return Traffic(exchange for exchange in kept if exchange.request.method != "GET")

    def peak_per_second(self) -> int:
        """Return the most requests that came within one second, whenever that began."""
        times = [exchange.at for exchange in self]
        most, first = 0, 0
        for last, at in enumerate(times):
            while at - times[first] >= 1.0:
                first += 1
            most = max(most, last - first + 1)
        return most

    def routes(self) -> Counter[tuple[str, str]]:
        """Return how many requests there were by method and path."""
        return Counter((e.request.method, e.request.path) for e in self)

    def connections(self) -> int:
        """Return on how many connections they came."""
        return len({exchange.request.connection for exchange in self})


class Recorder:
    """Keep what goes through, for one thread to write and others to read."""

    def __init__(self) -> None:
        self._exchanges: list[Exchange] = []

    def begin(self, request: Received, action: FaultAction) -> Exchange:
        """Note a request that just came."""
        exchange = Exchange(request, action, time.monotonic())
        self._exchanges.append(exchange)
        return exchange

    def traffic(self) -> Traffic:
        """Return what there was up to now."""
        return Traffic(tuple(self._exchanges))
