# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 over TLS from the server's end: just enough of it, and every way to break it.

Requests have a Content-Length or no body; answers are whole or in chunks.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import parse_qsl, urlsplit

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSAttribute, TLSStream

from flexinfer.envtest.script import (
    Answer,
    Bytes,
    Close,
    Delay,
    Drip,
    HalfClose,
    Hang,
    KeepAlive,
    Lines,
    Reset,
    Until,
)
from flexinfer.meta.envelope import encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from anyio.abc import SocketStream

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.envtest.script import Rupture, Step
    from flexinfer.meta.envelope import Tree

LAST_CHUNK = b"0\r\n\r\n"
_UNREAD_LIMIT = 16 << 20
_CLOSE_SECONDS = 1.0
GONE = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    ssl.SSLError,
    OSError,
)


@dataclass(frozen=True, slots=True)
class Received:
    """Be one request as it came in; header names are lower-case.

    `connection` counts connections from 1, so that equal numbers mean one connection was used
    again. `client` is the common name of the client's certificate, empty without one. `target`
    is the path with its query, as it was sent.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    connection: int
    client: str = ""
    target: str = ""


class Events(Protocol):
    """Be what `Until` waits for."""

    async def wait(self, name: str) -> None:
        """Return once the event of that name was released."""


def server_context(authority: CertificateAuthority) -> ssl.SSLContext:
    """Return a context with a certificate for loopback that takes client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue())
    context.load_verify_locations(authority.ca_pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


class Connection:
    """A client's connection: requests come in, bytes go out, and then it ends somehow."""

    def __init__(self, tls: TLSStream, raw: SocketStream, number: int) -> None:
        self.number = number
        self._tls = tls
        self._raw = raw
        self._client = _client_name(tls)
        self._unread = bytearray()
        self._news = anyio.Event()
        self._pumping = anyio.CancelScope()
        self._pumped = anyio.Event()
        self.is_gone = False
        self._is_silent = False

    async def receive(self) -> Received:
        """Return the next request, waiting for it."""
        while (end := self._unread.find(b"\r\n\r\n")) < 0:
            await self._news.wait()
        head = self._take(end + 4).decode("latin-1").rstrip()
        request_line, *lines = head.split("\r\n")
        method, target, _version = request_line.split(" ")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", "0"))
        while len(self._unread) < length:
            await self._news.wait()
        body = bytes(self._take(length))
        url = urlsplit(target)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        return Received(method, url.path, query, headers, body, self.number, self._client, target)

    def _take(self, size: int) -> bytearray:
        taken = self._unread[:size]
        del self._unread[:size]
        return taken

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self._tls.send(data)

    async def answer(self, answer: Answer, events: Events) -> None:
        """Send an answer, without what follows it."""
        if isinstance(answer.body, bytes | str | dict):
            kind, body = _whole(answer.body)
            headers = {"Content-Type": kind, "Content-Length": str(len(body)), **answer.headers}
            await self.send(head(answer.status, headers) + body)
            return
        headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        await self.send(head(answer.status, {**headers, **answer.headers}))
        for step in answer.body:
            await self._step(step, events)
        if isinstance(answer.then, KeepAlive):
            await self.send(LAST_CHUNK)

    async def _step(self, step: Step, events: Events) -> None:
        match step:
            case Lines(lines):
                data = [encode(line) if isinstance(line, dict) else line for line in lines]
                await self.send(b"".join(chunk(line + b"\n") for line in data))
            case Bytes(data):
                await self.send(chunk(data))
            case Drip(data, piece, pause):
                for start in range(0, len(data), piece):
                    await self.send(chunk(data[start : start + piece]))
                    await anyio.sleep(pause)
            case Delay(seconds):
                await anyio.sleep(seconds)
            case Until(event):
                await events.wait(event)

    async def end(self, ending: Rupture) -> None:
        """End the connection so; return when that is done, for some endings when the client ends.

        After it the connection is of no use.
        """
        if isinstance(ending, Close):
            await self._stop_pump()
            # A peer that does not answer the close_notify must not keep us.
            with anyio.move_on_after(_CLOSE_SECONDS):
                await self._tls.aclose()
        else:
            self._is_silent = isinstance(ending, Hang)
            await rupture(self._raw, ending)

    async def pump(self) -> None:
        """Take in what the client sends; return when it ends the connection, or we do."""
        try:
            with self._pumping:
                while len(self._unread) < _UNREAD_LIMIT:
                    self._unread += await self._tls.receive()
                    self._news.set()
                    self._news = anyio.Event()
        except GONE:
            if self._is_silent:
                # A dead peer does not answer the end of TLS either; only that of TCP ends us.
                await _read_to_end(self._raw)
            self.is_gone = True
        finally:
            self._pumped.set()

    async def _stop_pump(self) -> None:
        # Two cannot read at once, and the end of TLS reads the client's own.
        self._pumping.cancel()
        await self._pumped.wait()


async def rupture(raw: SocketStream, ending: Rupture) -> None:
    """End a connection below TLS, or do nothing for ever."""
    raw_socket = raw.extra(SocketAttribute.raw_socket)
    match ending:
        case Hang():
            await anyio.sleep_forever()
        case HalfClose():
            # uvloop's socket has no shutdown(); another one of the same connection does.
            with socket.fromfd(raw_socket.fileno(), raw_socket.family, raw_socket.type) as same:
                same.shutdown(socket.SHUT_WR)
            await anyio.sleep_forever()
        case Reset():
            # Lingering for zero seconds makes close() send RST instead of FIN.
            raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await anyio.aclose_forcefully(raw)
        case Close():
            await anyio.aclose_forcefully(raw)


async def refuse(raw: SocketStream, ending: Rupture) -> None:
    """End a connection before TLS; when nothing is said, until the client ends it."""
    try:
        async with anyio.create_task_group() as group:

            async def end() -> None:
                await rupture(raw, ending)
                group.cancel_scope.cancel()

            group.start_soon(end)
            await _read_to_end(raw)
            group.cancel_scope.cancel()
    finally:
        await anyio.aclose_forcefully(raw)


async def _read_to_end(raw: SocketStream) -> None:
    with contextlib.suppress(*GONE):
        while True:
            await raw.receive()


async def serve_connection(
    raw: SocketStream,
    context: ssl.SSLContext,
    number: int,
    handle: Callable[[Connection], Awaitable[None]],
) -> None:
    """Call *handle* with the connection, and end both when either has ended.

    A client that goes away, or does not trust us, is no error: that is what some test is about.
    """
    try:
        tls = await TLSStream.wrap(raw, server_side=True, ssl_context=context)
        connection = Connection(tls, raw, number)
        async with anyio.create_task_group() as group:
            group.start_soon(_handle, connection, handle, group.cancel_scope)
            await connection.pump()
            if connection.is_gone:
                group.cancel_scope.cancel()
        if connection.is_gone:
            await connection.end(Close())
    except GONE:
        pass
    finally:
        await anyio.aclose_forcefully(raw)


async def _handle(
    connection: Connection,
    handle: Callable[[Connection], Awaitable[None]],
    scope: anyio.CancelScope,
) -> None:
    with contextlib.suppress(*GONE):
        await handle(connection)
    scope.cancel()


def _client_name(tls: TLSStream) -> str:
    certificate = tls.extra(TLSAttribute.peer_certificate, None)
    subject = cast("Sequence[Sequence[tuple[str, str]]]", (certificate or {}).get("subject", ()))
    return next((value for entry in subject for key, value in entry if key == "commonName"), "")


def _whole(body: bytes | str | Tree) -> tuple[str, bytes]:
    if isinstance(body, dict):
        return "application/json", encode(body)
    if isinstance(body, str):
        return "text/plain; charset=utf-8", body.encode()
    return "application/octet-stream", body


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """Return the head of an answer."""
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Return data as a chunk; nothing for no data, since that would be the last chunk."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n" if data else b""
