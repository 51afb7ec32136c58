# SPDX-License-Identifier: Apache-2.0
"""What a failed list or watch means: in words for an operator, and for the next attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.errors import (
    ApiError,
    BadRequestError,
    DeadlineError,
    ExpiredError,
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
    from flexinfer.errors import FlexInferError
    from flexinfer.meta.envelope import Status

_GONE = 410
_TOO_MANY_REQUESTS = 429


class ShortWatchError(TransportError):
    """Report a watch that the server closed at once, having told nothing."""


def explain(verb: str, selection: Selection, error: FlexInferError) -> str:
    """Say in one line what keeps an informer from the server, and the cure if there is one."""
    resource = selection.resource
    match error:
        case ForbiddenError():
            where = f" in namespace {selection.namespace}" if selection.namespace else ""
            return (
                f"forbidden: cannot {verb} {resource}{where}: grant list, watch on {resource} "
                f"({error})"
            )
        case UnauthorizedError():
            return f"unauthorized: cannot {verb} {resource}: the credential is refused ({error})"
        case NotFoundError():
            return (
                f"kind missing: the API server does not serve {resource} in "
                f"{resource.api_version}: install its CustomResourceDefinition"
            )
        case DeadlineError():
            return f"timeout: no answer to {verb} {resource} in time ({error})"
        case ThrottledError():
            return f"throttled: the API server asks to slow down ({error})"
        case ApiError():
            return f"server error: cannot {verb} {resource} ({error})"
        case TransportError():
            return f"unreachable: cannot {verb} {resource} ({error})"
        case _:
            return f"unreadable: the answer to {verb} {resource} makes no sense ({error})"


def reason(error: FlexInferError) -> str:
    """Return a word for the kind of failure, for metrics: there are only these few."""
    match error:
        case ExpiredError():
            return "expired"
        case ShortWatchError():
            return "short"
        case DeadlineError():
            return "timeout"
        case ThrottledError():
            return "throttled"
        case ForbiddenError() | UnauthorizedError():
            return "forbidden"
        case NotFoundError():
            return "missing"
        case ApiError():
            return "server_error"
        case TransportError():
            return "connection"
        case _:
            return "unreadable"


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
