# SPDX-License-Identifier: Apache-2.0
"""A TLS-terminating proxy on loopback that does to traffic what a script says."""

from __future__ import annotations

import socket
import ssl
import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit
from weakref import WeakSet

import aiohttp
import anyio
from anyio.abc import SocketAttribute
from anyio.from_thread import start_blocking_portal

from flexinfer.envtest import wire
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.faults.relay import Relay
from flexinfer.envtest.faults.traffic import Recorder, Traffic
from flexinfer.envtest.script import Target
from flexinfer.meta.envelope import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from aiohappyeyeballs import AddrInfoType
    from anyio.abc import SocketStream
    from anyio.from_thread import BlockingPortal

    from flexinfer.envtest.faults.forward import FaultAction
    from flexinfer.envtest.script import Rupture
    from flexinfer.meta.envelope import Tree


_CLOSE_SECONDS = 5.0


class Server(Protocol):
    """Be where an API server is; a `ControlPlane` is one."""

    @property
    def url(self) -> str:
        """Return its address."""
        ...

    @property
    def ca_file(self) -> Path:
        """Return the certificate of the authority that vouches for it."""
        ...


class FaultProxy:
    """Stand between a process and one API server; made by `start`.

    Clients use `url` and trust `ca_pem`, the certificate of an authority of the proxy's own; their
    tokens pass through. Methods may be called from any thread but the proxy's own, also on an
    event loop: they return within milliseconds.
    """

    def __init__(
        self, url: str, upstream: str, authority: CertificateAuthority, portal: BlockingPortal
    ) -> None:
        self.url = url
        self.port = urlsplit(url).port or 0
        self.upstream_port = urlsplit(upstream).port or 0
        self.ca_file = authority.ca_pem
        self.ca_pem = authority.ca_pem.read_text()
        self.connections = 0
        self._portal = portal
        self._recorder = Recorder()
        self._refusal: Rupture | None = None
        self._relay: Relay

    @classmethod
    @contextmanager
    def start(cls, server: Server) -> Iterator[FaultProxy]:
        """Serve on a free port of 127.0.0.1, in a thread of its own, until the block ends."""
        with (
            tempfile.TemporaryDirectory(prefix="flexinfer-faults-") as folder,
            start_blocking_portal(name="fault-proxy") as portal,
            portal.wrap_async_context_manager(
                cls._serve(server, CertificateAuthority.create(Path(folder)), portal)
            ) as proxy,
        ):
            yield proxy

    @classmethod
    @asynccontextmanager
    async def _serve(
        cls, server: Server, authority: CertificateAuthority, portal: BlockingPortal
    ) -> AsyncIterator[FaultProxy]:
        context = wire.server_context(authority)
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(SocketAttribute.local_port)
        proxy = cls(f"https://127.0.0.1:{port}", server.url, authority, portal)

        async def connected(stream: SocketStream) -> None:
            proxy.connections += 1
            if proxy._refusal is not None:
                await wire.refuse(stream, proxy._refusal)
                return
            await wire.serve_connection(stream, context, proxy.connections, proxy._relay.serve)

        async with (
            _open_session(server.ca_file) as session,
            listener,
            anyio.create_task_group() as connections,
        ):
            proxy._relay = Relay(server.url, session, proxy._recorder)
            connections.start_soon(listener.serve, connected)
            failure = None
            try:
                yield proxy
            except Exception as error:  # noqa: BLE001 - raised again outside the group
                failure = error
            connections.cancel_scope.cancel()
        if failure is not None:
            raise failure

    @property
    def traffic(self) -> Traffic:
        """Return every request that came up to now."""
        return self._recorder.traffic()

    def script(
        self,
        method: str,
        path: str,
        *actions: FaultAction,
        query: Mapping[str, str | None] | None = None,
    ) -> None:
        """Take *actions* in turn for such requests, the last again and again."""
        self._portal.call(self._relay.script.add, Target(method, path, query or {}), actions)

    def refuse(self, ending: Rupture) -> None:
        """Treat every new connection so before TLS, until `heal`."""
        self._refusal = ending

    def heal(self) -> None:
        """Forget the script and refuse nobody; what is open already stays as it is."""
        self._refusal = None
        self._portal.call(self._relay.script.clear)

    def strike(
        self,
        ending: Rupture,
        *,
        method: str = "*",
        path: str = "*",
        query: Mapping[str, str | None] | None = None,
    ) -> int:
        """End what is going on and fits, also what hangs; return how many exchanges that were.

        With `Hang()` the connection stays open and nothing is passed on any more.
        """
        return self._portal.call(self._strike, ending, Target(method, path, query or {}))

    def insert(
        self, line: Tree | bytes, *, path: str = "*", query: Mapping[str, str | None] | None = None
    ) -> int:
        """Send a line of our own on the open watches that fit; return how many those were."""
        data = line if isinstance(line, bytes) else encode(line)
        return self._portal.call(self._insert, data, Target("GET", path, query or {}))

    def release(self, event: str) -> None:
        """Let every `Until(event)` go on."""
        self._portal.call(self._relay.events.release, event)

    def _strike(self, ending: Rupture, target: Target) -> int:
        fitting = self._relay.fitting(target)
        for live in fitting:
            live.strike(ending)
        return len(fitting)

    async def _insert(self, line: bytes, target: Target) -> int:
        editors = [live.editor for live in self._relay.fitting(target) if live.editor]
        for editor in editors:
            await editor.put(line)
        return len(editors)


@asynccontextmanager
async def _open_session(ca_file: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """Open what asks the real server, and wait at the end until its sockets are closed.

    aiohttp lets those that were given up in the middle of a request end TLS in the background.
    """
    sockets: WeakSet[socket.socket] = WeakSet()

    def connect(address: AddrInfoType) -> socket.socket:
        made = socket.socket(*address[:3])
        sockets.add(made)
        return made

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            ssl=ssl.create_default_context(cafile=str(ca_file)),
            socket_factory=connect,
        ),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        read_bufsize=1 << 20,
    ) as session:
        yield session
    with anyio.move_on_after(_CLOSE_SECONDS):
        while any(made.fileno() >= 0 for made in sockets):  # noqa: ASYNC110 - no event tells
            await anyio.sleep(0.01)
