# SPDX-License-Identifier: Apache-2.0
"""Slow clients: those that do not send, do not close, or do not read."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from flexinfer.envtest.eventually import eventually
from flexinfer.httpserver import Limits

if TYPE_CHECKING:
    from test.unit.httpserver.conftest import Client, Closes, Serving

BIG = b"x" * (16 * 1024 * 1024)  # more than the buffers of both ends hold
GET = b"GET /echo HTTP/1.1\r\nHost: here\r\n\r\n"
LAST = b"GET /echo HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"


async def refuses(client: Client) -> None:
    """Claim that the server is not there any more for what is sent."""
    try:
        await client.send(GET)
    except anyio.BrokenResourceError:
        return
    raise AssertionError("sent")


@pytest.mark.parametrize("begin", [b"", b"GET /echo HTTP/1.1\r\nHost:", GET.removesuffix(b"\r\n")])
async def test_a_request_that_does_not_come_whole_is_cut(
    serving: Serving, closes: Closes, begin: bytes
) -> None:
    async with serving(Limits(request=0.2)) as server, server.client() as client:
        await client.send(begin)
        await closes(client)


async def test_a_byte_now_and_then_wins_no_time(serving: Serving, closes: Closes) -> None:
    async with serving(Limits(request=0.3)) as server, server.client() as client:

        async def drip() -> None:
            with suppress(anyio.BrokenResourceError):
                for byte in GET.replace(b"here", b"h" * 10_000):
                    await client.send(bytes([byte]))
                    await anyio.sleep(0.02)

        async with anyio.create_task_group() as group:
            group.start_soon(drip)
            await closes(client)
            group.cancel_scope.cancel()


async def test_an_idle_connection_is_cut(serving: Serving, closes: Closes) -> None:
    async with serving(Limits(idle=0.2)) as server, server.client() as client:
        await client.send(GET)
        assert (await client.answer()).status == 200
        await closes(client)


async def test_the_time_of_a_request_begins_with_its_first_byte(
    serving: Serving, closes: Closes
) -> None:
    async with serving(Limits(request=0.2)) as server, server.client() as client:
        await client.send(GET)
        await client.answer()
        await anyio.sleep(0.4)  # longer than a request may take
        await client.send(GET[:10])
        await client.send(GET[10:])
        assert (await client.answer()).status == 200
        await client.send(GET + GET[:10])
        assert (await client.answer()).status == 200
        await closes(client)


async def test_a_client_that_does_not_close_after_the_last_answer_is_cut(
    serving: Serving, closes: Closes
) -> None:
    async with serving(Limits(linger=0.2)) as server, server.client() as client:
        await client.send(LAST)
        assert (await client.answer()).status == 200
        await closes(client)
        await eventually(partial(refuses, client), within=10)


async def test_a_client_that_never_reads_is_cut_and_holds_one_answer_at_most(
    serving: Serving,
) -> None:
    async with serving(Limits(send=0.3)) as server, server.client() as client:
        await client.send(GET.replace(b"echo", b"big") * 20)
        await eventually(partial(refuses, client), within=10)
        assert len(await client.rest()) < 2 * len(BIG)


async def test_a_slow_reader_gets_all_of_a_large_answer_and_may_go_on(serving: Serving) -> None:
    async with serving() as server, server.client() as client:
        await client.send(GET.replace(b"echo", b"big"))
        client.received += await client.stream.receive()
        await client.send(GET)
        assert (await client.answer()).body == BIG
        assert (await client.answer()).body == b"/echo {}"


async def test_what_is_sent_ahead_of_an_answer_that_waits_is_left_and_the_connection_closed(
    serving: Serving, closes: Closes
) -> None:
    async with serving() as server, server.client() as client:
        await client.send(GET.replace(b"echo", b"big") + GET * 5)
        assert (await client.answer()).body == BIG
        await closes(client)
