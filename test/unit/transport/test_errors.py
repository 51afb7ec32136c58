# SPDX-License-Identifier: Apache-2.0
"""The API server says no: which error each answer becomes, and what it tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer import errors
from flexinfer.client.retry import NEVER
from flexinfer.envtest.script import Answer, Bytes, Close, Until, status_answer

if TYPE_CHECKING:
    from test.unit.transport.conftest import Serving


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (400, "BadRequest", errors.BadRequestError),
        (401, "Unauthorized", errors.UnauthorizedError),
        (403, "Forbidden", errors.ForbiddenError),
        (404, "NotFound", errors.NotFoundError),
        (405, "MethodNotAllowed", errors.ApiError),
        (409, "AlreadyExists", errors.AlreadyExistsError),
        (409, "Conflict", errors.ConflictError),
        (410, "Expired", errors.ExpiredError),
        (422, "Invalid", errors.InvalidError),
        (429, "TooManyRequests", errors.ThrottledError),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
    ],
)
async def test_each_status_raises_its_error(
    serving: Serving, status: int, reason: str, error: type[errors.ApiError]
) -> None:
    cause = {"reason": "FieldValueRequired", "field": "spec.x", "message": "Required value"}
    async with serving(retry=NEVER) as (server, transport):
        server.script("GET", "/x", status_answer(status, reason, "the message", causes=[cause]))
        with pytest.raises(errors.ApiError) as caught:
            await transport.request("GET", "/x")
    assert type(caught.value) is error
    assert str(caught.value) == "GET /x: the message"
    assert (caught.value.status, caught.value.reason) == (status, reason)
    assert caught.value.causes == (errors.Cause("FieldValueRequired", "spec.x", "Required value"),)
    assert caught.value.said == "the message"
    assert str(caught.value) == "GET /x: the message"


async def test_an_html_page_of_a_proxy_is_not_repeated(serving: Serving) -> None:
    page = b"<html><body>secret inner address</body></html>"
    async with serving() as (server, transport):
        server.script("GET", "/x", Answer(502, {"Content-Type": "text/html"}, page))
        with pytest.raises(errors.ServerError) as caught:
            await transport.request("GET", "/x")
    assert str(caught.value) == ("GET /x: 502 Bad Gateway (no Status in the answer, but text/html)")
    assert (caught.value.status, caught.value.reason) == (502, "")


async def test_of_plain_text_only_the_first_line_is_told(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/x", Answer(404, body="404 page not found\nmore"))
        server.script("GET", "/y", Answer(500, body="y" * 100_000))
        with pytest.raises(errors.NotFoundError, match=r"404 Not Found \(404 page not found\)$"):
            await transport.request("GET", "/x")
        with pytest.raises(errors.ServerError) as caught:
            await transport.request("GET", "/y")
    assert len(str(caught.value)) < 300


async def test_a_refusal_without_end_is_not_read_to_its_end(serving: Serving) -> None:
    async with serving() as (server, transport):
        endless = (Bytes(b"x" * 300_000), Until("never"))
        server.script("GET", "/x", Answer(500, body=endless))
        with pytest.raises(errors.ServerError):
            await transport.request("GET", "/x", timeout=5)


async def test_a_refusal_that_is_cut_is_still_that_refusal(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/x", Answer(403, {"Content-Length": "99"}, "{", then=Close()))
        with pytest.raises(errors.ForbiddenError):
            await transport.request("GET", "/x")


async def test_a_redirect_is_not_followed(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/x", Answer(302, {"Location": "/elsewhere"}))
        with pytest.raises(errors.ApiError) as caught:
            await transport.request("GET", "/x")
        assert caught.value.status == 302
        assert len(server.requests) == 1


async def test_an_unknown_status_and_an_empty_body_still_make_a_sentence(serving: Serving) -> None:
    async with serving() as (server, transport):
        server.script("GET", "/x", Answer(599, {"Content-Type": ""}))
        server.script("GET", "/y", Answer(500, body=""))
        with pytest.raises(errors.ServerError, match=r"^GET /x: 599 .*no content type.$"):
            await transport.request("GET", "/x")
        with pytest.raises(errors.ServerError, match=r"^GET /y: 500 Internal Server Error$"):
            await transport.request("GET", "/y")
