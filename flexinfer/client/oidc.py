# SPDX-License-Identifier: Apache-2.0
"""The `oidc` auth provider of a kubeconfig: an id-token, and a refresh-token to get the next one.

The id-token of the kubeconfig is used while it is good; another one is got by the refresh-token and
written back, with the new refresh-token, as kubectl does: an identity provider may accept each
refresh-token once, and kubectl must find the next one. The file is read anew before each refresh,
so what kubectl wrote meanwhile counts, and locked as kubectl locks it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote_plus, urlsplit

import aiohttp
import anyio
import yaml

from flexinfer import log
from flexinfer.client.proxy import proxy_for
from flexinfer.client.renewal import Issued
from flexinfer.client.tls import client_context
from flexinfer.errors import ConfigurationError, CredentialError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from flexinfer.meta.envelope import Tree

TIMEOUT = 15.0
# client-go takes an id-token for expired so many seconds before it is.
_LEEWAY = 10.0
_DISCOVERY = "/.well-known/openid-configuration"
_OK = 200

_log = log.get_logger(__name__)


class Tokens(NamedTuple):
    """Be what the kubeconfig keeps of a user between two refreshes."""

    id_token: str
    refresh_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserEntry:
    """Say where the tokens are kept: the user of that name in that kubeconfig."""

    path: Path
    user: str

    def read(self) -> Tokens:
        """Return the tokens that the file holds now."""
        config = self._config(self._load())
        return Tokens(str(config.get("id-token") or ""), str(config.get("refresh-token") or ""))

    def write(self, tokens: Tokens) -> None:
        """Replace the tokens of the file, and it by a rename, so that nobody reads half of it."""
        content = self._load()
        config = self._config(content)
        config["id-token"], config["refresh-token"] = tokens
        target = self.path.resolve()
        mode = target.stat().st_mode & 0o777
        # Made for its owner alone, whatever the mode is to be.
        number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                yaml.safe_dump(content, file, sort_keys=False)
            Path(name).chmod(mode)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold kubectl's lock on the file; FileExistsError when somebody has it."""
        lock = Path(f"{self.path}.lock")
        lock.touch(exist_ok=False)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)

    def _load(self) -> Tree:
        content: Tree = yaml.safe_load(self.path.read_text(encoding="utf-8"))
        return content

    def _config(self, content: Tree) -> Tree:
        user = next(entry for entry in content["users"] if entry["name"] == self.user)
        config: Tree = user["user"]["auth-provider"]["config"]
        return config


