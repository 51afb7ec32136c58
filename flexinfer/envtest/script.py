# SPDX-License-Identifier: Apache-2.0
"""What a server on the wire says, as plain frozen data: the script of tests about faults.

A script is a list of routes. A route is a method, a path, an optional subset of the query, and
the actions it takes, one per request in order; the last one repeats.

| action | on the wire |
|---|---|
| `Answer(status, headers, body, then)` | a whole HTTP answer, or the part of one that is written |
| `Close()` | no answer: end of TLS, then FIN |
| `Reset()` | no answer: RST |
| `Hang()` | no answer, and the connection stays open |

`then` is what follows the last byte: `KeepAlive()` (the default), `Close()`, `Reset()` or `Hang()`.
A body of bytes, of text (`text/plain`) or of a dict (JSON) is sent with its Content-Length. A
body of steps is sent chunked, a chunk per line or piece:

| step | on the wire |
|---|---|
| `Lines(a, b, …)` | each as a line of its own; a dict is sent as JSON |
| `Bytes(data)` | these bytes as they are: half a line, say |
| `Drip(data, piece, pause)` | *piece* bytes, a pause of so many seconds, and so on |
| `Delay(seconds)` | nothing for so long |
| `Until(event)` | nothing until the test releases the event of that name |

The end of the last chunk is written only before `KeepAlive()`: so `then=Close()` after steps is a
body that was cut. A header given in the answer wins over the one that would be written, so a
`Content-Length` larger than the body is an answer cut in its middle.

The order in which routes are written decides: the first that fits answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flexinfer.meta.envelope import Tree


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Leave the connection open for the next request."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection in order: TLS close_notify, then FIN."""


@dataclass(frozen=True, slots=True)
class Reset:
    """End the connection with RST."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Say nothing more and leave the connection open."""


@dataclass(frozen=True, slots=True, init=False)
class Lines:
    """Send lines, each in a chunk of its own."""

    lines: tuple[bytes | Tree, ...]

    def __init__(self, *lines: bytes | Tree) -> None:
        object.__setattr__(self, "lines", lines)


@dataclass(frozen=True, slots=True)
class Bytes:
    """Send bytes as they are."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Drip:
    """Send bytes in small pieces, with a pause in seconds after each."""

    data: bytes
    piece: int = 1
    pause: float = 0.01


@dataclass(frozen=True, slots=True)
class Delay:
    """Send nothing for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Until:
    """Send nothing until the event of that name is released."""

    event: str


Step = Lines | Bytes | Drip | Delay | Until
Ending = KeepAlive | Close | Reset | Hang


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer one request; see the table above."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | str | Tree | Sequence[Step] = b""
    then: Ending = field(default_factory=KeepAlive)


Action = Answer | Close | Reset | Hang


@dataclass(frozen=True, slots=True)
class Route:
    """Say what requests of a method and path get; *query* must be a part of theirs."""

    method: str
    path: str
    actions: tuple[Action, ...]
    query: Mapping[str, str] = field(default_factory=dict)

    def fits(self, method: str, path: str, query: Mapping[str, str]) -> bool:
        """Tell whether a request is this route's."""
        return (method, path) == (self.method, self.path) and self.query.items() <= query.items()


class Script:
    """Keep the routes, and how far each has come."""

    def __init__(self) -> None:
        self._routes: list[Route] = []
        self._taken: dict[int, int] = {}

    def add(self, route: Route) -> None:
        """Add a route, in place of one with the same method, path and query."""
        for index, known in enumerate(self._routes):
            same = (known.method, known.path) == (route.method, route.path)
            if same and known.query == route.query:
                self._routes[index] = route
                self._taken.pop(index, None)
                return
        self._routes.append(route)

    def take(self, method: str, path: str, query: Mapping[str, str]) -> Action | None:
        """Return the next action for a request, or None when no route fits."""
        for index, route in enumerate(self._routes):
            if route.fits(method, path, query):
                taken = self._taken.get(index, 0)
                self._taken[index] = taken + 1
                return route.actions[min(taken, len(route.actions) - 1)]
        return None


def status_answer(
    code: int,
    reason: str,
    message: str,
    *,
    causes: Sequence[Tree] = (),
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return an answer as the API server gives it when it says no: a Status in JSON."""
    body: Tree = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": {"causes": list(causes)},
        "code": code,
    }
    return Answer(code, headers or {}, body)
