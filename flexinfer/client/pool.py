# SPDX-License-Identifier: Apache-2.0
"""A pool of connections to the API server that notices a dead peer."""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
import anyio

if TYPE_CHECKING:
    from weakref import WeakSet

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
# A connection whose call was cut off says goodbye in TLS, which takes a round trip; a peer that
# does not answer must not keep us.
_GOODBYE_SECONDS = 0.5
_LOOK_EVERY_SECONDS = 0.005


def open_pool(user_agent: str, sockets: WeakSet[socket.socket]) -> aiohttp.ClientSession:
    """Return a session without timeouts and limits of its own: its users have theirs.

    What it opens is added to *sockets*.

    It reads no environment, keeps no cookies, and asks for bodies as they are: compression costs
    both sides more CPU than the network of a cluster saves.
    """
    return aiohttp.ClientSession(
        connector=_Connector(
            limit=0, keepalive_timeout=_IDLE_SECONDS, socket_factory=partial(_socket, sockets)
        ),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_read=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": user_agent, "Accept-Encoding": "identity"},
        trust_env=False,
        read_bufsize=_READ_BUFFER,
    )


async def wait_closed(sockets: WeakSet[socket.socket]) -> None:
    """Wait until every socket is closed, half a second at most.

    Closing a session does not: nobody waits for the connection of a call that was cut off, and a
    loop that ends meanwhile leaves its socket open.
    """
    with anyio.move_on_after(_GOODBYE_SECONDS):
        while any(made.fileno() >= 0 for made in sockets):  # noqa: ASYNC110 - nobody says when
            await anyio.sleep(_LOOK_EVERY_SECONDS)


class _Connector(aiohttp.TCPConnector):
    """Cut what is not kept for the next request.

    Its orderly end would wait half a minute for the peer's end of TLS, which one that hangs never
    sends. aiohttp has no public way to say so of a single connection.
    """

    def _release(
        self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        if should_close or protocol.should_close:
            protocol.abort()
        super()._release(key, protocol, should_close=should_close)


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
