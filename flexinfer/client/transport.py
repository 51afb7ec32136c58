# SPDX-License-Identifier: Apache-2.0
"""Bytes to and from one API server: a deadline on every call, one typed error per failure.

What happens inside one call, all of it within its deadline:

| the server | the transport |
|---|---|
| answers 429, or 503 with Retry-After | waits as long as asked, with jitter, and tries again |
| answers 401 | reloads the credential and tries once more |
| loses the connection before it answers | tries at once, if the call can be repeated |
| anything else that is no success | raises its error |

A call can be repeated when its method is idempotent or when it is a server-side apply; a POST or
another PATCH never is. Nor is a watch: whoever watches comes back by himself. Watches have a pool
of their own, so that any number of them leaves the requests their connections. Neither bodies nor
tokens are logged or put into errors. The way leads through a proxy when the credentials or the
environment name one (see `proxy`).
"""

from __future__ import annotations

import math
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Protocol, Self, TypeVar
from urllib.parse import urlsplit

import anyio

from flexinfer import hotloop, log
from flexinfer.client import exchange
from flexinfer.client.deadline import Deadline, OverdueError
from flexinfer.client.exchange import JSON, Call, ConnectionLostError, Content, Encoder
from flexinfer.client.lines import MAX_LINE, LineSplitter, LineStream
from flexinfer.client.pool import ConnectError, Pool
from flexinfer.client.proxy import proxy_for
from flexinfer.client.response import LostError
from flexinfer.client.retry import RetryPolicy
from flexinfer.client.slots import Slots
from flexinfer.errors import (
    ApiError,
    ConfigurationError,
    DeadlineError,
    TransportError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from anyio.abc import TaskGroup

    from flexinfer.client.auth import Authorization, Credentials
    from flexinfer.client.response import Response

__all__ = ["TIMEOUT", "RequestObserver", "Transport", "default_user_agent"]

T = TypeVar("T")

TIMEOUT = 30.0

# What client-go counts a request without an answer as.
_NO_ANSWER = "<error>"

_log = log.get_logger(__name__)


class RequestObserver(Protocol):
    """Be told of every try that was sent, for `rest_client_requests_total` and its kin."""

    def __call__(self, method: str, code: str, seconds: float) -> None:
        """Take the method, the HTTP code or `<error>`, and the seconds until the headers came."""


class Transport:
    """Speak to one API server; use as an async context manager, in one event loop.

    While it is open it runs `keep` of its credentials, in a task of its own. *observe* is called
    once per try, *observe_wait* once per try of a request with its method and the seconds that it
    waited for a connection. *max_connections* bounds the requests at one time: further ones wait
    for a connection within their deadline. *sleep* is how the transport waits between tries.
    Raises ConfigurationError for a proxy that cannot be used.
    """

    def __init__(  # noqa: PLR0913 - one place, the rest optional and by keyword
        self,
        credentials: Credentials,
        *,
        user_agent: str = "",
        observe: RequestObserver | None = None,
        observe_wait: Callable[[str, float], None] | None = None,
        retry: RetryPolicy | None = None,
        max_connections: int = 100,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
    ) -> None:
        if max_connections < 1:
            raise ConfigurationError("max_connections must be at least 1")
        if not (user_agent.isascii() and user_agent.isprintable()):
            raise ConfigurationError("user_agent must be printable ASCII: it becomes a header")
        self._credentials = credentials
        self._proxy = proxy_for(credentials.server, configured=credentials.proxy_url)
        self._encoder = Encoder(
            credentials.server, user_agent=user_agent or default_user_agent(), proxy=self._proxy
        )
        self._observe = observe
        self._observe_wait = observe_wait
        self._retry = retry or RetryPolicy()
        self._slots = Slots(max_connections)
        self._sleep = sleep
        self._requests: Pool | None = None
        self._watches: Pool | None = None
        self._keeper: TaskGroup | None = None

    @property
    def host(self) -> str:
        """Return host and port of the API server, as metrics name it."""
        return urlsplit(self._credentials.server).netloc

    async def __aenter__(self) -> Self:
        """Open both pools."""
        if self._proxy is not None:
            _log.info(
                "reaching the API server by a proxy", server=self.host, proxy=str(self._proxy)
            )
        self._requests = Pool(self._credentials.server, proxy=self._proxy)
        # A watch occupies its connection for minutes; the informers bound how many there are.
        self._watches = Pool(self._credentials.server, proxy=self._proxy)
        self._keeper = await anyio.create_task_group().__aenter__()
        self._keeper.start_soon(self._credentials.keep)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close both pools; calls that are under way fail with TransportError."""
        pools, keeper = (self._requests, self._watches), self._keeper
        self._requests = self._watches = self._keeper = None
        try:
            with anyio.CancelScope(shield=True):
                for pool in pools:
                    if pool is not None:
                        await pool.close()
        finally:
            if keeper is not None:
                keeper.cancel_scope.cancel()
                # What ended the block goes on as it is, not inside an exception group.
                await keeper.__aexit__(None, None, None)

    async def request(  # noqa: PLR0913 - two places, the rest optional and by keyword
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float = TIMEOUT,  # noqa: ASYNC109 - it spans the tries and names the error
        retry: RetryPolicy | None = None,
        before_send: Callable[[], None] | None = None,
    ) -> bytes:
        """Return the body of a successful answer.

        *timeout* is in seconds and covers everything: waiting for a connection, every try, the
        waits between them, the body. *path* is sent as it is, so it must be quoted already;
        *params* are quoted here. *before_send* is called before every try, once nothing else is
        waited for, and raises when it must not be sent.

        Raises the ApiError of the answer, TransportError when none came or it was cut,
        DeadlineError when it did not come in time.
        """
        _check_seconds("timeout", timeout)
        content = None if body is None else Content(body, content_type)
        call = Call(method, path, params or {}, accept, content).check()
        attempt = partial(self._fetch, before_send=before_send)
        try:
            with Deadline(timeout) as deadline:
                answer = await self._persist(call, retry or self._retry, attempt, deadline)
        except OverdueError as error:
            raise DeadlineError(f"{call}: no answer within {timeout:g} s") from error
        if method != "GET":
            hotloop.note_write()
        return answer

    @asynccontextmanager
    async def stream(  # noqa: PLR0913 - one place, the rest optional and by keyword
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
        idle_timeout: float,
        open_timeout: float = TIMEOUT,
        max_line: int = MAX_LINE,
        retry: RetryPolicy | None = None,
    ) -> AsyncIterator[LineStream]:
        """Open a GET whose body is read line by line, on the pool of watches.

        Gives an iterator of lines without their ends; a line above *max_line* bytes comes as an
        `OversizedLine`. *open_timeout* bounds the way to the headers as `timeout` bounds a
        request, *idle_timeout* the silence after that; both are in seconds. Opening raises as
        `request` does, reading as `LineStream` says.
        """
        _check_seconds("open_timeout", open_timeout)
        _check_seconds("idle_timeout", idle_timeout)
        splitter = LineSplitter(max_line)
        call = Call("GET", path, params or {}, accept).check()
        response = await self._open(call, retry, open_timeout)
        try:
            yield LineStream(response, str(call), idle_timeout=idle_timeout, splitter=splitter)
        finally:
            response.close()

    async def _open(self, call: Call, retry: RetryPolicy | None, seconds: float) -> Response:
        policy = replace(retry or self._retry, resets=0)
        try:
            with Deadline(seconds) as deadline:
                return await self._persist(call, policy, self._begin, deadline)
        except OverdueError as error:
            raise DeadlineError(f"{call}: not open within {seconds:g} s") from error

    async def _persist(
        self,
        call: Call,
        policy: RetryPolicy,
        attempt: Callable[[Call, Authorization], Awaitable[T]],
        deadline: Deadline,
    ) -> T:
        """Return what the first successful attempt returns."""
        number, resets, reloaded = 1, 0, False
        while True:
            authorization = await self._credentials.authorization()
            try:
                return await attempt(call, authorization)
            except UnauthorizedError:
                if reloaded:
                    raise
                reloaded = True
                _log.info("credential refused, reloading it", server=self.host)
                await self._credentials.invalidate(authorization)
            except ConnectionLostError:
                if not call.repeatable or resets >= policy.resets:
                    raise
                resets += 1
            except ApiError as error:
                seconds = policy.wait(error, attempt=number)
                if seconds is None or seconds >= _seconds_left(deadline):
                    raise
                await self._wait(call, error, seconds)
                number += 1

    async def _wait(self, call: Call, error: ApiError, seconds: float) -> None:
        _log.info(
            "the API server asks to slow down",
            method=call.method,
            path=call.path,
            status=error.status,
            wait_seconds=round(seconds, 3),
        )
        await self._sleep(seconds)

    async def _fetch(
        self,
        call: Call,
        authorization: Authorization,
        *,
        before_send: Callable[[], None] | None,
    ) -> bytes:
        waited = 0.0
        if not self._slots.take():
            started = time.monotonic()
            await self._slots.wait()
            waited = time.monotonic() - started
        try:
            if self._observe_wait is not None:
                self._observe_wait(call.method, waited)
            if before_send is not None:
                before_send()
            response = await self._try(call, authorization, self._requests)
            return await exchange.read(call, response)
        finally:
            self._slots.give_back()

    async def _begin(self, call: Call, authorization: Authorization) -> Response:
        return await self._try(call, authorization, self._watches)

    async def _try(self, call: Call, authorization: Authorization, pool: Pool | None) -> Response:
        """Return a successful answer, its body not read yet."""
        if pool is None:
            raise TransportError(f"{call}: the transport is closed")
        started, code = time.monotonic(), _NO_ANSWER
        try:
            request = self._encoder.encode(call, authorization.header)
            response = await pool.send(
                request,
                context=self._credentials.ssl_context(),
                server_name=self._credentials.server_name,
            )
            code = str(response.status)
        except (ConnectError, LostError) as error:
            raise exchange.unanswered(call, error) from error
        finally:
            if self._observe is not None:
                self._observe(call.method, code, time.monotonic() - started)
        if response.is_success:
            return response
        raise await exchange.failure(call, response)


def default_user_agent() -> str:
    """Return `flexinfer/<version>`."""
    try:
        return f"flexinfer/{metadata.version('flexinfer')}"
    except metadata.PackageNotFoundError:
        return "flexinfer/unknown"


def _seconds_left(deadline: Deadline) -> float:
    """Return until when there is time, by the call's own deadline and those around it."""
    outside = anyio.current_effective_deadline() - anyio.current_time()
    return min(deadline.left(), outside)


def _check_seconds(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigurationError(f"{name} must be a number of seconds above 0, not {value!r}")
