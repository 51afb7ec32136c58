# SPDX-License-Identifier: Apache-2.0
"""What is refused: no request at all, or too much for one; what came before it is answered."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest

if TYPE_CHECKING:
    from test.unit.httpserver.conftest import Reply, Serving, Wire

GET = b"GET /echo HTTP/1.1\r\nHost: here\r\n\r\n"
LAST = b"GET /echo HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "text",
    [
        b"rubbish\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # how TLS begins
        b"GET /echo HTTP/1.1\r\n\r\n",  # no host
        b"GET /echo HTTP/1.1\r\nHost: here\r\nContent-Length: x\r\n\r\n",
        b"GET /echo HTTP/1.1\r\nHost here\r\n\r\n",
        b"GET /echo FTP/1.1\r\nHost: here\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_a_400_and_the_end(serving: Serving, text: bytes) -> None:
    async with serving() as server:
        reply = await server.exchange(text)
    assert (reply.status, reply.headers["Connection"]) == (400, "close")


async def test_what_is_good_before_it_is_answered_first(serving: Serving) -> None:
    async with serving() as server, server.client() as client:
        await client.send(GET + b"rubbish\r\n\r\n" + GET)
        assert re.findall(rb"HTTP/1.1 (\d+)", await client.rest()) == [b"200", b"400"]


@pytest.mark.parametrize("size", [1000, 20_000])
@pytest.mark.parametrize(
    "begin",
    [
        b"GET /echo HTTP/1.1\r\nHost: here\r\nX: ",
        b"GET /echo?",
        b"GET /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 99999\r\n\r\n",
        b"\r\n",
    ],
)
async def test_too_much_before_an_answer_is_a_431_and_the_end(
    serving: Serving, new_reply: type[Reply], begin: bytes, size: int
) -> None:
    filler = b"\r\n" if begin == b"\r\n" else b"zz"
    pieces = [filler * (size // 2)] * (40_000 // size)
    async with serving() as server, server.client() as client:
        with suppress(anyio.BrokenResourceError):
            await client.send(begin, *pieces)
        reply = new_reply.parse(await client.rest())
    assert (reply.status, reply.headers["Connection"]) == (431, "close")


async def test_requests_that_come_together_are_each_measured_alone(new_wire: type[Wire]) -> None:
    with new_wire.connected() as (connection, wire):
        connection.data_received(GET * 1000)
        connection.data_received(GET * 1000 + b"GET /echo?" + b"z" * 12_000)
        connection.data_received(b" HTTP/1.1\r\nHost: here\r\n\r\n")
        assert wire.statuses() == [200] * 2001
        connection.data_received(GET * 1000 + b"GET /echo?" + b"z" * 20_000)
        assert wire.statuses() == [200] * 3001 + [431]
        assert wire.written.count(b"Connection: close") == 1
        connection.data_received(GET)
        assert len(wire.statuses()) == 3002


@pytest.mark.parametrize("behind", [b"GET /echo?" + b"z" * 20_000, b"rubbish\r\n\r\n", GET])
async def test_behind_an_answer_that_waits_nothing_is_answered(
    new_wire: type[Wire], behind: bytes
) -> None:
    with new_wire.connected() as (connection, wire):
        wire.is_full = True
        connection.data_received(GET + behind)
        assert wire.statuses() == [200]


@pytest.mark.parametrize("error", [OSError(107, "not connected"), RuntimeError("handler closed")])
async def test_a_client_that_is_gone_before_the_end_is_told_is_cut(
    new_wire: type[Wire], error: Exception
) -> None:
    with new_wire.connected(eof_error=error) as (connection, wire):
        connection.data_received(LAST)
        assert wire.is_aborted


async def test_a_head_of_a_few_kilobytes_is_fine(serving: Serving) -> None:
    async with serving() as server:
        cookie = b"Cookie: " + b"c" * 12_000 + b"\r\n\r\n"
        assert (await server.exchange(LAST.removesuffix(b"\r\n") + cookie)).status == 200
