# SPDX-License-Identifier: Apache-2.0
"""How requests come: in any pieces, one behind the other, on connections that stay or do not."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

    from test.unit.httpserver.conftest import Reply, Serving

GET = b"GET /echo HTTP/1.1\r\nHost: here\r\n\r\n"
LAST = b"GET /echo HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
PIPELINED = (
    b"\r\n"
    b"GET /echo?n=1 HTTP/1.1\r\nHost: here\r\nX-Long: " + b"y" * 200 + b"\r\n\r\n"
    b"HEAD /echo HTTP/1.1\r\nHost: here\r\n\r\n"
    b"GET /echo?n=2 HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nhello"
    b"GET /broken HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\nno"
    b"GET /echo?n=3 HTTP/1.1\r\nhost: here\r\nCONNECTION: close\r\n\r\n"
    b"GET /echo?n=4 HTTP/1.1\r\nHost: here\r\n\r\n"
)


def pieces_of(text: bytes, cuts: Sequence[int]) -> list[bytes]:
    ends = [*sorted(cuts), len(text)]
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False) if a < b]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, len(PIPELINED)), max_size=12))
def test_any_split_of_the_bytes_gives_the_same_answers_in_order(
    serving: Serving, cuts: list[int]
) -> None:
    async def told() -> bytes:
        async with serving() as server, server.client() as client:
            # Else the system would put the pieces together again.
            client.stream.extra(anyio.abc.SocketAttribute.raw_socket).setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )
            with suppress(anyio.BrokenResourceError):  # the last answer may come before all is sent
                for piece in pieces_of(PIPELINED, cuts):
                    await client.send(piece)
                    await anyio.lowlevel.checkpoint()
            return re.sub(rb"Date: [^\r]*", b"", await client.rest())

    with structlog.testing.capture_logs():
        text = anyio.run(told)
    statuses = re.findall(rb"HTTP/1.1 (\d+)", text)
    assert statuses == [b"200", b"200", b"200", b"500", b"405", b"200"]
    assert re.findall(rb"'n': \['(\d)'\]", text) == [b"1", b"2", b"3"]
    assert text.count(b"Connection: close") == 1


async def test_every_byte_may_come_alone(serving: Serving) -> None:
    async with serving() as server:
        reply = await server.exchange(*(bytes([byte]) for byte in LAST))
    assert reply.status == 200


@pytest.mark.parametrize(
    ("request_text", "stays"),
    [
        (b"GET /echo HTTP/1.1\r\nHost: here\r\n\r\n", True),
        (b"GET /echo HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n", False),
        (b"GET /echo HTTP/1.0\r\n\r\n", False),
        (b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
        (b"GET /echo HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", False),
    ],
)
async def test_the_connection_stays_when_both_sides_mean_to(
    serving: Serving, request_text: bytes, *, stays: bool
) -> None:
    async with serving() as server, server.client() as client:
        await client.send(request_text)
        reply = await client.answer()
        assert (reply.status, reply.headers["Connection"]) == (
            200,
            "keep-alive" if stays else "close",
        )
        if stays:
            await client.send(request_text)
            assert (await client.answer()).status == 200
        else:
            assert await client.rest() == b""


async def test_a_client_that_sends_no_more_still_gets_its_answer(
    serving: Serving, new_reply: type[Reply]
) -> None:
    async with serving() as server, server.client() as client:
        await client.send(GET)
        await client.stream.send_eof()
        assert new_reply.parse(await client.rest()).status == 200