@dataclass(kw_only=True)
class OidcProvider:
    """Get id-tokens of one user from an identity provider.

    `ca_pem` is whom to trust there, the system's authorities when None. A proxy of the environment
    is used for it as for an API server. `now` counts the seconds since 1970.
    """

    issuer_url: str
    client_id: str
    entry: UserEntry
    client_secret: str = field(default="", repr=False)
    ca_pem: str | None = None
    timeout: float = TIMEOUT
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        """Refuse what would send a secret in clear."""
        self.issuer_url = self.issuer_url.rstrip("/")
        if not _is_https(self.issuer_url) or not self.client_id:
            raise ConfigurationError(
                "auth-provider oidc needs client-id, and an https:// URL as idp-issuer-url"
            )
        self._tls = client_context(self.ca_pem, source="idp-certificate-authority")
        self._stored: Tokens | None = None
        self._latest = Tokens("", "")

    def __str__(self) -> str:
        return f"OIDC provider {self.issuer_url}"

    async def issue(self) -> Issued:
        """Return the kubeconfig's id-token when it is new and good, else one got by a refresh."""
        stored = self._read()
        if stored != self._stored:
            self._stored = self._latest = stored
            if stored.id_token and self._is_good(stored.id_token):
                return Issued(stored.id_token, expires=expiry(stored.id_token))
        if not self._latest.refresh_token:
            raise CredentialError(
                f"the id-token of {self.entry.user!r} is not good any more, "
                f"and {self.entry.path} holds no refresh-token: log in again"
            )
        self._latest = await self._refresh(self._latest.refresh_token)
        self._keep(self._latest)
        return Issued(self._latest.id_token, expires=expiry(self._latest.id_token))

    def _read(self) -> Tokens:
        try:
            return self.entry.read()
        except (
            OSError,
            ValueError,
            yaml.YAMLError,
            LookupError,
            TypeError,
            StopIteration,
        ) as error:
            msg = f"cannot read the tokens of {self.entry.user!r} in {self.entry.path}"
            raise CredentialError(f"{msg} ({type(error).__name__}): mend the file") from None

    def _is_good(self, id_token: str) -> bool:
        expires = expiry(id_token)
        return expires is None or expires - _LEEWAY > self.now()

    def _keep(self, tokens: Tokens) -> None:
        """Write the tokens back; where that cannot be, this process still knows them."""
        try:
            with self.entry.locked():
                self.entry.write(tokens)
        except (
            OSError,
            ValueError,
            yaml.YAMLError,
            LookupError,
            TypeError,
            StopIteration,
        ) as error:
            _log.warning(
                "refreshed tokens not written to the kubeconfig",
                path=str(self.entry.path),
                error=error.strerror if isinstance(error, OSError) else type(error).__name__,
            )
        else:
            self._stored = tokens

    async def _refresh(self, refresh_token: str) -> Tokens:
        with anyio.move_on_after(self.timeout):
            async with _session() as http:
                found = await self._ask(http, "GET", f"{self.issuer_url}{_DISCOVERY}")
                form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
                headers = self._authenticate(form, found)
                endpoint = str(found.get("token_endpoint", ""))
                answer = await self._ask(http, "POST", endpoint, form=form, headers=headers)
            id_token = answer.get("id_token")
            if not isinstance(id_token, str):
                raise CredentialError(f"{self} gave no id_token: the client needs scope openid")
            return Tokens(id_token, str(answer.get("refresh_token") or refresh_token))
        raise CredentialError(f"{self} gave no answer within {self.timeout:g} s")

    def _authenticate(self, form: dict[str, str], found: Tree) -> dict[str, str]:
        """Say who the client is, in the form or in the headers that are returned."""
        methods = found.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if self.client_secret and "client_secret_basic" in methods:
            pair = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        form["client_id"] = self.client_id
        if self.client_secret:
            form["client_secret"] = self.client_secret
        return {}

    async def _ask(
        self,
        http: aiohttp.ClientSession,
        method: str,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Tree:
        if not _is_https(url):
            raise CredentialError(f"{self} names {url!r}, which is no https:// URL")
        proxy = proxy_for(url)
        options: dict[str, Any] = {"ssl": self._tls, "allow_redirects": False}
        if proxy is not None:
            options |= {"proxy": str(proxy), "proxy_headers": proxy.headers}
        try:
            async with http.request(method, url, data=form, headers=headers, **options) as response:
                return self._answer(response.status, await response.read(), url)
        except (aiohttp.ClientError, OSError) as error:
            raise CredentialError(f"{self} cannot be reached at {url}: {_cause(error)}") from error

    def _answer(self, status: int, body: bytes, url: str) -> Tree:
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if status == _OK and isinstance(answer, dict):
            return answer
        why = ""
        if isinstance(answer, dict) and answer.get("error"):
            why = f" ({answer['error']}: {answer.get('error_description', 'no description')})"
        raise CredentialError(
            f"{self} answered {status} at {url}{why}: log in again if it stays so"
        )


def _session() -> aiohttp.ClientSession:
    """Return a session that reads no environment and has no timeouts: its user has one."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "flexinfer", "Accept-Encoding": "identity"},
        trust_env=False,
    )


def _cause(error: Exception) -> str:
    """Say what happened, the same way each time: aiohttp's own texts hold memory addresses."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    return str(error) or type(error).__name__


def expiry(id_token: str) -> float | None:
    """Return when a JWT expires, in seconds since 1970; raise ConfigurationError if it is none."""
    try:
        _header, claims, _signature = id_token.split(".")
        padded = claims + "=" * (-len(claims) % 4)
        expires = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True)).get("exp")
        return None if expires is None else float(expires)
    except (ValueError, TypeError, AttributeError, binascii.Error):
        raise ConfigurationError("the id-token is no JSON web token: log in again") from None


def _is_https(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" and bool(parts.hostname)
