# SPDX-License-Identifier: Apache-2.0
"""Free loopback ports that stay free while a component is down.

The kernel gives outgoing connections ports from its ephemeral range, so a port of that range may
be taken between the moment it is found free and the moment it is listened on, or while its owner
is restarted. These lie below that range.
"""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20_000, 32_000
LOOPBACK = "127.0.0.1"
_TRIES = 200


def free_ports(count: int) -> list[int]:
    """Return *count* different ports that nobody listens on at the moment.

    Raises:
        OSError: None was found in 200 tries a port.
    """
    found: set[int] = set()
    for _ in range(_TRIES * count):
        if len(found) == count:
            break
        port = random.randint(FIRST, LAST)  # noqa: S311 - luck, not secrecy
        with socket.socket() as listener:
            # As the servers do: connections of an earlier owner that linger do not count.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((LOOPBACK, port))
            except OSError:
                continue
        found.add(port)
    if len(found) < count:
        raise OSError(f"no {count} free ports between {FIRST} and {LAST} on {LOOPBACK}")
    return list(found)
