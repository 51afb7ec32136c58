# SPDX-License-Identifier: Apache-2.0
"""The proxy's way of one connection: take a request, play its action, end it or go on."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

import aiohttp
import anyio
from yarl import URL

from flexinfer.envtest.faults.edits import WatchEditor
from flexinfer.envtest.faults.forward import FaultAction, Forward
from flexinfer.envtest.script import Answer, KeepAlive, Reset, Script, Target
from flexinfer.envtest.scripted import Events
from flexinfer.envtest.wire import GONE, LAST_CHUNK, head
from flexinfer.meta.envelope import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping

    from flexinfer.envtest.faults.traffic import Exchange, Recorder
    from flexinfer.envtest.script import Ending
    from flexinfer.envtest.wire import Connection, Received
    from flexinfer.meta.envelope import Tree

T = TypeVar("T")

_OF_ONE_HOP = frozenset(
    {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}
)


class Live:
    """Be an exchange that is going on, so that it can be struck at."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.editor: WatchEditor | None = None
        self._scope = anyio.CancelScope()
        self._verdict: Ending = Reset()

    async def until_struck(self, step: Awaitable[T]) -> T | Ending:
        """Return what *step* returns, or how the exchange was told to end meanwhile."""
        with anyio.CancelScope() as self._scope:
            return await step
        return self._verdict

    def strike(self, ending: Ending) -> None:
        """End it so, whatever it is doing."""
        self._verdict = ending
        self._scope.cancel()

    async def end(self, ending: Ending) -> None:
        """End it so from within; does not return."""
        self.strike(ending)
        await anyio.sleep_forever()


class Relay:
    """Pass requests on to one real server, but for what a script says.

    *session* has to trust that server.
    """

    def __init__(self, upstream: str, session: aiohttp.ClientSession, recorder: Recorder) -> None:
        self.script: Script[FaultAction] = Script()
        self.events = Events()
        self.going_on: set[Live] = set()
        self._upstream = upstream
        self._session = session
        self._recorder = recorder

    def fitting(self, target: Target) -> list[Live]:
        """Return the exchanges that are going on and fit."""
        requests = ((live, live.exchange.request) for live in self.going_on)
        return [live for live, r in requests if target.fits(r.method, r.path, r.query)]

    async def serve(self, connection: Connection) -> None:
        """Serve one connection until it is ended."""
        while True:
            request = await connection.receive()
            action = self.script.take(request.method, request.path, request.query) or Forward()
            with self._noted(request, action) as live:
                ending = await live.until_struck(self._play(live, connection))
                while not isinstance(ending, KeepAlive):
                    ended = await live.until_struck(connection.end(ending))
                    if ended is None:
                        return
                    ending = ended

    @contextmanager
    def _noted(self, request: Received, action: FaultAction) -> Iterator[Live]:
        live = Live(self._recorder.begin(request, action))
        self.going_on.add(live)
        try:
            yield live
        finally:
            live.exchange.ended_at = time.monotonic()
            self.going_on.discard(live)

    async def _play(self, live: Live, connection: Connection) -> Ending:
        action = live.exchange.action
        if isinstance(action, Answer):
            live.exchange.status = action.status
            await connection.answer(action, self.events)
            return action.then
        if isinstance(action, Forward):
            return await self._forward(live, action, connection)
        return action

    async def _forward(self, live: Live, action: Forward, connection: Connection) -> Ending:
        request = live.exchange.request
        try:
            async with self._ask(request, _target(request, action)) as response:
                await anyio.sleep(action.delay)
                status = action.status or response.status
                headers = _headers(response.headers, action)
                live.exchange.status = status
                if request.query.get("watch") == "true" and response.ok:
                    await connection.send(head(status, {**headers, "Transfer-Encoding": "chunked"}))
                    return await self._watch(live, action, connection, response)
                body = await response.read()
        except (aiohttp.ClientError, OSError):
            # The real server is down, or went away: our client sees what it would see directly.
            return Reset()
        if action.body is not None:
            body = encode(action.body(json.loads(body)))
        await connection.send(head(status, {"Content-Length": str(len(body)), **headers}))
        await connection.send(body[: action.cut_after])
        return action.then

    @asynccontextmanager
    async def _ask(self, request: Received, target: str) -> AsyncIterator[aiohttp.ClientResponse]:
        response = await self._session.request(
            request.method,
            URL(f"{self._upstream}{target}", encoded=True),
            headers={k: v for k, v in request.headers.items() if k not in _OF_ONE_HOP},
            data=request.body or None,
            allow_redirects=False,
        )
        try:
            yield response
        finally:
            # None once the answer is read to its end. Else an orderly end of TLS would go on
            # after the proxy is gone.
            connection = response.connection
            if connection is not None and connection.transport is not None:
                connection.transport.abort()
            response.close()

    async def _watch(
        self,
        live: Live,
        action: Forward,
        connection: Connection,
        response: aiohttp.ClientResponse,
    ) -> Ending:
        async def bookmark() -> Tree | None:
            return await self._bookmark(live.exchange.request)

        live.editor = WatchEditor(
            action, live.exchange, send=connection.send, end=live.end, bookmark=bookmark
        )
        is_lost = False
        try:
            await live.editor.run(_lines(response))
        except* (aiohttp.ClientError, *GONE):
            is_lost = True
        if is_lost:
            return Reset()
        if isinstance(action.then, KeepAlive):
            await connection.send(LAST_CHUNK)
        return action.then

    async def _bookmark(self, request: Received) -> Tree | None:
        """Return a bookmark with the collection's present version; None when nobody answers."""
        try:
            async with self._ask(request, f"{request.path}?limit=1") as response:
                listed: Tree = json.loads(await response.read())
        except (aiohttp.ClientError, OSError):
            return None
        if not response.ok:
            return None
        metadata = {"resourceVersion": listed["metadata"]["resourceVersion"]}
        kind = listed["kind"].removesuffix("List")
        item = {"apiVersion": listed["apiVersion"], "kind": kind, "metadata": metadata}
        return {"type": "BOOKMARK", "object": item}


def _target(request: Received, action: Forward) -> str:
    if action.ask is None:
        return request.target
    return f"{request.path}?{urlencode(action.ask(request.query))}"


def _headers(headers: Mapping[str, str], action: Forward) -> dict[str, str]:
    replaced = {name.lower() for name in action.headers} | _OF_ONE_HOP
    kept = {name: value for name, value in headers.items() if name.lower() not in replaced}
    return kept | {name: value for name, value in action.headers.items() if value}


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    unfinished = b""
    async for data in response.content.iter_any():
        *lines, unfinished = (unfinished + data).split(b"\n")
        for line in lines:
            yield line
