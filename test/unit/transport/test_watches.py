# SPDX-License-Identifier: Apache-2.0
"""Watches: lines, cuts, silence, and connections of their own."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import anyio
import pytest

from flexinfer import errors
from flexinfer.client.exchange import APPLY
from flexinfer.client.lines import OversizedLine
from flexinfer.envtest.script import (
    Answer,
    Bytes,
    Close,
    Drip,
    Hang,
    Lines,
    Reset,
    Until,
    status_answer,
)

if TYPE_CHECKING:
    from test.unit.transport.conftest import Collect, Serving, Waits

OK = Answer(body={"ok": True})
BODY = b'{"ok":true}'


async def test_lines_come_complete_whatever_the_pieces(serving: Serving, collect: Collect) -> None:
    steps = (
        Lines({"a": 1}, b"b"),
        Bytes(b"c"),
        Bytes(b"c"),
        Drip(b"c\n\nd\ne", piece=2),
        Bytes(b"\n"),
    )
    async with serving() as (server, transport):
        server.script("GET", "/w", Answer(body=steps), query={"watch": "1"})
        assert await collect(transport, params={"watch": "1"}) == [
            b'{"a":1}',
            b"b",
            b"ccc",
            b"d",
            b"e",
        ]


async def test_a_line_comes_before_the_stream_goes_on(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Until("more"), Lines(b"b")]))
        async with transport.stream("/w", idle_timeout=5) as lines:
            assert await anext(lines) == b"a"
            server.release("more")
            assert await anext(lines) == b"b"
            with pytest.raises(StopAsyncIteration):
                await anext(lines)


async def test_what_arrived_together_can_be_had_together(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a", b"b", b"c")]))
        async with transport.stream("/w", idle_timeout=5) as lines:
            assert await lines.batch() == [b"a", b"b", b"c"]
            assert await lines.batch() == ()


async def test_half_a_line_at_an_orderly_end_is_discarded_and_told(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Bytes(b'{"half')]))
        async with transport.stream("/w", idle_timeout=5) as lines:
            assert await anext(lines) == b"a"
            with pytest.raises(errors.TransportError, match="inside a line, 6 bytes"):
                await anext(lines)


@pytest.mark.parametrize("fault", [Close(), Reset()])
async def test_a_stream_that_is_cut_is_a_transport_error(
    serving: Serving, fault: Close | Reset
) -> None:
    steps = (Lines(b"a"), Until("read"), Bytes(b"half"))
    async with serving() as (server, transport):
        server.script("GET", "/w", Answer(body=steps, then=fault))
        async with transport.stream("/w", idle_timeout=5) as lines:
            assert await anext(lines) == b"a"
            server.release("read")
            with pytest.raises(errors.TransportError, match=r"cut, [04] bytes"):
                await anext(lines)


async def test_an_instant_close_is_an_empty_stream(serving: Serving, collect: Collect) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/w", Answer(body=[]))
        assert await collect(transport) == []


async def test_a_watch_that_is_refused_raises_its_error(serving: Serving, collect: Collect) -> None:
    async with serving() as (server, transport):
        server.script(
            "GET",
            "/w",
            status_answer(410, "Expired", "too old resource version"),
            Answer(502, {"Content-Type": "text/html"}, b"<html>"),
        )
        with pytest.raises(errors.ExpiredError):
            await collect(transport)
        with pytest.raises(errors.ServerError):
            await collect(transport)


async def test_opening_waits_as_a_429_asks(
    serving: Serving, waits: Waits, collect: Collect
) -> None:
    async with serving(sleep=waits.sleep) as (server, transport):
        server.script("GET", "/w", Answer(429, {"Retry-After": "3"}), Answer(body=[Lines(b"a")]))
        assert await collect(transport) == [b"a"]
    assert len(waits) == 1
    assert waits[0] >= 3


async def test_a_silent_stream_meets_its_idle_timeout(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Until("never")]))
        async with transport.stream("/w", idle_timeout=30) as lines:
            assert await anext(lines) == b"a"
            lines.idle_timeout = 0.1
            with pytest.raises(errors.DeadlineError, match=r"GET /w: silent for 0\.1 s"):
                await anext(lines)


async def test_a_stream_that_does_not_open_meets_its_deadline(
    serving: Serving, collect: Collect
) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/w", Hang())
        with pytest.raises(errors.DeadlineError, match=r"not open within 0\.1 s"):
            await collect(transport, open_timeout=0.1)


async def test_a_line_above_the_cap_is_skipped_and_reported(
    serving: Serving, collect: Collect
) -> None:
    big = b'{"metadata":{"name":"big"}}' + b" " * 3_000_000
    steps = (Lines(b"a"), Bytes(big[:1000]), Bytes(big[1000:]), Lines(b"", b"b"))
    async with serving() as (server, transport):
        server.script("GET", "/w", Answer(body=steps))
        got = await collect(transport, max_line=1_000_000)
    assert got == [b"a", OversizedLine(len(big), big[: 64 * 1024]), b"b"]


async def test_a_line_of_five_megabytes_is_delivered(serving: Serving, collect: Collect) -> None:
    big = b"x" * 5_000_000
    async with serving() as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(big)]))
        assert await collect(transport) == [big]


async def test_watches_leave_the_requests_their_connections(serving: Serving) -> None:
    async with serving(max_connections=1) as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Until("never")]))
        server.script("PATCH", "/x", OK)

        async def watch() -> None:
            async with transport.stream("/w", idle_timeout=60) as lines:
                async for _line in lines:
                    pass

        async with anyio.create_task_group() as watches:
            for _ in range(120):
                watches.start_soon(watch)
            await server.received(120, path="/w", within=30)
            body = await transport.request("PATCH", "/x", body=b"{}", content_type=APPLY)
            assert body == BODY
            watches.cancel_scope.cancel()


async def test_connections_probe_a_silent_peer(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/w", Answer(body=[Lines(b"a"), Until("never")]))
        async with transport.stream("/w", idle_timeout=5) as lines:
            await anext(lines)
            assert transport._watches is not None
            (connection,) = transport._watches._open
            sock = connection.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
