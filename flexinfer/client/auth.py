# SPDX-License-Identifier: Apache-2.0
"""What a transport needs to reach an API server: where it is, whom to trust, and who we are.

A credential counts the generations of its token. A transport that was refused names the
generation it used, so that many refusals at once reload the token once.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

from flexinfer import log
from flexinfer.client.reload import RELOAD_SECONDS, RETRY_SECONDS, check_reload_after, read_text
from flexinfer.client.tls import TlsFiles, Trust, client_context
from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

__all__ = [
    "SERVICE_ACCOUNT_DIR",
    "Authorization",
    "Credentials",
    "ServiceAccountCredentials",
    "StaticCredentials",
    "TokenFileCredentials",
    "in_cluster",
]

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_log = log.get_logger(__name__)


class Authorization(NamedTuple):
    """Be the value of an Authorization header, empty for none, and its generation."""

    header: str
    generation: int


class Credentials(Protocol):
    """Tell a transport where the API server is and how to speak to it."""

    @property
    def server(self) -> str:
        """Return the URL of the API server, without a slash at its end."""
        ...

    @property
    def server_name(self) -> str | None:
        """Return the name its certificate must have, or None for the host of the URL."""
        ...

    @property
    def proxy_url(self) -> str:
        """Return the proxy that leads there, empty when the environment is to say."""
        ...

    def ssl_context(self) -> ssl.SSLContext:
        """Return the context for a new connection; another object when the trust changed."""
        ...

    async def authorization(self) -> Authorization:
        """Return the current token as a header; CredentialError when there is none to be had."""
        ...

    async def invalidate(self, rejected: Authorization) -> None:
        """Get a new token, unless that was done since *rejected* was given out.

        Raises CredentialError when there is none to be had.
        """
        ...

    async def keep(self) -> None:
        """Renew what must be renewed, until cancelled; the transport that uses them runs this."""
        ...


class Endpoint:
    """Be the half of every credential that is no secret: where the server is, whom to trust."""

    def __init__(
        self,
        server: str,
        *,
        tls: ssl.SSLContext | TlsFiles | None,
        server_name: str | None = None,
        proxy_url: str = "",
    ) -> None:
        if server_name and not _is_name(server_name):
            raise ConfigurationError(
                f"server_name must be a name that a certificate can have, not {server_name!r}"
            )
        self.server = server
        self.server_name = server_name
        self.proxy_url = proxy_url
        self._tls = tls or client_context()

    def ssl_context(self) -> ssl.SSLContext:
        """Return the context for a new connection; files of it are read again in time."""
        return self._tls.context if isinstance(self._tls, TlsFiles) else self._tls

    async def keep(self) -> None:
        """Return at once: files are read when they are asked for."""


class StaticCredentials(Endpoint):
    """Hold a token that never changes; for client certificates, tests and hand tools."""

    def __init__(
        self,
        server: str,
        *,
        token: str = "",
        context: ssl.SSLContext | TlsFiles | None = None,
        server_name: str | None = None,
        proxy_url: str = "",
    ) -> None:
        server = server_url(server, has_token=bool(token.strip()))
        super().__init__(server, tls=context, server_name=server_name, proxy_url=proxy_url)
        self._authorization = Authorization(bearer(token, "token") if token.strip() else "", 0)

    async def authorization(self) -> Authorization:
        """Return the one token."""
        return self._authorization

    async def invalidate(self, rejected: Authorization) -> None:
        """Read the certificates that are files again: there is no other token to get."""
        del rejected
        if isinstance(self._tls, TlsFiles):
            self._tls.reload()


class TokenFileCredentials(Endpoint):
    """Read the token, and the certificates that are files, again at least every minute.

    A file that is missing, empty or broken for a while leaves the last good value in place. Files
    are read on the event loop: they hold some 2 KB on a memory file system and are read once a
    minute, which costs less than the way to a thread and back.
    """

    def __init__(  # noqa: PLR0913 - two places, the rest optional and by keyword
        self,
        server: str,
        token_file: Path,
        *,
        context: ssl.SSLContext | TlsFiles | None = None,
        server_name: str | None = None,
        proxy_url: str = "",
        reload_after: float = RELOAD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_reload_after(reload_after)
        server = server_url(server, has_token=True)
        super().__init__(server, tls=context, server_name=server_name, proxy_url=proxy_url)
        self._token_file = token_file
        self._reload_after, self._clock = reload_after, clock
        self._authorization = Authorization(bearer(read_text(token_file), str(token_file)), 0)
        self._due = clock() + reload_after

    async def authorization(self) -> Authorization:
        """Return the token that the file holds now, or the last good one."""
        if self._clock() >= self._due:
            self._reload()
        return self._authorization

    async def invalidate(self, rejected: Authorization) -> None:
        """Read the file at once, unless it was read since *rejected* was given out."""
        if rejected.generation == self._authorization.generation:
            self._reload()
            self._authorization = self._authorization._replace(generation=rejected.generation + 1)

    def _reload(self) -> None:
        wait = self._reload_after
        try:
            header = bearer(read_text(self._token_file), str(self._token_file))
        except ConfigurationError as error:
            _log.warning("token not read again, the last good one stays", error=str(error))
            wait = min(wait, RETRY_SECONDS)
        else:
            if header != self._authorization.header:
                self._authorization = Authorization(header, self._authorization.generation + 1)
        self._due = self._clock() + wait


class ServiceAccountCredentials(TokenFileCredentials):
    """Be a service account as a pod sees it: a folder with `token`, `ca.crt` and `namespace`."""

    def __init__(
        self,
        directory: Path,
        server: str,
        *,
        reload_after: float = RELOAD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_reload_after(reload_after)
        trust = Trust(ca=directory / "ca.crt")
        super().__init__(
            server,
            directory / "token",
            context=TlsFiles(trust, reload_after=reload_after, clock=clock),
            reload_after=reload_after,
            clock=clock,
        )
        self.namespace = read_text(directory / "namespace")


def in_cluster(
    *, directory: Path = SERVICE_ACCOUNT_DIR, environ: Mapping[str, str] = os.environ
) -> ServiceAccountCredentials:
    """Return the service account of the pod this process runs in.

    Raises ConfigurationError when it does not run in one.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ConfigurationError(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, so this is no pod: "
            "give a kubeconfig, or a service-account folder and the API server's address"
        )
    name = f"[{host}]" if ":" in host else host
    return ServiceAccountCredentials(directory, f"https://{name}:{port}")


