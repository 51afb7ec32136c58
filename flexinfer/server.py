# SPDX-License-Identifier: Apache-2.0
"""The small HTTP servers of a process: probes and metrics.

They listen on every address of the machine unless a host is given, answer GET and HEAD only, and
keep no access log. Nothing they serve depends on who asks.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import anyio

from flexinfer.errors import ConfigurationError
from flexinfer.httpserver import LIMITS, Connections
from flexinfer.metrics import render
from flexinfer.routing import Answer, Route, Routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from prometheus_client import CollectorRegistry

    from flexinfer.httpserver import Limits
    from flexinfer.routing import Request

__all__ = ["Address", "metrics_route", "serve"]

_MAX_PORT = 65535
# Seconds that an answer may take to be sent when the server ends, and then as much again for the
# connections that are cut, and for the listener. A request that has not come whole gets none.
_CLOSE_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """Be where a server listens; port 0 lets the system choose a free one."""

    host: str
    port: int
    setting: str

    @classmethod
    def parse(cls, text: str, *, setting: str) -> Self | None:
        """Read `host:port`, `:port` or `[IPv6]:port`; `0` means off and gives None.

        Raises ConfigurationError that names *setting*.
        """
        if text == "0":
            return None
        host, colon, port = text.rpartition(":")
        if not colon or (":" in host and not _is_bracketed(host)):
            raise ConfigurationError(
                f"{setting} {text!r} is no address: write host:port, :port, [IPv6]:port, or 0"
                " for off"
            )
        if not (port.isascii() and port.isdecimal() and int(port) <= _MAX_PORT):
            raise ConfigurationError(
                f"{setting} {text!r} has no valid port: use a number from 0 to {_MAX_PORT}"
            )
        return cls(host.strip("[]"), int(port), setting)

    def collides(self, other: Address | None) -> bool:
        """Say whether both name the same fixed port of the same host."""
        if other is None or self.port == 0:
            return False
        return (self.host, self.port) == (other.host, other.port)

    def listen(self) -> socket.socket:
        """Open the listening socket; raise ConfigurationError when the system refuses."""
        anywhere = not self.host
        both = anywhere and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, dualstack_ipv6=both)
        except OSError as error:
            raise ConfigurationError(
                f"{self.setting} {self.host}:{self.port} cannot be listened on: {error}; choose"
                " another address"
            ) from error


@asynccontextmanager
async def serve(
    address: Address, routes: Sequence[Route], *, limits: Limits = LIMITS
) -> AsyncIterator[int]:
    """Serve *routes* inside the context, and yield the port.

    Raises ConfigurationError when the address cannot be listened on.
    """
    listener = address.listen()
    port = int(listener.getsockname()[1])
    connections = Connections(Routes(routes), limits=limits)
    server = await asyncio.get_running_loop().create_server(connections.make, sock=listener)
    try:
        yield port
    finally:
        server.close()
        with anyio.CancelScope(shield=True):
            await connections.close(_CLOSE_TIMEOUT)
            with anyio.move_on_after(_CLOSE_TIMEOUT):
                await server.wait_closed()


def metrics_route(registry: CollectorRegistry) -> Route:
    """Return the route `/metrics`, in the exposition format that the scraper asks for."""

    def metrics(request: Request) -> Answer:
        # On the loop's thread: gauges read what the loop is changing.
        body, content_type = render(request.headers.get("accept", ""), registry=registry)
        return Answer(200, body, content_type)

    return Route("/metrics", metrics)


def _is_bracketed(host: str) -> bool:
    return host.startswith("[") and host.endswith("]")
