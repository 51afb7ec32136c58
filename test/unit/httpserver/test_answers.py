# SPDX-License-Identifier: Apache-2.0
"""What is answered: paths, queries, methods, handlers that raise."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pytest
import structlog

if TYPE_CHECKING:
    from test.unit.httpserver.conftest import Serving

GET = b"GET /echo HTTP/1.1\r\nHost: here\r\n\r\n"
LAST = b"GET /echo HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"


async def test_an_answer_says_what_it_is_and_how_long(serving: Serving) -> None:
    async with serving() as server:
        reply = await server.exchange(LAST)
    assert (reply.status, reply.body) == (200, b"/echo {}")
    date = parsedate_to_datetime(reply.headers.pop("Date")).timestamp()
    assert abs(date - time.time()) < 20
    assert reply.headers == {
        "X-A": "b",
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": "8",
        "Connection": "close",
    }


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/echo?a&b=1&b=%32&c=x+y", 200, "/echo {'a': [''], 'b': ['1', '2'], 'c': ['x y']}"),
        ("/%65cho", 200, "/echo {}"),
        ("/echo?", 200, "/echo {}"),
        ("/echo#there", 200, "/echo {}"),
        ("http://here:80/echo?a=b", 200, "/echo {'a': ['b']}"),
        ("/under/one", 200, "/under/one {}"),
        ("/under/", 200, "/under/ {}"),
        ("/under/%C3%A9%FF", 200, "/under/\u00e9\ufffd {}"),
        ("/under", 404, "404: Not Found"),
        ("/under/one/two", 404, "404: Not Found"),
        ("/echo/", 404, "404: Not Found"),
        ("//echo", 404, "404: Not Found"),
        ("/", 404, "404: Not Found"),
        ("http://here", 404, "404: Not Found"),
    ],
)
async def test_paths_and_queries_are_decoded(
    serving: Serving, target: str, status: int, body: str
) -> None:
    async with serving() as server:
        reply = await server.exchange(LAST.replace(b"/echo", target.encode(), 1))
    assert (reply.status, reply.body.decode()) == (status, body)


async def test_head_is_get_without_the_body(serving: Serving) -> None:
    async with serving() as server:
        got = await server.exchange(LAST)
        head = await server.exchange(LAST.replace(b"GET", b"HEAD"))
    assert (head.status, head.body) == (200, b"")
    assert head.headers | {"Date": ""} == got.headers | {"Date": ""}


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"OPTIONS"])
async def test_another_method_is_told_which_there_are(serving: Serving, method: bytes) -> None:
    async with serving() as server:
        known = await server.exchange(LAST.replace(b"GET", method))
        unknown = await server.exchange(LAST.replace(b"GET /echo", method + b" /other"))
    assert (known.status, known.headers["Allow"]) == (405, "GET, HEAD")
    assert unknown.status == 404


async def test_a_handler_that_raises_is_a_500_and_one_line(serving: Serving) -> None:
    async with serving() as server, server.client() as client:
        with structlog.testing.capture_logs() as lines:
            await client.send(GET.replace(b"echo", b"broken"))
            reply = await client.answer()
        assert (reply.status, reply.body) == (500, b"500: Internal Server Error")
        (line,) = lines
        assert (line["event"], line["path"]) == ("cannot answer a request", "/broken")
        assert isinstance(line["exc_info"], ValueError)
        await client.send(GET)
        assert (await client.answer()).status == 200
