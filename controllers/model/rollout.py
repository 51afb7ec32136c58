# SPDX-License-Identifier: Apache-2.0
"""What applying a Model's children came to, and when to look at the Model again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model.verdict import Problem
from flexinfer.errors import (
    ApiError,
    BadRequestError,
    ForbiddenError,
    InvalidError,
    NotOursError,
    ServerError,
    TerminalError,
)
from flexinfer.reconcile import Result

if TYPE_CHECKING:
    from datetime import datetime

    from controllers.model.cache_state import CacheState

# Seconds until a refused child is sent again: only another admission policy could let it in.
_REFUSED = 300.0
# Seconds until the name of a child that is not ours is tried again: what a deleted Model of the
# same name left behind goes soon, and its going is no event of ours.
_NAME_TAKEN = 10.0


class _Refusal(NamedTuple):
    """Say how an error reads in Ready, and when the child is sent again.

    Those that time alone may cure come back by the clock (*wait*, in seconds), the rest by the
    queue's backoff. What is *passing* does not make a Model fail that serves.
    """

    error: type[Exception]
    reason: Reason
    wait: float | None = None
    passing: bool = False


_REFUSALS = (
    _Refusal(NotOursError, Reason.NOT_OURS, _NAME_TAKEN),
    _Refusal(TerminalError, Reason.FIELD_IMMUTABLE),
    _Refusal(InvalidError, Reason.APPLY_FAILED, _REFUSED),
    _Refusal(BadRequestError, Reason.APPLY_FAILED, _REFUSED),
    _Refusal(ForbiddenError, Reason.APPLY_FAILED),
    # A webhook that does not answer, say.
    _Refusal(ServerError, Reason.APPLY_FAILED, passing=True),
)
REFUSALS = tuple(refusal.error for refusal in _REFUSALS)
"""The errors that a Rollout may hold; any other is nothing that a user could read in a status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Be what applying came to; `error`, one of REFUSALS, is what stopped it.

    `cache` is None when nothing was looked at; `notes` are what a user should know.
    """

    drift: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cache: CacheState | None = None
    error: Exception | None = None

    @property
    def problem(self) -> Problem | None:
        """Return the error as Ready tells it."""
        if self.error is None:
            return None
        refusal = _refusal_of(self.error)
        said = self.error.said if isinstance(self.error, ApiError) else ""
        return Problem(refusal.reason, said or str(self.error), is_passing=refusal.passing)

    def look_again(self, now: datetime, *moments: datetime | None) -> Result:
        """Say when to look again: at the next of *moments*, when something changes by itself.

        Raises the error when the queue's backoff is to decide.
        """
        times = [self.cache.retry_at if self.cache else None, *moments]
        waits = [(at - now).total_seconds() for at in times if at is not None and at > now]
        if self.error is None:
            return Result(requeue_after=min(waits, default=None))
        if _is_namespace_ending(self.error):
            return Result()  # the Model goes with it
        wait = _refusal_of(self.error).wait
        if wait is None:
            raise self.error
        return Result(requeue_after=min([wait, *waits]))


def _refusal_of(error: Exception) -> _Refusal:
    return next(refusal for refusal in _REFUSALS if isinstance(error, refusal.error))


def _is_namespace_ending(error: Exception) -> bool:
    return isinstance(error, ForbiddenError) and any(
        cause.reason == "NamespaceTerminating" for cause in error.causes
    )
