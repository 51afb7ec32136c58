# SPDX-License-Identifier: Apache-2.0
"""A pool of connections to the API server that notices a dead peer."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from aiohappyeyeballs import AddrInfoType
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ConnectionKey

# kube-apiserver closes an idle connection after 90 s; being first avoids most races about it.
_IDLE_SECONDS = 60.0
# A peer that does not even acknowledge is given up within a minute, by probes when we are silent
# and by the user timeout when we are not.
_PROBE_AFTER_SECONDS = 30
_PROBE_EVERY_SECONDS = 10
_PROBES = 3
_UNACKNOWLEDGED_MILLISECONDS = 60_000
_READ_BUFFER = 256 * 1024


def open_pool(user_agent: str) -> aiohttp.ClientSession:
    """Return a session without timeouts and limits of its own: its users have theirs.

    It reads no environment, keeps no cookies, and asks for bodies as they are: compression costs
    both sides more CPU than the network of a cluster saves.
    """
    return aiohttp.ClientSession(
        connector=_Connector(limit=0, keepalive_timeout=_IDLE_SECONDS, socket_factory=_socket),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_read=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": user_agent, "Accept-Encoding": "identity"},
        trust_env=False,
        read_bufsize=_READ_BUFFER,
    )


class _Connector(aiohttp.TCPConnector):
    """Drop a connection that is given up at once.

    aiohttp would end TLS in order, which waits half a minute for a peer that is dead, and holds
    the socket for as long, even past the end of the pool.
    """

    def _release(
        self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        if should_close:
            protocol.abort()
        super()._release(key, protocol, should_close=should_close)


def _socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, _name, _sockaddr = address
    made = socket.socket(family, kind, protocol)
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
