# SPDX-License-Identifier: Apache-2.0
"""The lines of one watch on their way through the proxy, and what a script does to them."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING

import anyio

from flexinfer.envtest.faults.forward import Bookmarks, CutInside, Drop, Hold, Insert, Rewrite
from flexinfer.envtest.wire import chunk
from flexinfer.meta.envelope import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.streams.memory import MemoryObjectSendStream

    from flexinfer.envtest.faults.forward import Forward
    from flexinfer.envtest.faults.traffic import Exchange
    from flexinfer.envtest.script import Ending
    from flexinfer.meta.envelope import Tree

_HELD = 100_000
"""Lines that wait for their time; the real server has to wait when there are more."""


class WatchEditor:
    """Send the lines of a watch, edited, and lines of our own between them.

    *send* puts bytes on the wire, *end* ends the exchange so; *version* asks the real server for
    the present resourceVersion of the collection.
    """

    def __init__(
        self,
        forward: Forward,
        exchange: Exchange,
        *,
        send: Callable[[bytes], Awaitable[None]],
        end: Callable[[Ending], Awaitable[None]],
        bookmark: Callable[[], Awaitable[Tree | None]],
    ) -> None:
        self._forward = forward
        self._exchange = exchange
        self._send = send
        self._end = end
        self._bookmark = bookmark
        self._turn = anyio.Lock()
        self._last = exchange.request.query.get("resourceVersion", "")
        self._left = math.inf if forward.cut_after is None else forward.cut_after

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Pass *lines* on until their end."""
        async with anyio.create_task_group() as group:
            for edit in self._forward.lines:
                if isinstance(edit, Insert):
                    group.start_soon(self._insert_later, edit)
                elif isinstance(edit, Bookmarks):
                    group.start_soon(self._send_bookmarks, edit.every)
            hold = sum(edit.seconds for edit in self._forward.lines if isinstance(edit, Hold))
            if hold:
                await self._pass_held(lines, hold)
            else:
                async for line in lines:
                    await self._pass(line)
            group.cancel_scope.cancel()

    async def put(self, line: bytes) -> None:
        """Send a line as it is, after those that are being sent."""
        async with self._turn:
            data = line + b"\n"
            if len(data) > self._left:
                await self._send(chunk(data[: int(self._left)]))
                await self._end(self._forward.then)
            self._left -= len(data)
            await self._send(chunk(data))
            self._exchange.lines += 1

    async def _pass_held(self, lines: AsyncIterator[bytes], seconds: float) -> None:
        inlet, outlet = anyio.create_memory_object_stream[tuple[float, bytes]](_HELD)
        async with anyio.create_task_group() as group:
            group.start_soon(_take_in, lines, inlet, seconds)
            async with outlet:
                async for due, line in outlet:
                    await anyio.sleep(max(0.0, due - time.monotonic()))
                    await self._pass(line)

    async def _pass(self, line: bytes) -> None:
        event: Tree = json.loads(line)
        for edit in self._forward.lines:
            if isinstance(edit, Hold | Insert | Bookmarks) or not _concerns(edit, event):
                continue
            match edit:
                case Drop():
                    return
                case CutInside(size, then):
                    await self._send(chunk(line[:size]))
                    await self._end(then)
                case Rewrite(change):
                    changed = change(event)
                    if isinstance(changed, bytes):
                        await self.put(changed)
                        return
                    event, line = changed, encode(changed)
        self._last = _version(event) or self._last
        await self.put(line)

    async def _insert_later(self, edit: Insert) -> None:
        await anyio.sleep(edit.after)
        await self.put(edit.line if isinstance(edit.line, bytes) else encode(edit.line))

    async def _send_bookmarks(self, every: float) -> None:
        known = await self._bookmark()
        while True:
            await anyio.sleep(every)
            if known is not None and int(_version(known) or 0) >= int(self._last or 0):
                await self.put(encode(known))
            known = await self._bookmark()


async def _take_in(
    lines: AsyncIterator[bytes],
    inlet: MemoryObjectSendStream[tuple[float, bytes]],
    seconds: float,
) -> None:
    async with inlet:
        async for line in lines:
            await inlet.send((time.monotonic() + seconds, line))


def _concerns(edit: Drop | Rewrite | CutInside, event: Tree) -> bool:
    name = _metadata(event).get("name", "")
    return edit.type in {"", event.get("type")} and edit.name in {"", name}


def _version(event: Tree) -> str:
    version: str = _metadata(event).get("resourceVersion", "")
    return version


def _metadata(event: Tree) -> Tree:
    """Return the metadata of an event's object; empty when an edit left none."""
    item = event.get("object")
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return metadata if isinstance(metadata, dict) else {}
