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
from flexinfer.client.tls import client_context
from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# client-go reads a token file again after one minute; the kubelet renews it at 80 % of its life.
RELOAD_SECONDS = 60.0
# A file that could not be read is probably being replaced: look again sooner.
_RETRY_SECONDS = 5.0

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

    def ssl_context(self) -> ssl.SSLContext:
        """Return the context for a new connection; another object when the trust changed."""
        ...

    async def authorization(self) -> Authorization:
        """Return the current token as a header; never raises once the object is made."""
        ...

    async def invalidate(self, rejected: Authorization) -> None:
        """Get a new token, unless that was done since *rejected* was given out."""
        ...


class StaticCredentials:
    """Hold a token and a trust that never change; for tests and hand tools."""

    def __init__(
        self,
        server: str,
        *,
        token: str = "",
        context: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        self.server = server_url(server, has_token=bool(token.strip()))
        self.server_name = server_name
        self._context = context or client_context()
        self._authorization = Authorization(_bearer(token, "token") if token.strip() else "", 0)

    def ssl_context(self) -> ssl.SSLContext:
        """Return the one context."""
        return self._context

    async def authorization(self) -> Authorization:
        """Return the one token."""
        return self._authorization

    async def invalidate(self, rejected: Authorization) -> None:
        """Do nothing: there is no other token to get."""


class TokenFileCredentials:
    """Read the token, and the CA when it is a file, again at least every minute.

    A file that is missing, empty or broken for a while leaves the last good value in place. Files
    are read on the event loop: they hold some 2 KB on a memory file system and are read once a
    minute, which costs less than the way to a thread and back.
    """

    def __init__(  # noqa: PLR0913 - two places, the rest optional and by keyword
        self,
        server: str,
        token_file: Path,
        *,
        ca_file: Path | None = None,
        context: ssl.SSLContext | None = None,
        server_name: str | None = None,
        reload_after: float = RELOAD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < reload_after <= RELOAD_SECONDS:
            msg = f"reload_after must be above 0 and at most {RELOAD_SECONDS:g} seconds"
            raise ConfigurationError(msg)
        self.server = server_url(server, has_token=True)
        self.server_name = server_name
        self._token_file, self._ca_file = token_file, ca_file
        self._reload_after, self._clock = reload_after, clock
        self._ca_pem = "" if ca_file is None else _required(ca_file)
        self._context = context or client_context(self._ca_pem or None, source=str(ca_file))
        self._authorization = Authorization(_bearer(_required(token_file), str(token_file)), 0)
        self._due = clock() + reload_after

    def ssl_context(self) -> ssl.SSLContext:
        """Return a context that trusts what the CA file holds now."""
        self._reload_if_due()
        return self._context

    async def authorization(self) -> Authorization:
        """Return the token that the file holds now, or the last good one."""
        self._reload_if_due()
        return self._authorization

    async def invalidate(self, rejected: Authorization) -> None:
        """Read the file at once, unless it was read since *rejected* was given out."""
        if rejected.generation == self._authorization.generation:
            self._reload()
            self._authorization = self._authorization._replace(generation=rejected.generation + 1)

    def _reload_if_due(self) -> None:
        if self._clock() >= self._due:
            self._reload()

    def _reload(self) -> None:
        wait = self._reload_after
        try:
            self._reload_ca()
            header = _bearer(_required(self._token_file), str(self._token_file))
        except ConfigurationError as error:
            _log.warning("credentials not reloaded, the last good ones stay", error=str(error))
            wait = min(wait, _RETRY_SECONDS)
        else:
            if header != self._authorization.header:
                self._authorization = Authorization(header, self._authorization.generation + 1)
        self._due = self._clock() + wait

    def _reload_ca(self) -> None:
        if self._ca_file is None:
            return
        ca_pem = _required(self._ca_file)
        if ca_pem != self._ca_pem:
            self._context = client_context(ca_pem, source=str(self._ca_file))
            self._ca_pem = ca_pem


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
        super().__init__(
            server,
            directory / "token",
            ca_file=directory / "ca.crt",
            reload_after=reload_after,
            clock=clock,
        )
        self.namespace = _required(directory / "namespace")


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
    url = urlsplit(server)
    if url.scheme not in {"https", "http"} or not url.hostname or url.query or url.fragment:
        raise ConfigurationError(
            f"server must be a URL such as https://10.0.0.1:6443, not {server!r}"
        )
    if url.username is not None:
        raise ConfigurationError("server must not hold a user name: credentials go in the token")
    if url.scheme == "http" and has_token:
        raise ConfigurationError(f"server must be https to send a token to it, not {server!r}")
    return server.rstrip("/")


def _required(path: Path) -> str:
    try:
        content = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        msg = f"cannot read {path} ({reason}): mount a service account there or name another folder"
        raise ConfigurationError(msg) from error
    if not content:
        raise ConfigurationError(f"{path} is empty: it must hold what a service account has there")
    return content


def _bearer(token: str, source: str) -> str:
    token = token.strip()
    # Anything else cannot be a token, and a line break would end the header.
    if not token.isascii() or not token.isprintable() or " " in token:
        msg = f"{source} holds characters that no token has: write the bare token into it"
        raise ConfigurationError(msg)
    return f"Bearer {token}"
