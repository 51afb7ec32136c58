# SPDX-License-Identifier: Apache-2.0
"""One HTTP exchange: a call goes out once, and whatever aiohttp raises becomes a typed error."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from flexinfer import log
from flexinfer.client.failure import api_error
from flexinfer.errors import ConfigurationError, TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.client.auth import Credentials
    from flexinfer.client.proxy import Proxy
    from flexinfer.errors import ApiError

JSON = "application/json"
APPLY = "application/apply-patch+yaml"

_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_FAILURE_LIMIT = 256 * 1024

_log = log.get_logger(__name__)


class ConnectionLostError(TransportError):
    """Report a connection that ended after the request was sent, before any answer."""


class Content(NamedTuple):
    """Be the body of a request and its media type."""

    body: bytes
    type: str


@dataclass(frozen=True, slots=True)
class Call:
    """Be one request as it is sent, maybe more than once; `path` is quoted already."""

    method: str
    path: str
    params: Mapping[str, str]
    accept: str = JSON
    content: Content | None = None

    def __post_init__(self) -> None:
        """Refuse a path that would change the host."""
        if not self.path.startswith("/"):
            raise ConfigurationError(f"path must start with a slash, not {self.path!r}")

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def repeatable(self) -> bool:
        """Tell whether sending it twice does what sending it once does."""
        apply = self.content is not None and self.content.type == APPLY
        return self.method in _IDEMPOTENT or apply

    def url(self, server: str) -> URL:
        """Return where to send it, encoded here and by nobody after."""
        query = f"?{urlencode(self.params, quote_via=quote)}" if self.params else ""
        return URL(f"{server}{self.path}{query}", encoded=True)

    def headers(self, authorization: str) -> dict[str, str]:
        """Return its headers, with an Authorization unless that is empty."""
        headers = {"Accept": self.accept}
        if self.content is not None:
            headers["Content-Type"] = self.content.type
        if authorization:
            headers["Authorization"] = authorization
        return headers


async def send(
    call: Call,
    pool: aiohttp.ClientSession,
    credentials: Credentials,
    authorization: str,
    proxy: Proxy | None = None,
) -> aiohttp.ClientResponse:
    """Send a call and return the answer's status and headers, whatever they are.

    Raises ConnectionLostError when there was a connection and it ended, else TransportError.
    """
    try:
        return await pool.request(
            call.method,
            call.url(credentials.server),
            data=call.content.body if call.content else None,
            headers=call.headers(authorization),
            allow_redirects=False,
            ssl=credentials.ssl_context(),
            server_hostname=credentials.server_name,
            proxy=proxy.url if proxy else None,
            proxy_headers=proxy.headers if proxy else None,
        )
    except aiohttp.ClientHttpProxyError as error:
        msg = f"{call}: the proxy {proxy} does not let us through: {error.status} {error.message}"
        raise TransportError(msg) from error
    except aiohttp.ClientProxyConnectionError as error:
        raise TransportError(
            f"{call}: cannot connect to the proxy {proxy}: {cause(error)}"
        ) from error
    except aiohttp.ClientConnectorError as error:
        msg = f"{call}: cannot connect to {credentials.server}: {cause(error)}"
        raise TransportError(msg) from error
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        msg = f"{call}: connection lost before an answer: {cause(error)}"
        raise ConnectionLostError(msg) from error
    except (aiohttp.ClientError, OSError) as error:
        raise TransportError(f"{call}: {cause(error)}") from error


async def read(call: Call, response: aiohttp.ClientResponse) -> bytes:
    """Return the whole body; raise TransportError when it is cut."""
    try:
        async with response:
            return await response.read()
    except (aiohttp.ClientError, OSError) as error:
        raise TransportError(f"{call}: answer cut: {cause(error)}") from error


def is_success(response: aiohttp.ClientResponse) -> bool:
    """Tell whether the server did what it was asked."""
    return HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES


async def failure(call: Call, response: aiohttp.ClientResponse) -> ApiError:
    """Return the error of an answer; a body longer than any Status is not read to its end."""
    body = bytearray()
    try:
        async with response:
            while len(body) < _FAILURE_LIMIT and (chunk := await response.content.readany()):
                body += chunk
            if len(body) >= _FAILURE_LIMIT:
                response.close()
    except (aiohttp.ClientError, OSError):
        # The status is the answer; a body that was cut only takes the explanation away.
        _log.debug("the body of a refusal was cut", method=call.method, path=call.path)
    return api_error(str(call), response.status, response.headers, bytes(body))


def cause(error: Exception) -> str:
    """Say what happened, the same way each time: aiohttp's own texts hold memory addresses."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    return str(error) or type(error).__name__
