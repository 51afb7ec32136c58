# SPDX-License-Identifier: Apache-2.0
"""The TLS settings of every connection to an API server, the same on every Python."""

from __future__ import annotations

import ssl
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer import log
from flexinfer.client.reload import RELOAD_SECONDS, RETRY_SECONDS, check_reload_after, read_text
from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    # A file, which is read again, or its content.
    Pem = Path | str

__all__ = ["TlsFiles", "Trust", "client_context"]

_BEGIN = "-----BEGIN CERTIFICATE-----"

_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Say whom a client trusts and which certificate it shows; each a file or its content.

    `ca` None is what the system trusts. `certificate` and `key` come together. `verify` False
    accepts any server. `source` names it all in errors.
    """

    ca: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    verify: bool = True
    source: str = "the CA"

    def __post_init__(self) -> None:
        """Refuse a certificate without its key."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError(
                f"{self.source} names a client certificate or a key alone: give both"
            )


class TlsFiles:
    """Make contexts from a `Trust`, another one at most a minute after a file of it changed.

    A file that is missing or broken for a while, or a certificate whose key is not there yet,
    leaves the last good context in place. Raises ConfigurationError, naming the file, when the
    first one cannot be made.
    """

    def __init__(
        self,
        trust: Trust,
        *,
        reload_after: float = RELOAD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_reload_after(reload_after)
        self._trust = trust
        self._reload_after, self._clock = reload_after, clock
        self._content = _read(trust)
        self._context = _context(self._content)
        self._due = clock() + reload_after

    @property
    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        if self._clock() >= self._due:
            self.reload()
        return self._context

    def reload(self) -> None:
        """Read the files now."""
        wait = self._reload_after
        try:
            content = _read(self._trust)
            if content != self._content:
                self._context = _context(content)
                self._content = content
        except ConfigurationError as error:
            _log.warning("certificates not reloaded, the last good ones stay", error=str(error))
            wait = min(wait, RETRY_SECONDS)
        self._due = self._clock() + wait

    def with_client(self, certificate: str, key: str) -> TlsFiles:
        """Return the same trust with another client certificate, given as PEM; empty for none."""
        trust = replace(self._trust, certificate=certificate or None, key=key or None)
        return TlsFiles(trust, reload_after=self._reload_after, clock=self._clock)


def client_context(ca_pem: str | None = None, *, source: str = "the CA") -> ssl.SSLContext:
    """Return a context that trusts the certificates of *ca_pem* alone, or the system's if None.

    Certificates are judged as client-go judges them. So strict RFC 5280 checks are off, which
    Python 3.13 turned on and which refuse the CAs of many older clusters, and an intermediate
    certificate may be an anchor. Raises ConfigurationError, naming *source*, when there is no
    certificate in it.
    """
    # Python takes an empty string for none at all, and would trust the system's instead.
    if ca_pem is not None and _BEGIN not in ca_pem:
        raise _no_certificate(source)
    try:
        context = ssl.create_default_context(cadata=ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise _no_certificate(source) from error
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


@dataclass(frozen=True, slots=True)
class _Content:
    """Be what a `Trust` came to when it was read."""

    ca: str | None
    certificate: str | None
    key: str | None
    verify: bool
    source: str


def _read(trust: Trust) -> _Content:
    ca, certificate, key = (
        read_text(pem) if isinstance(pem, Path) else pem
        for pem in (trust.ca, trust.certificate, trust.key)
    )
    source = str(trust.ca) if isinstance(trust.ca, Path) else trust.source
    return _Content(ca, certificate, key, trust.verify, source)


def _context(content: _Content) -> ssl.SSLContext:
    context = client_context(content.ca, source=content.source)
    if not content.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if content.certificate is not None and content.key is not None:
        _show(context, content.certificate, content.key, content.source)
    return context


def _show(context: ssl.SSLContext, certificate: str, key: str, source: str) -> None:
    """Load a client certificate; the ssl module takes it from files alone."""
    with tempfile.TemporaryDirectory(prefix="flexinfer-") as folder:
        files = Path(folder, "client.crt"), Path(folder, "client.key")
        for file, pem in zip(files, (certificate, key), strict=True):
            file.touch(mode=0o600)
            file.write_text(pem, encoding="utf-8")
        try:
            # An empty password keeps OpenSSL from asking for one at the terminal.
            context.load_cert_chain(*files, password="")
        except (ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"the client certificate and key of {source} are broken or do not belong "
                "together: give a PEM certificate and its key without a password"
            ) from error


def _no_certificate(source: str) -> ConfigurationError:
    return ConfigurationError(f"{source} holds no valid PEM certificate: give the API server's CA")
