# SPDX-License-Identifier: Apache-2.0
"""Connections to one API server, kept for the next request, that notice a dead peer."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

import anyio
from aiohappyeyeballs import start_connection

from flexinfer.client.connection import Connection
from flexinfer.client.failure import phrase
from flexinfer.client.proxy import PORTS
from flexinfer.client.response import cause
from flexinfer.errors import TransportError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Sequence

    from aiohappyeyeballs import AddrInfoType

    from flexinfer.client.proxy import Proxy
    from flexinfer.client.response import Response

# kube-apiserver closes an idle connection after 90 s; being first avoids most races about it.
_IDLE_SECONDS = 60.0
# A peer that does not even acknowledge is given up within a minute, by probes when we are silent
# and by the user timeout when we are not.
_PROBE_AFTER_SECONDS = 30
_PROBE_EVERY_SECONDS = 10
_PROBES = 3
_UNACKNOWLEDGED_MILLISECONDS = 60_000
# The head start of one address of a name before the next is tried beside it (RFC 8305).
_HEAD_START_SECONDS = 0.25
# The sockets of connections that are cut are closed in the loop's next rounds.
_GOODBYE_SECONDS = 0.5
_LOOK_EVERY_SECONDS = 0.005
_TLS_CUT = "closed while TLS began"

T = TypeVar("T")


class ConnectError(TransportError):
    """Report that there is no connection: nothing was sent."""


class _Tunnel(Connection):
    """Be a connection to a proxy until TLS begins in it."""

    def __init__(self) -> None:
        super().__init__(on_idle=Connection.abort)

    def on_message_complete(self) -> None:
        """Stay: whatever an answer to CONNECT says of its length, the tunnel follows (RFC 9110)."""


class _Idle(NamedTuple):
    connection: Connection
    context: ssl.SSLContext | None
    since: float


class Pool:
    """Keep connections to *server*, a URL, and open more as needed: whoever uses it bounds them.

    The way leads through *proxy* if there is one.
    """

    def __init__(self, server: str, *, proxy: Proxy | None = None) -> None:
        url = urlsplit(server)
        self._server, self._proxy = server, proxy
        self._is_secure = url.scheme == "https"
        self._host, self._port = url.hostname or "", url.port or PORTS[url.scheme]
        self._idle: list[_Idle] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._open: WeakSet[Connection] = WeakSet()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._opening: set[anyio.CancelScope] = set()
        self._is_closed = False

    async def send(
        self, request: bytes, *, context: ssl.SSLContext, server_name: str | None = None
    ) -> Response:
        """Send *request* and return its answer, of which the head has come.

        A connection is used again only under the very *context* that it was opened with.
        *server_name* is what the certificate must say instead of the host. Raises ConnectError
        when there is no connection to be had, and LostError when one ended before the answer.
        """
        secure = context if self._is_secure else None
        connection = self._reuse(secure) or await self._begin(secure, server_name)
        return await connection.send(request)

    async def close(self) -> None:
        """Cut every connection, and wait until the sockets are closed, half a second at most."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._idle.clear()
        for scope in self._opening:
            scope.cancel()
        for connection in self._open:
            connection.abort()
        with anyio.move_on_after(_GOODBYE_SECONDS):
            while any(made.fileno() >= 0 for made in self._sockets):  # noqa: ASYNC110 - as above
                await anyio.sleep(_LOOK_EVERY_SECONDS)

    def _reuse(self, context: ssl.SSLContext | None) -> Connection | None:
        """Return the connection that was used last, if any is still good."""
        oldest = asyncio.get_running_loop().time() - _IDLE_SECONDS
        while self._idle:
            kept = self._idle.pop()
            if kept.connection.is_open and kept.context is context and kept.since > oldest:
                return kept.connection
            kept.connection.abort()
        return None

    def _keep(self, context: ssl.SSLContext | None, connection: Connection) -> None:
        if self._is_closed:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.append(_Idle(connection, context, loop.time()))
        if self._sweeper is None:
            self._sweeper = loop.call_later(_IDLE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Cut what has been idle for long; look again while there is any."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _IDLE_SECONDS
        for kept in self._idle:
            if kept.since <= oldest:
                kept.connection.abort()
        self._idle = [kept for kept in self._idle if kept.connection.is_open]
        again = self._idle[0].since - oldest if self._idle else None
        self._sweeper = None if again is None else loop.call_later(again, self._sweep)

    async def _begin(self, context: ssl.SSLContext | None, server_name: str | None) -> Connection:
        """Connect, unless the pool is closed meanwhile."""
        with anyio.CancelScope() as scope:
            self._opening.add(scope)
            try:
                connection = await self._connect(context, server_name)
            finally:
                self._opening.discard(scope)
            if not self._is_closed:
                return connection
            connection.abort()
        raise ConnectError(f"not connected to {self._server}: closed meanwhile")

    async def _connect(self, context: ssl.SSLContext | None, server_name: str | None) -> Connection:
        connection = Connection(on_idle=partial(self._keep, context))
        # A dot at the end is for the resolver; no certificate has it.
        name = (server_name or self._host).rstrip(".") if context is not None else None
        if self._proxy is not None and context is not None:
            tunnel = await self._tunnel(self._proxy)
            opening = partial(_upgrade, tunnel, connection, context, name)
        else:
            sock = await self._dial()
            opening = partial(_open, sock, connection, context, name)
        try:
            await opening()
        except OSError as error:
            raise self._unreachable(error) from error
        self._open.add(connection)
        return connection

    async def _dial(self) -> socket.socket:
        """Connect to the server, or to the proxy on the way."""
        host, port = self._host, self._port
        if self._proxy is not None:
            host, port = self._proxy.url.host, self._proxy.url.port
        try:
            connecting = start_connection(
                await _addresses(host, port),
                happy_eyeballs_delay=_HEAD_START_SECONDS,
                socket_factory=partial(_socket, self._sockets),
            )
            return await _by_loop(connecting)
        except OSError as error:
            if self._proxy is None:
                raise self._unreachable(error) from error
            raise ConnectError(
                f"cannot connect to the proxy {self._proxy}: {cause(error)}"
            ) from error

    async def _tunnel(self, proxy: Proxy) -> Connection:
        """Have the proxy connect us to the server."""
        target = f"[{self._host}]" if ":" in self._host else self._host
        lines = [f"CONNECT {target}:{self._port} HTTP/1.1", f"Host: {target}:{self._port}"]
        lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
        tunnel = _Tunnel()
        try:
            await _open(await self._dial(), tunnel, None, None)
            answer = await tunnel.send("\r\n".join((*lines, "", "")).encode("latin-1"))
        except OSError as error:
            raise ConnectError(f"the proxy {proxy} went away: {cause(error)}") from error
        if not answer.is_success:
            tunnel.abort()
            raise ConnectError(
                f"the proxy {proxy} does not let us through: {phrase(answer.status)}"
            )
        return tunnel

    def _unreachable(self, error: Exception) -> ConnectError:
        return ConnectError(f"cannot connect to {self._server}: {cause(error)}")


async def _addresses(host: str, port: int) -> Sequence[AddrInfoType]:
    """Return where *host* is; a name is looked up in another thread, an address is not."""
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _by_loop(opening: Awaitable[T]) -> T:
    """Await what is the loop's to do, so that its failures are told from bugs of ours.

    uvloop has a RuntimeError for a socket or a transport that was closed while it was opened. Of
    ours only `_socket` is called inside, which does no more than ask the system.
    """
    try:
        return await opening
    except RuntimeError as error:
        raise ConnectionAbortedError(cause(error)) from error


async def _open(
    sock: socket.socket, connection: Connection, context: ssl.SSLContext | None, name: str | None
) -> None:
    opening = asyncio.get_running_loop().create_connection(
        lambda: connection, sock=sock, ssl=context, server_hostname=name
    )
    await _by_loop(opening)


async def _upgrade(
    tunnel: Connection, connection: Connection, context: ssl.SSLContext, name: str | None
) -> None:
    """Begin TLS inside a tunnel; from then on the transport is the connection's."""
    if not tunnel.is_open:
        # asyncio would give no transport; uvloop would wait for TLS that never begins.
        raise ConnectionAbortedError(_TLS_CUT)
    upgrading = asyncio.get_running_loop().start_tls(
        tunnel.transport, connection, context, server_hostname=name
    )
    try:
        transport = await _by_loop(upgrading)
    finally:
        tunnel.connection_lost(None)  # no loop tells what is not its transport's protocol any more
    if transport is None:
        raise ConnectionAbortedError(_TLS_CUT)
    connection.connection_made(transport)


def _socket(sockets: WeakSet[socket.socket], address: AddrInfoType) -> socket.socket:
    family, kind, protocol, _name, _sockaddr = address
    made = socket.socket(family, kind, protocol)
    sockets.add(made)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Each of these exists on Linux; other systems keep their own times.
    for option, value in (
        ("TCP_KEEPIDLE", _PROBE_AFTER_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_EVERY_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MILLISECONDS),
    ):
        number = getattr(socket, option, None)
        if number is not None:
            made.setsockopt(socket.IPPROTO_TCP, number, value)
    return made
