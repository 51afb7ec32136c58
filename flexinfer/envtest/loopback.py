# SPDX-License-Identifier: Apache-2.0
"""A guard that nothing connects outside loopback while it is armed.

Simulated pods and services have addresses that nobody has; a connection to one would leave this
machine. The guard is an audit hook of the interpreter, so it sees every library.
"""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OutsideLoopbackError", "loopback_only"]

_CONNECTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOKUPS = frozenset({"socket.getaddrinfo", "socket.gethostbyname"})
_NAMES = frozenset({"", "localhost"})
_armed: list[object] = []
_hooked: list[bool] = []


class OutsideLoopbackError(AssertionError):
    """Report a connection, or the look-up of a name, that would leave this machine."""


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Refuse, in this process, every connection and name that is not this machine's own.

    Raises, at the place that connects:
        OutsideLoopbackError: It names the address.
    """
    if not _hooked:
        # A hook cannot be taken back, so there is one, which looks whether it is armed.
        sys.addaudithook(_hook)
        _hooked.append(True)
    arm = object()
    _armed.append(arm)
    try:
        yield
    finally:
        _armed.remove(arm)


def _hook(event: str, args: tuple[object, ...]) -> None:
    if not _armed:
        return
    if event in _CONNECTS:
        address = args[1]
        # Unix sockets have no host; a datagram socket that is connected names no address.
        if isinstance(address, tuple) and not _is_loopback(str(address[0])):
            raise OutsideLoopbackError(f"{event} to {address[0]}: only loopback may be dialled")
    elif event in _LOOKUPS and not _is_harmless_name(args[0]):
        raise OutsideLoopbackError(f"{event} of {args[0]!r}: names are looked up outside")


def _is_harmless_name(host: object) -> bool:
    if host is None:
        return True
    name = host.decode() if isinstance(host, bytes) else str(host)
    return name in _NAMES or _address(name) is not None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host in _NAMES if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
