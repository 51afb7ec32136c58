# SPDX-License-Identifier: Apache-2.0
"""From an HTTP answer that is no success to the typed error a caller acts on."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from flexinfer.client.retry import parse_retry_after
from flexinfer.errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    Cause,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    ServerError,
    ThrottledError,
    UnauthorizedError,
)
from flexinfer.meta.wire import decode_status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.meta.wire import Status

_TYPES: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
    422: InvalidError,
    429: ThrottledError,
}
_SERVER_ERRORS = 500
_TEXT_LIMIT = 200


def api_error(request: str, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the error for an answer to *request*, which is named as `GET /version`.

    A body that is no Status gives at most its first line, and nothing when it is not plain text:
    such answers come from something between us and the API server. `reason` is empty then.
    """
    parsed = decode_status(body)
    answer = parsed if parsed is not None and (parsed.reason or parsed.message) else None
    message = answer.message if answer and answer.message else _summary(status, headers, body)
    return _type(status, answer)(
        f"{request}: {message}",
        status=status,
        reason=answer.reason if answer else "",
        causes=_causes(answer),
        said=answer.message if answer else "",
        retry_after=_retry_after(headers, answer),
    )


def _type(status: int, answer: Status | None) -> type[ApiError]:
    if status == HTTPStatus.CONFLICT and answer and answer.reason == "AlreadyExists":
        return AlreadyExistsError
    return _TYPES.get(status, ServerError if status >= _SERVER_ERRORS else ApiError)


def _causes(answer: Status | None) -> list[Cause]:
    details = answer.details if answer else None
    return [Cause(c.reason, c.field, c.message) for c in details.causes] if details else []


def _retry_after(headers: Mapping[str, str], answer: Status | None) -> float | None:
    seconds = parse_retry_after(headers)
    if seconds is None and answer and answer.details and answer.details.retry_after_seconds > 0:
        return float(answer.details.retry_after_seconds)
    return seconds


def phrase(status: int) -> str:
    """Return a status with its phrase, when it has one."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _summary(status: int, headers: Mapping[str, str], body: bytes) -> str:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "text/plain":
        return f"{phrase(status)} (no Status in the answer, but {media_type or 'no content type'})"
    first_line = body.strip().partition(b"\n")[0].decode("utf-8", "replace").strip()
    said = f" ({first_line[:_TEXT_LIMIT]})" if first_line else ""
    return f"{phrase(status)}{said}"
