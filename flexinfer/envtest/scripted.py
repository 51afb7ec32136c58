# SPDX-License-Identifier: Apache-2.0
"""A TLS server on loopback that says what a real API server cannot be made to say.

It plays a script of `flexinfer.envtest.script`, records what it was asked, and speaks just enough
HTTP/1.1: keep-alive, Content-Length in requests, chunks in answers.

```python
async with ScriptedServer.start(authority) as server:
    server.script("GET", "/version", Answer(429, {"Retry-After": "1"}), Answer(body={"major": "1"}))
    ...
    assert len(server.requests) == 2
```

A request without a route is answered with 501 and kept in `unscripted`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketAttribute

from flexinfer.envtest import wire
from flexinfer.envtest.script import Answer, KeepAlive, Script, Target
from flexinfer.envtest.wire import Received

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from anyio.abc import SocketStream

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.envtest.script import Action, Rupture

__all__ = ["Received", "ScriptedServer"]


class ScriptedServer:
    """Play a script to every client that trusts the authority; make one with `start`."""

    def __init__(self, url: str, authority: CertificateAuthority) -> None:
        self.url = url
        self.present(authority)
        self.requests: list[Received] = []
        self.unscripted: list[Received] = []
        self.connections = 0
        self._script: Script[Action] = Script()
        self._on_connect: list[Rupture] = []
        self._events = Events()
        self._arrival = anyio.Event()

    @classmethod
    @asynccontextmanager
    async def start(cls, authority: CertificateAuthority) -> AsyncIterator[ScriptedServer]:
        """Serve on a free port of 127.0.0.1 until the block ends.

        What the block raises comes out as it is, not inside an exception group.
        """
        listeners = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listeners.extra(SocketAttribute.local_port)
        server = cls(f"https://127.0.0.1:{port}", authority)
        async with listeners, anyio.create_task_group() as connections:
            connections.start_soon(listeners.serve, server._connected)
            failure = None
            try:
                yield server
            except Exception as error:  # noqa: BLE001 - raised again outside the group
                failure = error
            connections.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def script(
        self,
        method: str,
        path: str,
        *actions: Action,
        query: Mapping[str, str | None] | None = None,
    ) -> None:
        """Take *actions* in turn for such requests, the last again and again."""
        self._script.add(Target(method, path, query or {}), actions)

    def present(self, authority: CertificateAuthority) -> None:
        """Show new connections a certificate of *authority*, and trust clients of it alone."""
        self.ca_pem = authority.ca_pem.read_text()
        self._context = wire.server_context(authority)

    def on_connect(self, *actions: Rupture) -> None:
        """Treat the next connections so before TLS; later ones are served."""
        self._on_connect.extend(actions)

    def release(self, event: str) -> None:
        """Let every `Until(event)` go on."""
        self._events.release(event)

    async def received(
        self, count: int, *, method: str = "", path: str = "", within: float = 5.0
    ) -> Sequence[Received]:
        """Wait for *count* requests that fit, and return all that do; TimeoutError after *within*.

        *within* is in seconds. An empty method or path fits every one.
        """
        with anyio.fail_after(within):
            while True:
                arrival = self._arrival
                fitting = [
                    r for r in self.requests if method in {"", r.method} and path in {"", r.path}
                ]
                if len(fitting) >= count:
                    return fitting
                await arrival.wait()

    async def _connected(self, stream: SocketStream) -> None:
        self.connections += 1
        if self._on_connect:
            await wire.refuse(stream, self._on_connect.pop(0))
        else:
            await wire.serve_connection(stream, self._context, self.connections, self._serve)

    async def _serve(self, connection: wire.Connection) -> None:
        while True:
            request = await connection.receive()
            self.requests.append(request)
            self._arrival.set()
            self._arrival = anyio.Event()
            action = self._script.take(request.method, request.path, request.query)
            if action is None:
                self.unscripted.append(request)
                action = Answer(501, body=f"no route for {request.method} {request.path}")
            if not isinstance(action, Answer):
                await connection.end(action)
                return
            await connection.answer(action, self._events)
            if not isinstance(action.then, KeepAlive):
                await connection.end(action.then)
                return


class Events:
    """Be the events of one script that are released by name."""

    def __init__(self) -> None:
        self._events: dict[str, anyio.Event] = {}

    def release(self, name: str) -> None:
        """Let everybody go on who waits for *name*, now or later."""
        self._event(name).set()

    async def wait(self, name: str) -> None:
        """Wait for the release of *name*."""
        await self._event(name).wait()

    def _event(self, name: str) -> anyio.Event:
        return self._events.setdefault(name, anyio.Event())
