# SPDX-License-Identifier: Apache-2.0
"""What the small servers of a process are asked and answer: a path, a function, a text.

Only GET and HEAD are answered. Nothing here knows a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote

from flexinfer import log

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Answer", "Handler", "Request", "Route", "Routes"]

TEXT = "text/plain; charset=utf-8"

_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """Be what is asked: the path and the query decoded, the headers' names in small letters.

    A key of the query without a value has the empty one.
    """

    path: str
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, target: str, headers: Mapping[str, str]) -> Request:
        """Read the target of a request line: a path, or a whole URL as a proxy sends it."""
        path, _, query = target.partition("#")[0].partition("?")
        if not path.startswith("/"):
            path = "/" + path.partition("://")[2].partition("/")[2]
        return cls(unquote(path), parse_qs(query, keep_blank_values=True), headers)

    @property
    def name(self) -> str:
        """Return the last segment of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Answer:
    """Be what is answered; `headers` are those besides the ones of every answer."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def bare(cls, status: HTTPStatus, **headers: str) -> Answer:
        """Return the answer that says its status, and no more."""
        return cls(status, f"{status}: {status.phrase}".encode(), headers=headers)


Handler = Callable[[Request], Answer]
"""Answer a request; must not wait."""


@dataclass(frozen=True, slots=True)
class Route:
    """Say who answers for a path; one that ends in a slash is each name right under it too."""

    path: str
    handler: Handler


class Routes:
    """Find who answers, and answer for whoever is missing or fails."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._handlers = {route.path: route.handler for route in routes}

    def answer(self, method: str, request: Request) -> Answer:
        """Return what the handler of the path answers.

        404 if there is none, whatever the method; 405 for a method other than GET and HEAD; 500
        when the handler raises, and that is logged.
        """
        parent = request.path.removesuffix(request.name)
        handler = self._handlers.get(request.path) or self._handlers.get(parent)
        if handler is None:
            return Answer.bare(HTTPStatus.NOT_FOUND)
        if method not in {"GET", "HEAD"}:
            return Answer.bare(HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD")
        try:
            return handler(request)
        except Exception as error:  # noqa: BLE001 - a bug of one handler is no end of the server
            _log.error("cannot answer a request", path=request.path, exc_info=error)
            return Answer.bare(HTTPStatus.INTERNAL_SERVER_ERROR)
