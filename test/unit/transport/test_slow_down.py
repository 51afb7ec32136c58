# SPDX-License-Identifier: Apache-2.0
"""Asked to slow down: how long a transport waits, and how often it tries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from flexinfer import errors
from flexinfer.client.retry import RetryPolicy
from flexinfer.envtest.script import Answer

if TYPE_CHECKING:
    from test.unit.transport.conftest import Serving, Waits

OK = Answer(body={"ok": True})
BODY = b'{"ok":true}'


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_in_seconds_is_waited_out(
    serving: Serving, waits: Waits, method: str, status: int
) -> None:
    async with serving(sleep=waits.sleep) as (server, transport):
        server.script(method, "/x", Answer(status, {"Retry-After": "3"}, "slow down"), OK)
        assert await transport.request(method, "/x") == BODY
    assert len(waits) == 1
    assert 3 <= waits[0] <= 3.75


async def test_retry_after_as_a_date_is_counted_by_the_clock_of_the_server(
    serving: Serving, waits: Waits
) -> None:
    headers = {
        "Date": "Fri, 01 Jan 2038 00:00:00 GMT",
        "Retry-After": "Fri, 01 Jan 2038 00:00:04 GMT",
    }
    async with serving(sleep=waits.sleep) as (server, transport):
        server.script("GET", "/x", Answer(429, headers), OK)
        assert await transport.request("GET", "/x") == BODY
    assert 4 <= waits[0] <= 5


async def test_retry_after_in_the_status_counts_when_there_is_no_header(
    serving: Serving, waits: Waits
) -> None:
    status = {"kind": "Status", "reason": "TooManyRequests", "details": {"retryAfterSeconds": 2}}
    async with serving(sleep=waits.sleep) as (server, transport):
        server.script("GET", "/x", Answer(429, {}, status), OK)
        assert await transport.request("GET", "/x") == BODY
    assert 2 <= waits[0] <= 2.5


@pytest.mark.parametrize("header", [{}, {"Retry-After": "0"}, {"Retry-After": "soon"}])
async def test_a_429_that_names_no_time_gets_our_own_backoff(
    serving: Serving, waits: Waits, header: dict[str, str]
) -> None:
    async with serving(sleep=waits.sleep) as (server, transport):
        server.script("POST", "/x", *[Answer(429, header)] * 4, OK)
        assert await transport.request("POST", "/x") == BODY
    assert len(waits) == 4
    for wait, ceiling in zip(waits, (0.5, 1, 2, 4), strict=True):
        assert ceiling / 2 <= wait <= ceiling


async def test_a_503_that_names_no_time_is_not_tried_again(serving: Serving, waits: Waits) -> None:
    async with serving(sleep=waits.sleep) as (server, transport):
        server.script("GET", "/x", Answer(503))
        with pytest.raises(errors.ServerError):
            await transport.request("GET", "/x")
    assert waits == []


async def test_tries_are_bounded(serving: Serving, waits: Waits) -> None:
    policy = RetryPolicy(attempts=3)
    async with serving(sleep=waits.sleep, retry=policy) as (server, transport):
        server.script("GET", "/x", Answer(429, {"Retry-After": "1"}))
        with pytest.raises(errors.ThrottledError) as caught:
            await transport.request("GET", "/x")
        assert len(server.requests) == 3
    assert caught.value.retry_after == 1


async def test_a_wait_beyond_the_deadline_is_left_to_the_caller(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/x", Answer(429, {"Retry-After": "31"}))
        with pytest.raises(errors.ThrottledError) as caught:
            await transport.request("GET", "/x")
        assert len(server.requests) == 1
    assert caught.value.retry_after == 31


async def test_a_real_wait_is_not_shorter_than_asked(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/x", Answer(429, {"Retry-After": "1"}), OK)
        started = anyio.current_time()
        await transport.request("GET", "/x")
        assert anyio.current_time() - started >= 1
