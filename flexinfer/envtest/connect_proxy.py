# SPDX-License-Identifier: Apache-2.0
"""An HTTP proxy on loopback that tunnels by CONNECT, and knows who wanted to go where.

It dials only what its routes say, so that names and addresses that exist nowhere can be used:

```python
routes = {"api.example.org:6443": server.url}
async with ConnectProxy.start(routes) as proxy:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    ...
    assert [tunnel.target for tunnel in proxy.tunnels] == ["api.example.org:6443"]
```

A target without a route is answered with 502; everything but CONNECT with 405.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from anyio.abc import ByteReceiveStream, SocketStream

_HEADER_LIMIT = 64 * 1024
_ESTABLISHED = 200
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.IncompleteRead, OSError)


@dataclass(frozen=True, slots=True)
class Tunnel:
    """Be one CONNECT as it came in; header names are lower-case."""

    target: str
    headers: Mapping[str, str]


class ConnectProxy:
    """Tunnel to where the routes lead; make one with `start`.

    `answer` is the status that every CONNECT gets; all but 200 refuse it. `fields` are the header
    lines of an answer that opens a tunnel, each with its line end.
    """

    def __init__(self, url: str, routes: Mapping[str, str]) -> None:
        self.url = url
        self.routes = dict(routes)
        self.tunnels: list[Tunnel] = []
        self.answer = _ESTABLISHED
        self.fields = ""

    @classmethod
    @asynccontextmanager
    async def start(cls, routes: Mapping[str, str]) -> AsyncIterator[ConnectProxy]:
        """Serve on a free port of 127.0.0.1 until the block ends.

        *routes* leads from `host:port`, as clients ask for it, to a URL on loopback. What the
        block raises comes out as it is, not inside an exception group.
        """
        listeners = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listeners.extra(SocketAttribute.local_port)
        proxy = cls(f"http://127.0.0.1:{port}", routes)
        failure = None
        async with listeners, anyio.create_task_group() as connections:
            connections.start_soon(listeners.serve, proxy._connected)
            try:
                yield proxy
            except Exception as error:  # noqa: BLE001 - raised again outside the group
                failure = error
            connections.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _connected(self, client: SocketStream) -> None:
        reader = BufferedByteReceiveStream(client)
        try:
            async with client:
                await self._tunnel(client, reader)
        except _GONE:
            # Either side went away, which ends a tunnel.
            pass

    async def _tunnel(self, client: SocketStream, reader: BufferedByteReceiveStream) -> None:
        head = (await reader.receive_until(b"\r\n\r\n", _HEADER_LIMIT)).decode("latin-1")
        request_line, *lines = head.split("\r\n")
        method, target, _version = request_line.split(" ")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        self.tunnels.append(Tunnel(target, headers))
        status = self._status(method, target)
        fields = self.fields if status == _ESTABLISHED else "Content-Length: 0\r\n"
        await client.send(f"HTTP/1.1 {status} Tunnel\r\n{fields}\r\n".encode("latin-1"))
        if status == _ESTABLISHED:
            route = urlsplit(self.routes[target])
            async with await anyio.connect_tcp(route.hostname or "", route.port or 443) as server:
                await _join(client, reader, server)

    def _status(self, method: str, target: str) -> int:
        if method != "CONNECT":
            return 405
        if self.answer != _ESTABLISHED:
            return self.answer
        return _ESTABLISHED if target in self.routes else 502


async def _join(
    client: SocketStream, reader: BufferedByteReceiveStream, server: SocketStream
) -> None:
    """Carry bytes both ways until either side ends."""
    async with anyio.create_task_group() as ways:

        async def carry(source: ByteReceiveStream, sink: SocketStream) -> None:
            try:
                async for data in source:
                    await sink.send(data)
            except _GONE:
                # The other way still ends in order.
                pass
            ways.cancel_scope.cancel()

        ways.start_soon(carry, reader, server)
        ways.start_soon(carry, server, client)
