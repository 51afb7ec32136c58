# SPDX-License-Identifier: Apache-2.0
"""Connections together: how many there may be, that none is left over, and all at the stop."""

from __future__ import annotations

import gc
import time
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio
import structlog

from flexinfer.envtest.eventually import eventually
from flexinfer.httpserver import Connection, Connections, Limits

if TYPE_CHECKING:
    import pytest

    from test.unit.httpserver.conftest import Client, Closes, Reply, Server, Serving

BIG = b"x" * (16 * 1024 * 1024)  # more than the buffers of both ends hold
GET = b"GET /echo HTTP/1.1\r\nHost: here\r\n\r\n"
LAST = b"GET /echo HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"


async def test_one_connection_too_many_takes_the_place_of_an_idle_one(
    serving: Serving, closes: Closes
) -> None:
    limits = Limits(connections=2)
    with structlog.testing.capture_logs() as lines:
        async with serving(limits) as server, server.client() as asking, server.client() as idle:
            await idle.send(GET)
            await idle.answer()
            await asking.send(GET[:10])
            # So that its first bytes are read before the next connection comes.
            await eventually(partial(answers, server))
            await closes(idle)
            await asking.send(GET[10:])
            assert (await asking.answer()).status == 200
    assert [(line["event"], line["limit"]) for line in lines] == [
        ("too many connections: one is cut", 2)
    ]


async def answers(server: Server) -> None:
    assert (await server.exchange(LAST)).status == 200


async def test_when_all_are_asking_the_newest_is_cut_and_places_come_free(
    serving: Serving, closes: Closes
) -> None:
    async with serving(Limits(connections=2, request=1)) as server:
        async with server.client() as one, server.client() as two:
            for client in (one, two):
                await client.send(GET + GET[:10])
                await client.answer()
            async with server.client() as three:
                await closes(three)
            await one.send(GET[10:])
            assert (await one.answer()).status == 200
        await eventually(partial(answers, server))


async def test_many_connections_are_answered_at_a_time(serving: Serving) -> None:
    async with serving() as server, anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(answers, server)


async def test_a_connection_that_has_ended_is_freed_without_the_garbage_collector(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: WeakSet[Connection] = WeakSet()
    make = Connections.make

    def kept(self: Connections) -> Connection:
        connection = make(self)
        made.add(connection)
        return connection

    monkeypatch.setattr(Connections, "make", kept)
    async with serving(Limits(request=0.2)) as server:
        gc.disable()
        try:
            for begin in (b"", GET, GET[:10], LAST, b"rubbish\r\n\r\n"):
                async with server.client() as client:
                    await client.send(begin)
                    await eventually(lambda: len(made) == 1)
                await eventually(lambda: not made)
        finally:
            gc.enable()


async def test_at_the_stop_idle_connections_end_and_what_is_sent_is_sent(
    serving: Serving, closes: Closes, new_client: type[Client]
) -> None:
    async with anyio.create_task_group() as group:
        async with serving() as server:
            idle, reading, half = [
                new_client(await anyio.connect_tcp("127.0.0.1", server.port)) for _ in range(3)
            ]
            await idle.send(GET)
            await idle.answer()
            await half.send(GET[:10])
            await reading.send(GET.replace(b"echo", b"big"))
            reading.received += await reading.stream.receive()
            got: list[Reply] = []

            async def read() -> None:
                got.append(await reading.answer())

            group.start_soon(read)
        await closes(idle)
        await closes(half)
    assert got[0].body == BIG
    await closes(reading)
    for client in (idle, reading, half):
        await client.stream.aclose()


async def test_the_stop_waits_a_second_at_most_for_a_client_that_does_not_read(
    serving: Serving, new_client: type[Client]
) -> None:
    async with serving() as server:
        client = new_client(await anyio.connect_tcp("127.0.0.1", server.port))
        await client.send(GET.replace(b"echo", b"big"))
        client.received += await client.stream.receive()
        started = time.monotonic()
    assert time.monotonic() - started >= 0.9
    assert len(await client.rest()) < len(BIG)
    await client.stream.aclose()
