# SPDX-License-Identifier: Apache-2.0
"""Through which proxy an API server is reached: a kubeconfig's `proxy-url`, or the environment.

| setting | meaning |
|---|---|
| `proxy-url` of a kubeconfig's cluster | always used, whatever the environment says |
| `HTTPS_PROXY`, `HTTP_PROXY` | the proxy for a server of that scheme |
| `ALL_PROXY` | the proxy when the one of the scheme is not set |
| `NO_PROXY` | servers that are reached without; see below |

Each variable is read in capitals and, when that is empty, in small letters. `NO_PROXY` is a list
with commas, read as Go's client reads it: `*` is every server; `10.0.0.1` an address; `10.0.0.0/8`
a range; `example.org` that name and all under it; `.example.org` or `*.example.org` only those
under it; each but a range with `:port` for that port alone. `localhost` and loopback addresses
never go through a proxy of the environment. Only `http://` proxies are supported, which is what a
value without a scheme is taken for. `~/.netrc` is never read.
"""

from __future__ import annotations

import base64
import ipaddress
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PORTS = {"http": 80, "https": 443}
"""The port of a URL that names none, by its scheme."""
_VARIABLES = {
    "https": ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"),
    "http": ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"),
}


@dataclass(frozen=True, slots=True)
class ProxyUrl:
    """Be the `http://` URL of a proxy; `host` is an address or a name in ASCII."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}" if self.port == PORTS["http"] else f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """Be an HTTP proxy; `authorization` is the value of its header, and never part of its text."""

    url: ProxyUrl
    authorization: str = field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Return what the proxy alone is told."""
        return {"Proxy-Authorization": self.authorization} if self.authorization else {}

    def __str__(self) -> str:
        return str(self.url)


def proxy_for(
    server: str, *, configured: str = "", environ: Mapping[str, str] = os.environ
) -> Proxy | None:
    """Return the proxy to *server*, None for the direct way; *configured* beats the environment.

    Raises ConfigurationError, naming the setting, for a proxy that cannot be used.
    """
    if configured:
        return _parse(configured, "proxy-url")
    url = urlsplit(server)
    host, port = (url.hostname or "").rstrip("."), url.port or PORTS[url.scheme]
    for name in _VARIABLES[url.scheme]:
        if value := environ.get(name, "").strip():
            exempt = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
            return None if is_exempt(host, port, exempt) else _parse(value, name)
    return None


def is_exempt(host: str, port: int, no_proxy: str) -> bool:
    """Tell whether the environment's proxy is not for this host, by the value of `NO_PROXY`."""
    host = host.lower()
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    entries = (entry.strip().lower() for entry in no_proxy.split(","))
    return any(entry and _covers(entry, host, address, port) for entry in entries)


def _covers(entry: str, host: str, address: Address | None, port: int) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        return address is not None and _in_range(address, entry)
    name, entry_port = _split_port(entry)
    if not name or entry_port not in {None, port}:
        return False
    if (entry_address := _address(name)) is not None:
        return entry_address == address
    name = name.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else f".{host}".endswith(f".{name}")


def _in_range(address: Address, entry: str) -> bool:
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def _split_port(entry: str) -> tuple[str, int | None]:
    """Return name and port of an entry; an IPv6 address has colons of its own."""
    if _address(entry) is not None:
        return entry, None
    name, colon, port = entry.rpartition(":")
    if colon and port.isascii() and port.isdigit():
        return name.strip("[]"), int(port)
    return entry.strip("[]"), None


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _parse(value: str, setting: str) -> Proxy:
    try:
        url = urlsplit(value if "://" in value else f"http://{value}")
        host, port = _ascii(url.hostname or ""), url.port
    except ValueError:
        url, host, port = urlsplit(""), "", None
    if url.scheme != "http" or not host:
        # The value may hold a password, so it is not repeated.
        raise ConfigurationError(
            f"{setting} must be an http:// proxy such as http://10.0.0.1:3128: "
            "name one, or exempt the API server with NO_PROXY"
        )
    authorization = ""
    if url.username is not None:
        pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Proxy(ProxyUrl(host, port or PORTS["http"]), authorization)


def _ascii(host: str) -> str:
    """Return a host the way it is looked up; raise ValueError for what is none."""
    address = _address(host)
    if address is not None:
        return str(address)
    if " " in host or not host.isprintable():
        raise ValueError(host)
    return host.encode("idna").decode("ascii")
