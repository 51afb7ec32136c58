# SPDX-License-Identifier: Apache-2.0
"""Every error the framework raises, ordered by what the caller can do.

```
FlexInferError
├── ConfigurationError        a setting is impossible: correct the call
│   └── NotWatchedError       no informer can answer this read: declare the kind
├── TerminalError             retrying cannot help until the object changes
├── NotOursError              an object of that name belongs to someone else
├── DecodeError               bytes or an object do not fit their model: correct the object
├── CacheNotSyncedError       read before the informer had its first list: wait
├── TransportError            no answer came: try again with backoff
│   ├── DeadlineError         the answer did not come in time
│   ├── CredentialError       no credential could be got: the message says what to mend
│   └── NotLeadingError       the Lease may be another's by now: nothing was sent
└── ApiError                  the API server answered, and said no
    ├── BadRequestError       400  correct the request
    ├── UnauthorizedError     401  the credential is not accepted (it was already reloaded once)
    ├── ForbiddenError        403  grant the right that the message names
    ├── NotFoundError         404  the object, or its kind, is not there
    ├── AlreadyExistsError    409  an object of that name is there
    ├── ConflictError         409  somebody else was first: read again, then retry
    ├── ExpiredError          410  the resourceVersion is too old: list again
    ├── InvalidError          422  correct the object; `causes` name the fields
    ├── ThrottledError        429  wait `retry_after`
    └── ServerError           5xx  try again with backoff
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AlreadyExistsError",
    "ApiError",
    "BadRequestError",
    "CacheNotSyncedError",
    "Cause",
    "ConfigurationError",
    "ConflictError",
    "CredentialError",
    "DeadlineError",
    "DecodeError",
    "ExpiredError",
    "FlexInferError",
    "ForbiddenError",
    "InvalidError",
    "NotFoundError",
    "NotLeadingError",
    "NotOursError",
    "NotWatchedError",
    "ServerError",
    "TerminalError",
    "ThrottledError",
    "TransportError",
    "UnauthorizedError",
]


class FlexInferError(Exception):
    """Be the root of every error this package raises."""


class ConfigurationError(FlexInferError, ValueError):
    """Refuse a setting that cannot work, in one sentence that names it and the cure."""


class NotWatchedError(ConfigurationError):
    """Refuse a read that no informer can answer: a fault of the program, not of an object."""


class TerminalError(FlexInferError):
    """Tell the controller that retrying cannot help until the object changes."""


class NotOursError(FlexInferError):
    """Refuse to touch an object that another owner controls."""


class DecodeError(FlexInferError):
    """Report bytes or an object that do not fit their model.

    `field` is the dotted path of the first misfit, empty when the JSON itself is broken.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class CacheNotSyncedError(FlexInferError):
    """Report a read of a kind whose informer has not finished its first list."""


class TransportError(FlexInferError):
    """Report that no answer came: connection refused, reset, cut, or TLS failure."""


class DeadlineError(TransportError):
    """Report that the answer did not come within the deadline of the call."""


class CredentialError(TransportError):
    """Report that a plugin or an identity provider gave no credential, so nothing was sent."""


class NotLeadingError(TransportError):
    """Report a write that was held back, because somebody else may lead by now."""


class Cause(NamedTuple):
    """Be one entry of `details.causes` in a Kubernetes Status."""

    reason: str
    field: str
    message: str


class ApiError(FlexInferError):
    """Carry an answer of the API server that is not a success.

    `status` is the HTTP code, `reason`, `causes` and `said` come from the Status object when there
    was one, `retry_after` is in seconds and None when the server named none. `said` is the
    server's own message, which names the object; the error's text names the request before it.
    """

    status = 0

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        reason: str = "",
        causes: Sequence[Cause] = (),
        said: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status
        self.reason = reason
        self.causes = tuple(causes)
        self.said = said
        self.retry_after = retry_after


class BadRequestError(ApiError):
    """Report a request that the server could not read (400)."""

    status = 400


class UnauthorizedError(ApiError):
    """Report a credential that is not accepted, after one reload (401)."""

    status = 401


class ForbiddenError(ApiError):
    """Report a missing right; the message names verb, resource and subject (403)."""

    status = 403


class NotFoundError(ApiError):
    """Report an object, or a kind, that is not there (404)."""

    status = 404


class AlreadyExistsError(ApiError):
    """Report a create whose name is taken (409, reason AlreadyExists)."""

    status = 409


class ConflictError(ApiError):
    """Report a lost race, a UID that does not match, or a field another manager owns (409).

    `is_repeat` tells that the apply was sent more than once: what came first may be what an
    earlier try did, of which the answer was lost.
    """

    status = 409
    is_repeat = False


class ExpiredError(ApiError):
    """Report a resourceVersion or continue token that is too old (410)."""

    status = 410


class InvalidError(ApiError):
    """Report an object that validation refused; `causes` name the fields (422)."""

    status = 422


class ThrottledError(ApiError):
    """Report that the server asks to slow down, after the transport's own retries (429)."""

    status = 429


class ServerError(ApiError):
    """Report a failure inside the server (5xx)."""

    status = 500
