# SPDX-License-Identifier: Apache-2.0
"""The scripted server does on the wire what its script says."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.streams.tls import TLSStream

from flexinfer.envtest.script import (
    Answer,
    Bytes,
    Close,
    Delay,
    Drip,
    Hang,
    Lines,
    Reset,
    Until,
    status_answer,
)
from flexinfer.envtest.scripted import ScriptedServer

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.envtest.certs import CertificateAuthority

GET = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"


async def connect(server: ScriptedServer) -> TLSStream:
    context = ssl.create_default_context(cadata=server.ca_pem)
    port = int(server.url.rpartition(":")[2])
    tcp = await anyio.connect_tcp("127.0.0.1", port)
    try:
        return await TLSStream.wrap(tcp, hostname="127.0.0.1", ssl_context=context)
    except BaseException:
        await anyio.aclose_forcefully(tcp)
        raise


async def read_until(stream: TLSStream, end: bytes) -> bytes:
    data = b""
    with anyio.fail_after(5):
        while not data.endswith(end):
            data += await stream.receive()
    return data


async def read_to_end(stream: TLSStream) -> bytes:
    data = b""
    with anyio.fail_after(5):
        try:
            while True:
                data += await stream.receive()
        except anyio.EndOfStream:
            return data


async def test_actions_are_taken_in_order_and_the_last_one_repeats(
    authority: CertificateAuthority,
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body="first."), Answer(body="later."))
        async with await connect(server) as stream:
            for expected in (b"first.", b"later.", b"later."):
                await stream.send(GET)
                assert await read_until(stream, b".") == (
                    b"HTTP/1.1 200 Scripted\r\nContent-Type: text/plain; charset=utf-8\r\n"
                    b"Content-Length: 6\r\n\r\n" + expected
                )


async def test_requests_are_recorded_with_query_headers_body_and_connection(
    authority: CertificateAuthority,
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("POST", "/x", Answer(body="."))
        async with await connect(server) as stream:
            await stream.send(
                b"POST /x?a=1&b=%2C HTTP/1.1\r\nX-Thing: yes\r\nContent-Length: 4\r\n\r\nbody"
            )
            await read_until(stream, b".")
        (received,) = await server.received(1, method="POST", path="/x")
        assert (received.query, received.body) == ({"a": "1", "b": ","}, b"body")
        assert received.headers["x-thing"] == "yes"
        assert received.connection == server.connections == 1


async def test_the_first_route_whose_query_fits_answers_and_may_be_replaced(
    authority: CertificateAuthority,
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body="watch."), query={"watch": "1"})
        server.script("GET", "/x", Answer(body="list."))
        async with await connect(server) as stream:
            await stream.send(GET)
            assert (await read_until(stream, b".")).endswith(b"list.")
            await stream.send(GET.replace(b"/x", b"/x?watch=1&limit=5"))
            assert (await read_until(stream, b".")).endswith(b"watch.")
            server.script("GET", "/x", Answer(body="new."))
            await stream.send(GET)
            assert (await read_until(stream, b".")).endswith(b"new.")


async def test_a_request_without_a_route_is_answered_501_and_kept(
    authority: CertificateAuthority,
) -> None:
    async with ScriptedServer.start(authority) as server:
        async with await connect(server) as stream:
            await stream.send(GET)
            assert (await read_until(stream, b"GET /x")).startswith(b"HTTP/1.1 501 ")
        assert [r.path for r in server.unscripted] == ["/x"]


async def test_steps_are_sent_as_chunks_and_wait_for_their_event(
    authority: CertificateAuthority,
) -> None:
    steps = (
        Lines(b"one", {"two": 2}),
        Until("go"),
        Drip(b"abc", piece=2),
        Delay(0.01),
        Bytes(b"|"),
    )
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body=steps))
        async with await connect(server) as stream:
            await stream.send(GET)
            head = await read_until(stream, b'{"two":2}\n\r\n')
            assert b"Transfer-Encoding: chunked" in head
            assert b"4\r\none\n\r\n" in head
            server.release("go")
            tail = await read_until(stream, b"0\r\n\r\n")
            assert tail == b"2\r\nab\r\n1\r\nc\r\n1\r\n|\r\n0\r\n\r\n"


async def test_half_a_line_then_close_ends_the_stream_without_a_last_chunk(
    authority: CertificateAuthority,
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body=[Bytes(b"half a")], then=Close()))
        async with await connect(server) as stream:
            await stream.send(GET)
            assert (await read_to_end(stream)).endswith(b"6\r\nhalf a\r\n")


async def test_a_given_content_length_wins_so_that_an_answer_can_be_cut(
    authority: CertificateAuthority,
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(200, {"Content-Length": "9"}, "cut", then=Close()))
        async with await connect(server) as stream:
            await stream.send(GET)
            answer = await read_to_end(stream)
            assert b"Content-Length: 9\r\n" in answer
            assert answer.endswith(b"\r\n\r\ncut")


async def test_close_answers_nothing(authority: CertificateAuthority) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Close())
        async with await connect(server) as stream:
            await stream.send(GET)
            assert await read_to_end(stream) == b""


async def test_reset_answers_nothing_but_rst(authority: CertificateAuthority) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Reset())
        stream = await connect(server)
        await stream.send(GET)
        with pytest.raises(anyio.BrokenResourceError) as caught, anyio.fail_after(5):
            await stream.receive()
        assert isinstance(caught.value.__cause__, ConnectionResetError)
        await anyio.aclose_forcefully(stream)


async def test_hang_answers_nothing_and_stays_open(authority: CertificateAuthority) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Hang())
        stream = await connect(server)
        await stream.send(GET)
        await server.received(1)
        with anyio.move_on_after(0.05) as scope:
            await stream.receive()
        assert scope.cancelled_caught
        await anyio.aclose_forcefully(stream)


@pytest.mark.parametrize("action", [Close(), Reset()])
async def test_connections_can_end_before_tls(
    authority: CertificateAuthority, action: Close | Reset
) -> None:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", Answer(body="."))
        server.on_connect(action)
        with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream, OSError)):
            await connect(server)
        async with await connect(server) as stream:
            await stream.send(GET)
            assert (await read_until(stream, b".")).startswith(b"HTTP/1.1 200")


async def test_what_the_test_raises_comes_out_as_it_is(authority: CertificateAuthority) -> None:
    with pytest.raises(LookupError):
        async with ScriptedServer.start(authority):
            raise LookupError


async def test_waiting_for_requests_that_do_not_come_times_out(
    authority: CertificateAuthority,
) -> None:
    async with ScriptedServer.start(authority) as server:
        with pytest.raises(TimeoutError):
            await server.received(1, within=0.01)


def test_a_status_answer_is_what_the_api_server_sends() -> None:
    cause = {"reason": "FieldValueInvalid", "field": "spec.x", "message": "no"}
    answer = status_answer(422, "Invalid", "x is invalid", causes=[cause])
    assert answer.status == 422
    assert isinstance(answer.body, dict)
    assert answer.body["details"] == {"causes": [cause]}


def test_keys_are_readable_by_their_owner_alone(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    assert tmp_path != authority.folder
    certificate, key = authority.issue(["127.0.0.1"], common_name="system:admin")
    assert key.stat().st_mode & 0o077 == 0
    assert certificate.name == "system-admin.crt"
