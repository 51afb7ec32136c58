# SPDX-License-Identifier: Apache-2.0
"""Wait for something to come true, with a deadline and the last failure in sight."""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Protocol, TypeVar, overload

import anyio

from flexinfer.errors import ApiError, TransportError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Eventually", "EventuallySync", "eventually", "eventually_sync"]

T = TypeVar("T")

NOT_YET = (AssertionError, LookupError, ApiError, TransportError)
"""What a claim may raise while it does not hold; anything else is a mistake in the claim."""


class Eventually(Protocol):
    """Be the type of `eventually`, for what is handed it."""

    @overload
    def __call__(
        self, claim: Callable[[], Awaitable[T]], *, within: float = ..., every: float = ...
    ) -> Awaitable[T]: ...
    @overload
    def __call__(
        self, claim: Callable[[], T], *, within: float = ..., every: float = ...
    ) -> Awaitable[T]: ...


class EventuallySync(Protocol):
    """Be the type of `eventually_sync`, for what is handed it."""

    def __call__(self, claim: Callable[[], T], *, within: float = ..., every: float = ...) -> T:
        """Wait until *claim* holds."""


@overload
async def eventually(
    claim: Callable[[], Awaitable[T]], *, within: float = ..., every: float = ...
) -> T: ...
@overload
async def eventually(claim: Callable[[], T], *, within: float = ..., every: float = ...) -> T: ...
async def eventually(
    claim: Callable[[], object], *, within: float = 15.0, every: float = 0.05
) -> object:
    """Call *claim*, plain or async, until it neither raises nor returns False; return its value.

    *within* and *every* are seconds.

    Raises:
        AssertionError: It did not come true in time; the last failure is its cause.
    """
    deadline = time.monotonic() + within
    while True:
        failure: Exception
        try:
            value = claim()
            if inspect.isawaitable(value):
                with anyio.fail_after(max(0.0, deadline - time.monotonic())):
                    value = await value
        except (*NOT_YET, TimeoutError) as error:
            failure = error
        else:
            if value is not False:
                return value
            failure = AssertionError("the claim returned False")
        if time.monotonic() >= deadline:
            raise _too_late(within, failure) from failure
        await anyio.sleep(every)


def eventually_sync(claim: Callable[[], T], *, within: float = 15.0, every: float = 0.05) -> T:
    """Do the same where there is no event loop."""
    deadline = time.monotonic() + within
    while True:
        failure: Exception
        try:
            value = claim()
        except NOT_YET as error:
            failure = error
        else:
            if value is not False:
                return value
            failure = AssertionError("the claim returned False")
        if time.monotonic() >= deadline:
            raise _too_late(within, failure) from failure
        time.sleep(every)


def _too_late(within: float, failure: Exception) -> AssertionError:
    return AssertionError(
        f"not true within {within:g} s; at last: {type(failure).__name__}: {failure}"
    )
