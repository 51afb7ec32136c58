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

import socket
import ssl
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl, urlsplit

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSAttribute, TLSStream

from flexinfer.envtest.script import (
    Answer,
    Bytes,
    Close,
    Delay,
    Drip,
    Hang,
    KeepAlive,
    Lines,
    Reset,
    Route,
    Script,
    Until,
)
from flexinfer.meta.envelope import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from anyio.abc import SocketStream

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.envtest.script import Action, Ending, Step
    from flexinfer.meta.envelope import Tree

_HEADER_LIMIT = 64 * 1024
_CLOSE_SECONDS = 1.0
_GONE = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, ssl.SSLError, OSError)


@dataclass(frozen=True, slots=True)
class Received:
    """Be one request as it came in; header names are lower-case.

    `connection` counts connections from 1, so that equal numbers mean one connection was used
    again. `client` is the common name of the client's certificate, empty without one.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    connection: int
    client: str = ""


class ScriptedServer:
    """Play a script to every client that trusts the authority; make one with `start`."""

    def __init__(self, url: str, authority: CertificateAuthority) -> None:
        self.url = url
        self.present(authority)
        self.requests: list[Received] = []
        self.unscripted: list[Received] = []
        self.connections = 0
        self._script = Script()
        self._on_connect: list[Close | Reset | Hang] = []
        self._events: dict[str, anyio.Event] = {}
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
        query: Mapping[str, str] | None = None,
    ) -> None:
        """Take *actions* in turn for such requests, the last again and again."""
        self._script.add(Route(method, path, actions, query or {}))

    def present(self, authority: CertificateAuthority) -> None:
        """Show new connections a certificate of *authority*, and trust clients of it alone."""
        self.ca_pem = authority.ca_pem.read_text()
        self._context = _server_context(authority)

    def on_connect(self, *actions: Close | Reset | Hang) -> None:
        """Treat the next connections so before TLS; later ones are served."""
        self._on_connect.extend(actions)

    def release(self, event: str) -> None:
        """Let every `Until(event)` go on."""
        self._event(event).set()

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

    def _event(self, name: str) -> anyio.Event:
        return self._events.setdefault(name, anyio.Event())

    async def _connected(self, stream: SocketStream) -> None:
        self.connections += 1
        number = self.connections
        try:
            if self._on_connect:
                await _end(stream, stream, self._on_connect.pop(0))
                return
            tls = await TLSStream.wrap(stream, server_side=True, ssl_context=self._context)
            await self._serve(tls, stream, number)
        except _GONE:
            # The client went away, or did not trust us: both are what some test is about.
            pass
        finally:
            await anyio.aclose_forcefully(stream)

    async def _serve(self, tls: TLSStream, raw: SocketStream, number: int) -> None:
        reader = BufferedByteReceiveStream(tls)
        while True:
            try:
                request = await _read_request(reader, number, _client_name(tls))
            except anyio.IncompleteRead:
                await _end(tls, raw, Close())
                return
            self.requests.append(request)
            self._arrival.set()
            self._arrival = anyio.Event()
            action = self._script.take(request.method, request.path, request.query)
            if action is None:
                self.unscripted.append(request)
                action = Answer(501, body=f"no route for {request.method} {request.path}")
            if isinstance(action, Answer):
                await self._answer(tls, action)
                action_after: Ending = action.then
            else:
                action_after = action
            if not isinstance(action_after, KeepAlive):
                await _end(tls, raw, action_after)
                return

    async def _answer(self, tls: TLSStream, answer: Answer) -> None:
        if not isinstance(answer.body, (bytes, str, dict)):
            await self._answer_in_steps(tls, answer, answer.body)
            return
        kind, body = _whole(answer.body)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), **answer.headers}
        await tls.send(_head(answer.status, headers) + body)

    async def _answer_in_steps(self, tls: TLSStream, answer: Answer, steps: Sequence[Step]) -> None:
        headers = {
            "Content-Type": "application/json",
            "Transfer-Encoding": "chunked",
            **answer.headers,
        }
        await tls.send(_head(answer.status, headers))
        for step in steps:
            await self._step(tls, step)
        if isinstance(answer.then, KeepAlive):
            await tls.send(b"0\r\n\r\n")

    async def _step(self, tls: TLSStream, step: Step) -> None:
        match step:
            case Lines(lines):
                chunks = [encode(x) if isinstance(x, dict) else x for x in lines]
                await tls.send(b"".join(_chunk(line + b"\n") for line in chunks))
            case Bytes(data):
                await tls.send(_chunk(data))
            case Drip(data, piece, pause):
                for start in range(0, len(data), piece):
                    await tls.send(_chunk(data[start : start + piece]))
                    await anyio.sleep(pause)
            case Delay(seconds):
                await anyio.sleep(seconds)
            case Until(event):
                await self._event(event).wait()


def _server_context(authority: CertificateAuthority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue())
    context.load_verify_locations(authority.ca_pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _client_name(tls: TLSStream) -> str:
    certificate = tls.extra(TLSAttribute.peer_certificate, None)
    subject = cast("Sequence[Sequence[tuple[str, str]]]", (certificate or {}).get("subject", ()))
    return next((value for entry in subject for key, value in entry if key == "commonName"), "")


async def _read_request(reader: BufferedByteReceiveStream, number: int, client: str) -> Received:
    head = (await reader.receive_until(b"\r\n\r\n", _HEADER_LIMIT)).decode("latin-1")
    request_line, *lines = head.split("\r\n")
    method, target, _version = request_line.split(" ")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.receive_exactly(int(headers.get("content-length", "0")))
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    return Received(method, url.path, query, headers, body, number, client)


def _whole(body: bytes | str | Tree) -> tuple[str, bytes]:
    if isinstance(body, dict):
        return "application/json", encode(body)
    if isinstance(body, str):
        return "text/plain; charset=utf-8", body.encode()
    return "application/octet-stream", body


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n" if data else b""


async def _end(
    stream: TLSStream | SocketStream,
    raw: SocketStream,
    ending: Close | Reset | Hang,
) -> None:
    match ending:
        case Hang():
            await anyio.sleep_forever()
        case Reset():
            # Lingering for zero seconds makes close() send RST instead of FIN.
            linger = struct.pack("ii", 1, 0)
            raw_socket = raw.extra(SocketAttribute.raw_socket)
            raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await anyio.aclose_forcefully(raw)
        case Close():
            # A peer that does not answer the close_notify must not keep us.
            with anyio.move_on_after(_CLOSE_SECONDS):
                await stream.aclose()
