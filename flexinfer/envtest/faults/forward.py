# SPDX-License-Identifier: Apache-2.0
"""What a script can do to a request that is passed on, and to the real server's answer.

`Forward()` changes nothing; it is what a request without a route gets. Its settings apply in the
order of the table.

| setting | what it does |
|---|---|
| `ask` | a function of the query's parameters: what the real server is asked instead |
| `delay` | the answer begins so many seconds late |
| `status`, `headers` | replace those of the answer; an empty header is left out |
| `body` | a function of a JSON body: what the client gets instead |
| `lines` | what happens to the lines of a watch, see below; in this order |
| `cut_after` | the answer stops after so many bytes of its body |
| `then` | how the connection ends after that, as in any script |

| edit | what it does |
|---|---|
| `Drop(type, name)` | leaves out events of this type and of the object of this name |
| `Rewrite(change, type, name)` | sends what *change* makes of the event: a tree, or bytes |
| `CutInside(size, then, type, name)` | sends *size* bytes of such an event, then ends so |
| `Hold(seconds)` | every line comes so much later, in the same order |
| `Insert(line, after)` | sends a line of its own so many seconds after the watch was opened |
| `Bookmarks(every)` | sends a true bookmark every so many seconds; the server's stay |

An empty type or name means any. Inserted lines and bookmarks are not edited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flexinfer.envtest.script import Action, Close, Ending, KeepAlive, Rupture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flexinfer.meta.envelope import Tree


@dataclass(frozen=True, slots=True)
class Drop:
    """Leave events out."""

    type: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Send something else in place of an event."""

    change: Callable[[Tree], Tree | bytes]
    type: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class CutInside:
    """Break off inside the line of an event."""

    size: int
    then: Rupture = field(default_factory=Close)
    type: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Delay every line."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Insert:
    """Send a line that the server did not."""

    line: Tree | bytes
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Bookmarks:
    """Send bookmarks at an interval of our own.

    Each carries the version that the server had one interval before, by when everything up to it
    has passed; one that would go back is left out.
    """

    every: float


Edit = Drop | Rewrite | CutInside | Hold | Insert | Bookmarks


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Pass one request on and its answer back; see the head of this module."""

    ask: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None
    delay: float = 0.0
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Callable[[Tree], Tree] | None = None
    lines: tuple[Edit, ...] = ()
    cut_after: int | None = None
    then: Ending = field(default_factory=KeepAlive)


FaultAction = Action | Forward