def server_url(server: str, *, has_token: bool) -> str:
    """Return *server* without a slash at its end.

    Raises ConfigurationError when it is no URL, or would send a token in clear.
    """
    if not _is_server(server):
        raise ConfigurationError(
            f"server must be a URL such as https://10.0.0.1:6443, not {server!r}"
        )
    url = urlsplit(server)
    if url.username is not None:
        raise ConfigurationError("server must not hold a user name: credentials go in the token")
    if url.scheme == "http" and has_token:
        raise ConfigurationError(f"server must be https to send a token to it, not {server!r}")
    return server.rstrip("/")


def _is_server(server: str) -> bool:
    """Tell whether *server* is a URL that requests can be sent to, as it is written."""
    try:
        url = urlsplit(server)
        is_port = url.port != 0
    except ValueError:
        return False
    is_sendable = server.isascii() and server.isprintable() and " " not in server
    is_whole = url.scheme in {"https", "http"} and _is_name(url.hostname or "") and is_port
    return is_sendable and is_whole and not url.query and not url.fragment


def _is_name(host: str) -> bool:
    """Tell whether *host* can be looked up, and asked of a certificate."""
    try:
        return bool(host.encode("idna")) and not host.startswith(".")
    except UnicodeError:
        return False


def bearer(token: str, source: str) -> str:
    """Return *token* as a header; raise ConfigurationError, naming *source*, if it cannot be."""
    token = token.strip()
    # Anything else cannot be a token, and a line break would end the header.
    if not token.isascii() or not token.isprintable() or " " in token:
        msg = f"{source} holds characters that no token has: write the bare token into it"
        raise ConfigurationError(msg)
    return f"Bearer {token}"
