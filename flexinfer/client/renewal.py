# SPDX-License-Identifier: Apache-2.0
"""Credentials that somebody else issues for a while: renewed before they expire, and on 401.

One task renews, run by the transport (`keep`). So there is one renewal at a time, however many
requests ask for it, and a request whose deadline passes does not stop the renewal that others wait
for. While a credential is good, nobody waits: it is renewed beside the requests.

| event | what happens |
|---|---|
| first request | waits for the first credential |
| 75 to 85 % of the credential's life is over | renewed in the background |
| it expired | requests wait for the renewal |
| 401 | requests wait for one renewal; again at most every 10 s |
| a renewal failed | a good credential stays; without one, requests fail with the reason |
| after a failure | the next try comes after 1 s, doubling up to 30 s, with jitter |
"""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

import anyio

from flexinfer import log
from flexinfer.client.auth import Authorization, Endpoint, bearer, server_url
from flexinfer.errors import ConfigurationError, CredentialError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from flexinfer.client.tls import TlsFiles

# Below the transport's own deadline of 30 s, so that an error names what it waited for.
_LONGEST_WAIT = 20.0
_FIRST_BACKOFF = 1.0
_LONGEST_BACKOFF = 30.0
# A server that refuses everybody must not make us run a plugin without end.
_REFUSAL_INTERVAL = 10.0
_RENEW_AT = (0.75, 0.85)

_log = log.get_logger(__name__)
_random = random.SystemRandom()


class Issued(NamedTuple):
    """Be a credential: a token, or a client certificate and its key in PEM, or both.

    `expires` is in seconds since 1970, None when the issuer does not say.
    """

    token: str = ""
    certificate: str = ""
    key: str = ""
    expires: float | None = None


class Issuer(Protocol):
    """Give out credentials; its text names it in logs and errors."""

    async def issue(self) -> Issued:
        """Return a new credential within a bounded time; raise CredentialError if there is none."""
        ...


class RenewedCredentials(Endpoint):
    """Use what an issuer gives out; see the table above.

    To be used in one event loop, by one transport or several. *clock* is monotonic, *now* counts
    the seconds since 1970.
    """

    def __init__(  # noqa: PLR0913 - two places, the rest optional and by keyword
        self,
        server: str,
        issuer: Issuer,
        *,
        tls: TlsFiles,
        server_name: str | None = None,
        proxy_url: str = "",
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        server = server_url(server, has_token=True)
        super().__init__(server, tls=tls, server_name=server_name, proxy_url=proxy_url)
        self._issuer, self._files = issuer, tls
        self._clock, self._now = clock, now
        self._authorization = Authorization("", 0)
        self._shown = ("", "")
        self._usable = False
        self._expires = self._renew_at = math.inf
        self._failure, self._failures = "", 0
        self._not_before = self._refusable_at = -math.inf
        self._keeper = anyio.Lock()
        self._wanted, self._ended = anyio.Event(), anyio.Event()

    def ssl_context(self) -> ssl.SSLContext:
        """Return the context with the certificate that was issued last."""
        return self._files.context

    async def authorization(self) -> Authorization:
        """Return the current token; wait for one when there is none that is good."""
        while not self._usable or self._now() >= self._expires:
            await self._renewed()
        if self._now() >= self._renew_at and self._clock() >= self._not_before:
            self._wanted.set()
        return self._authorization

    async def invalidate(self, rejected: Authorization) -> None:
        """Wait for another credential, unless there was one since *rejected* was given out."""
        if rejected.generation != self._authorization.generation:
            return
        if self._usable:
            if self._clock() < self._refusable_at:
                return
            self._refusable_at = self._clock() + _REFUSAL_INTERVAL
            self._usable = False
            self._not_before = -math.inf
        await self._renewed()

    async def keep(self) -> None:
        """Renew on time and on request, until cancelled."""
        async with self._keeper:
            while True:
                with anyio.move_on_after(self._until_due()):
                    await self._wanted.wait()
                await self._renew()

    async def _renewed(self) -> None:
        """Wait for the end of a renewal; raise CredentialError if it failed, now or just before."""
        if self._clock() < self._not_before:
            raise CredentialError(self._failure)
        ended = self._ended
        self._wanted.set()
        with anyio.move_on_after(_LONGEST_WAIT):
            await ended.wait()
            if self._failure:
                raise CredentialError(self._failure)
            return
        raise CredentialError(f"{self._issuer} gave no answer within {_LONGEST_WAIT:g} s")

    def _until_due(self) -> float:
        if not self._usable:
            return math.inf
        return max(self._renew_at - self._now(), self._not_before - self._clock(), 0.0)

    async def _renew(self) -> None:
        try:
            self._take(await self._issuer.issue())
        except (CredentialError, ConfigurationError) as error:
            self._fail(str(error))
        # Those who came while it ran have what they wanted.
        ended, self._wanted, self._ended = self._ended, anyio.Event(), anyio.Event()
        ended.set()

    def _take(self, issued: Issued) -> None:
        header = bearer(issued.token, f"the token of {self._issuer}") if issued.token else ""
        shown = (issued.certificate, issued.key)
        if shown != self._shown:
            self._files = self._files.with_client(issued.certificate, issued.key)
            self._shown = shown
        self._authorization = Authorization(header, self._authorization.generation + 1)
        self._schedule(issued.expires)
        self._usable, self._failure, self._failures = True, "", 0
        self._not_before = -math.inf
        _log.info("credential renewed", issuer=str(self._issuer), server=self.server)

    def _schedule(self, expires: float | None) -> None:
        now = self._now()
        self._expires = self._renew_at = math.inf
        if expires is None:
            return
        if expires <= now:
            # The server judges, and its clock may be right: a 401 will tell.
            _log.warning("credential is past its expiry by our clock", issuer=str(self._issuer))
            return
        self._expires = expires
        self._renew_at = now + (expires - now) * _random.uniform(*_RENEW_AT)

    def _fail(self, reason: str) -> None:
        ceiling = min(_FIRST_BACKOFF * 2.0**self._failures, _LONGEST_BACKOFF)
        wait = ceiling * _random.uniform(0.5, 1)
        # More would only make the power overflow.
        self._failures = min(self._failures + 1, 10)
        self._failure, self._not_before = reason, self._clock() + wait
        _log.warning(
            "credential not renewed",
            issuer=str(self._issuer),
            error=reason,
            retry_seconds=round(wait, 1),
        )
