# SPDX-License-Identifier: Apache-2.0
"""One HTTP exchange: a call goes out once, and whatever goes wrong becomes a typed error."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import quote, urlencode, urlsplit

from flexinfer import log
from flexinfer.client.failure import api_error
from flexinfer.client.pool import ConnectError
from flexinfer.errors import ConfigurationError, TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.client.proxy import Proxy
    from flexinfer.client.response import LostError, Response
    from flexinfer.errors import ApiError

JSON = "application/json"
APPLY = "application/apply-patch+yaml"

_IDEMPOTENT = frozenset({"GET", "OPTIONS", "PUT", "DELETE"})
_FAILURE_LIMIT = 256 * 1024

_log = log.get_logger(__name__)


class ConnectionLostError(TransportError):
    """Report a connection that ended after the request was sent, before any answer."""


class Content(NamedTuple):
    """Be the body of a request and its media type."""

    body: bytes
    type: str


class Call(NamedTuple):
    """Be one request as it is sent, maybe more than once; `path` is quoted already."""

    method: str
    path: str
    params: Mapping[str, str]
    accept: str = JSON
    content: Content | None = None

    def check(self) -> Self:
        """Return it; raise ConfigurationError if it is not one request for one path."""
        if not self.path.startswith("/"):
            raise ConfigurationError(f"path must start with a slash, not {self.path!r}")
        line = f"{self.method}{self.path}{self.accept}{self.content.type if self.content else ''}"
        if not (line.isascii() and line.isprintable()) or " " in self.path:
            raise ConfigurationError(f"path must be quoted, not {self.path!r}")
        return self

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def repeatable(self) -> bool:
        """Tell whether sending it twice leaves what sending it once does, if nobody else writes.

        The second answer may be another: 404 after a delete; 409 for what is bound to a version,
        or to there being no object, and was done by the first try.
        """
        apply = self.content is not None and self.content.type == APPLY
        return self.method in _IDEMPOTENT or apply


class Encoder:
    """Write calls as requests to one server, in HTTP/1.1.

    Asks for bodies as they are: compression costs both sides more CPU than the network of a
    cluster saves.
    """

    def __init__(self, server: str, *, user_agent: str, proxy: Proxy | None = None) -> None:
        url = urlsplit(server)
        lines = [f"Host: {url.netloc}", f"User-Agent: {user_agent}", "Accept-Encoding: identity"]
        self._prefix = url.path
        if proxy is not None and url.scheme == "http":
            # A proxy forwards what is not TLS, and is told where to.
            self._prefix = server
            lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
        self._fixed = "\r\n".join(lines)

    def encode(self, call: Call, authorization: str) -> bytes:
        """Return the request, with an Authorization unless that is empty."""
        query = _query(tuple(call.params.items())) if call.params else ""
        head = (
            f"{call.method} {self._prefix}{call.path}{query} HTTP/1.1\r\n"
            f"{self._fixed}\r\nAccept: {call.accept}\r\n"
        )
        if authorization:
            head += f"Authorization: {authorization}\r\n"
        content = call.content
        if content is None:
            length = "" if call.method in _WITHOUT_BODY else "Content-Length: 0\r\n"
            return f"{head}{length}\r\n".encode("latin-1")
        head += f"Content-Type: {content.type}\r\nContent-Length: {len(content.body)}\r\n\r\n"
        return head.encode("latin-1") + content.body


# Each controller sends the same few, again and again.
@lru_cache(maxsize=256)
def _query(params: tuple[tuple[str, str], ...]) -> str:
    return f"?{urlencode(params, quote_via=quote)}"


_WITHOUT_BODY = frozenset({"GET", "OPTIONS", "DELETE"})


def unanswered(call: Call, error: ConnectError | LostError) -> TransportError:
    """Return ConnectionLostError for a connection that ended, else that there was none."""
    if isinstance(error, ConnectError):
        return TransportError(f"{call}: {error}")
    return ConnectionLostError(f"{call}: connection lost before an answer: {error}")


async def read(call: Call, response: Response) -> bytes:
    """Return the whole body; raise TransportError when it is cut."""
    try:
        return await response.read()
    except OSError as error:
        raise TransportError(f"{call}: answer cut: {error}") from error
    finally:
        response.close()


async def failure(call: Call, response: Response) -> ApiError:
    """Return the error of an answer; a body longer than any Status is not read to its end."""
    body = bytearray()
    try:
        while len(body) < _FAILURE_LIMIT and (chunk := await response.read_some()):
            body += chunk
    except OSError:
        # The status is the answer; a body that was cut only takes the explanation away.
        _log.debug("the body of a refusal was cut", method=call.method, path=call.path)
    finally:
        response.close()
    return api_error(str(call), response.status, response.headers, bytes(body))
