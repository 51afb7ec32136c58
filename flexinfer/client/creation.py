# SPDX-License-Identifier: Apache-2.0
"""A create whose answer may be lost: was the object made, and is it ours?

A POST cannot be repeated blindly: the first one may have worked. With a fixed name it can be sent
again, because then the API server answers 409 AlreadyExists, and the object that is there tells:
it is ours when it says all that we asked for. So two processes that create an object to settle
which of them goes first, each with its name inside, still get one winner. An object whose values
the API server or a webhook wrote otherwise than asked does not count as ours: the caller sees
AlreadyExistsError, as it would after a restart.

An apply the transport does repeat. One that is bound to what was there is refused then, after a
try that worked, and whoever asked is told that it may be so: `Tries`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio

from flexinfer.client.exchange import ConnectionLostError
from flexinfer.errors import AlreadyExistsError, ApiError, DeadlineError, TransportError
from flexinfer.meta.envelope import decode_object, decode_tree, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flexinfer.client.transport import Transport
    from flexinfer.meta.envelope import StoredObject, Tree

# As often as the transport repeats what can be repeated.
_REPEATS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """Be one object to create, by a POST to the collection at `path`, within `timeout` seconds.

    `guard` is called before every try, and raises when it must not be sent.
    """

    path: str
    params: Mapping[str, str]
    intent: Tree
    timeout: float
    guard: Callable[[], None] | None = None

    async def send(self, transport: Transport) -> StoredObject:
        """Create it; raise AlreadyExistsError when the name is taken by another."""
        with anyio.move_on_after(self.timeout):
            return await self._persist(transport)
        raise DeadlineError(f"POST {self.path}: no answer within {self.timeout:g} s")

    async def _persist(self, transport: Transport) -> StoredObject:
        name = self.intent.get("metadata", {}).get("name", "")
        lost = 0
        while True:
            try:
                return decode_object(await self._post(transport))
            except ConnectionLostError:
                if not name or lost >= _REPEATS:
                    raise
                lost += 1
            except AlreadyExistsError:
                made = await self._made(transport, name) if lost else None
                if made is None:
                    raise
                return made

    async def _post(self, transport: Transport) -> bytes:
        body = encode(self.intent)
        return await transport.request(
            "POST",
            self.path,
            params=self.params,
            body=body,
            timeout=self.timeout,
            before_send=self.guard,
        )

    async def _made(self, transport: Transport, name: str) -> StoredObject | None:
        """Return what the lost try made, None when that is not known: the 409 is true anyhow."""
        path = f"{self.path}/{quote(name, safe='')}"
        try:
            answer = await transport.request("GET", path, timeout=self.timeout)
        except (ApiError, TransportError):
            # Gone again, or hidden from us: who may create need not be allowed to read.
            return None
        live = decode_tree(answer)
        if "deletionTimestamp" in live.get("metadata", {}) or not says(live, self.intent):
            return None
        return decode_object(answer)


class Tries:
    """Count how often a write is sent; *guard* raises when it must not be."""

    def __init__(self, guard: Callable[[], None] | None) -> None:
        self._guard = guard
        self._count = 0

    @property
    def is_repeat(self) -> bool:
        """Tell whether an earlier try may have done it."""
        return self._count > 1

    def begin(self) -> None:
        """Count one more, or raise as the guard does."""
        if self._guard is not None:
            self._guard()
        self._count += 1


def says(live: Any, wanted: Any) -> bool:
    """Tell whether *live* holds every value of *wanted*; lists must be as long."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and says(live[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        same_length = isinstance(live, list) and len(live) == len(wanted)
        return same_length and all(map(says, live, wanted))
    return bool(live == wanted)
