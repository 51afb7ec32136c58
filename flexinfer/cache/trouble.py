# SPDX-License-Identifier: Apache-2.0
"""What a failed list or watch means: in words for an operator, and for the next attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flexinfer.errors import (
    ApiError,
    BadRequestError,
    DeadlineError,
    DecodeError,
    ExpiredError,
    FlexInferError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    ServerError,
    ThrottledError,
    TransportError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from flexinfer.cache.selection import Selection
    from flexinfer.meta.wire import Status

_GONE = 410
_TOO_MANY_REQUESTS = 429


class ShortWatchError(TransportError):
    """Report a watch that the server closed at once, having told nothing."""


class _Failure(NamedTuple):
    """Be one kind of failure: its word in metrics and logs, and its sentence."""

    error: type[FlexInferError]
    word: str
    sentence: str


# The first that fits; words are few, because they are values of a metric's label.
_FAILURES = (
    _Failure(ExpiredError, "expired", "expired: the position of {what} is too old ({error})"),
    _Failure(
        ForbiddenError,
        "forbidden",
        "forbidden: cannot {verb} {what}: grant list, watch on {resource} ({error})",
    ),
    _Failure(
        UnauthorizedError,
        "unauthorized",
        "unauthorized: cannot {verb} {what}: the credential is refused ({error})",
    ),
    _Failure(
        NotFoundError,
        "missing",
        "kind missing: {resource} is not served as {version}: install its CustomResourceDefinition",
    ),
    _Failure(
        ThrottledError, "throttled", "throttled: the API server puts off {verb} {what} ({error})"
    ),
    _Failure(ApiError, "server_error", "server error: cannot {verb} {what} ({error})"),
    _Failure(ShortWatchError, "short", "short: cannot {verb} {what} ({error})"),
    _Failure(DeadlineError, "timeout", "timeout: no answer to {verb} {what} ({error})"),
    _Failure(TransportError, "connection", "unreachable: cannot {verb} {what} ({error})"),
    _Failure(DecodeError, "unreadable", "unreadable: the answer to {verb} {what} ({error})"),
)


def _failure(error: FlexInferError) -> _Failure:
    return next(failure for failure in _FAILURES if isinstance(error, failure.error))


def explain(verb: str, selection: Selection, error: FlexInferError) -> str:
    """Say in one line what keeps an informer from the server, and the cure if there is one."""
    resource = selection.resource
    return _failure(error).sentence.format(
        verb=verb, what=selection, resource=resource, version=resource.api_version, error=error
    )


def reason(error: FlexInferError) -> str:
    """Return the word for a kind of failure."""
    return _failure(error).word


def needs_a_cure(error: FlexInferError) -> bool:
    """Say whether somebody has to act: a right, the credential or the kind is missing."""
    return isinstance(error, ForbiddenError | UnauthorizedError | NotFoundError)


def voids_position(error: FlexInferError) -> bool:
    """Say whether the resourceVersion is of no use after this failure, so that a list is due.

    That is so when it is too old (410), unknown to this server (a version of its future, after
    a restore from a backup), not accepted at all, or when the kind itself went away.
    """
    if isinstance(error, ExpiredError | BadRequestError | InvalidError | NotFoundError):
        return True
    return isinstance(error, ApiError) and any(
        cause.reason == "ResourceVersionTooLarge" for cause in error.causes
    )


def error_of(status: Status | None) -> ApiError:
    """Return the ERROR event of a watch as the error it would have been as an answer."""
    if status is None:
        return ServerError("the watch reported an error without a word about it")
    text = status.message or status.reason or "an error without a message"
    seconds = float(status.details.retry_after_seconds) if status.details else 0.0
    if status.code == _GONE or status.reason in ("Expired", "Gone"):
        return ExpiredError(text, reason=status.reason)
    if status.code == _TOO_MANY_REQUESTS:
        return ThrottledError(text, reason=status.reason, retry_after=seconds or None)
    return ServerError(
        text, status=status.code or None, reason=status.reason, retry_after=seconds or None
    )
