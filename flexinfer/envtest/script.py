# SPDX-License-Identifier: Apache-2.0
"""What a server on the wire says, as plain frozen data: the script of tests about faults.

A script is a list of routes. A route is a method, a path, an optional subset of the query, and
the actions it takes, one per request in order; the last one repeats. A `*` in method or path
stands for anything, and a parameter of the query whose value is None must be absent: so
`{"watch": None}` are the lists of a collection.

| action | on the wire |
|---|---|
| `Answer(status, headers, body, then)` | a whole HTTP answer, or the part of one that is written |
| `Close()` | no answer: end of TLS, then FIN |
| `HalfClose()` | no answer: FIN, while we go on reading |
| `Reset()` | no answer: RST |
| `Hang()` | no answer, and the connection stays open |
| `Forward(...)` | what the real server answers, changed; only behind a proxy (`faults.forward`) |

`then` is what follows the last byte: `KeepAlive()` (the default) or one of the four endings above.
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

from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flexinfer.meta.envelope import Tree

__all__ = [
    "Action",
    "Answer",
    "Bytes",
    "Close",
    "Delay",
    "Drip",
    "Ending",
    "HalfClose",
    "Hang",
    "KeepAlive",
    "Lines",
    "Reset",
    "Route",
    "Rupture",
    "Script",
    "Step",
    "Target",
    "Until",
    "status_answer",
]


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Leave the connection open for the next request."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection in order: TLS close_notify, then FIN."""


@dataclass(frozen=True, slots=True)
class HalfClose:
    """Send FIN, without an end of TLS, and go on reading until the other side ends."""


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
Rupture = Close | HalfClose | Reset | Hang
Ending = KeepAlive | Rupture


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer one request; see the table above."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | str | Tree | Sequence[Step] = b""
    then: Ending = field(default_factory=KeepAlive)


Action = Answer | Rupture


@dataclass(frozen=True, slots=True)
class Target:
    """Say which requests are meant; see the head of this module."""

    method: str = "*"
    path: str = "*"
    query: Mapping[str, str | None] = field(default_factory=dict)

    def fits(self, method: str, path: str, query: Mapping[str, str]) -> bool:
        """Tell whether a request is meant."""
        return (
            fnmatchcase(method, self.method)
            and fnmatchcase(path, self.path)
            and all(query.get(name) == value for name, value in self.query.items())
        )


A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Route(Generic[A]):
    """Say what the requests of a target get, in turn."""

    target: Target
    actions: tuple[A, ...]


class Script(Generic[A]):
    """Keep the routes, and how far each has come."""

    def __init__(self) -> None:
        self._routes: dict[int, Route[A]] = {}
        self._taken: Counter[int] = Counter()

    def add(self, target: Target, actions: Sequence[A]) -> None:
        """Add a route, in place of one with the same target."""
        same = (index for index, known in self._routes.items() if known.target == target)
        index = next(same, len(self._routes))
        self._routes[index] = Route(target, tuple(actions))
        self._taken.pop(index, None)

    def clear(self) -> None:
        """Forget all routes."""
        self._routes.clear()
        self._taken.clear()

    def take(self, method: str, path: str, query: Mapping[str, str]) -> A | None:
        """Return the next action for a request, or None when no route fits."""
        for index, route in self._routes.items():
            if route.target.fits(method, path, query):
                taken = self._taken[index]
                self._taken[index] += 1
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
