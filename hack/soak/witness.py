# SPDX-License-Identifier: Apache-2.0
"""What the audit log and the managers' logs say of leadership and of double work; pure."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flexinfer.envtest.audit import AuditEvent

_WINDOW_MINUTES = 5
_IDENTITY = re.compile(r"\(([^)]+)\)")
_STARTS = "reconciling"
# How a reconcile ends, by the message of its last line.
_ENDS = frozenset(
    {
        "reconciled",
        "reconcile failed",
        "reconcile lost a race and is tried again",
        "reconcile cancelled by the stop",
        "reconcile cancelled, its name stays queued",
    }
)


@dataclass(frozen=True, slots=True)
class Term:
    """One time of one leader: from its acquireTime to that of its successor."""

    identity: str
    acquired: datetime


def moment(text: str) -> datetime:
    """Read a time of the API server or of a log."""
    return datetime.fromisoformat(text)


def terms(events: Iterable[AuditEvent]) -> list[Term]:
    """Return the terms that successful writes of the Lease began, in their order."""
    found: list[Term] = []
    for event in events:
        if event.resource != "leases" or not event.is_write or event.code >= 300:  # noqa: PLR2004
            continue
        spec = (event.body.get("requestObject") or {}).get("spec") or {}
        holder, acquired = spec.get("holderIdentity"), spec.get("acquireTime")
        if not holder or not acquired:
            continue
        term = Term(holder, moment(acquired))
        if not found or found[-1] != term:
            found.append(term)
    return found


def late_writes(events: Iterable[AuditEvent], elected: Sequence[Term]) -> list[str]:
    """Return a line for each write of an identity that was stamped after its successor began."""
    found = []
    for event in events:
        if not event.is_write or event.resource in {"leases", "events"}:
            continue
        match = _IDENTITY.search(event.user_agent)
        if match is None:
            continue
        identity = match.group(1)
        stamped = moment(event.body["requestReceivedTimestamp"])
        if not _leads(identity, stamped, elected):
            found.append(f"{identity} wrote {event.uri} at {stamped.isoformat()} without leading")
    return found


def _leads(identity: str, at: datetime, elected: Sequence[Term]) -> bool:
    """Tell whether the newest term that began before *at* is that of *identity*."""
    current = None
    for term in elected:
        if term.acquired <= at:
            current = term
    return current is not None and current.identity == identity


def double_work(
    lines: Iterable[tuple[str, Mapping[str, object]]],
    kills: Sequence[tuple[str, datetime]],
    pauses: Sequence[tuple[str, datetime]] = (),
) -> list[str]:
    """Return a line for each key that was being reconciled twice at one time.

    A reconcile without an end ended when its manager was killed. One during which its manager was
    stopped for longer than the lease ended with that: whether it wrote once it went on is what
    `late_writes` tells.
    """
    spans: dict[str, list[tuple[datetime, datetime, str]]] = defaultdict(list)
    opened: dict[tuple[str, str], tuple[str, datetime]] = {}
    last: datetime | None = None
    for member, line in lines:
        identifier = str(line.get("reconcile_id", ""))
        if not identifier or "ts" not in line:
            continue
        at = moment(str(line["ts"]))
        last = at if last is None else max(last, at)
        message = line.get("msg")
        if message == _STARTS:
            key = f"{line.get('namespace')}/{line.get('name')}"
            opened[member, identifier] = (key, at)
        elif message in _ENDS and (member, identifier) in opened:
            key, began = opened.pop((member, identifier))
            halts = [halt for name, halt in pauses if name == member and began <= halt <= at]
            spans[key].append((began, min(halts, default=at), f"{member} {identifier}"))
    for (member, identifier), (key, began) in opened.items():
        killed = [at for name, at in kills if name == member and at >= began]
        end = min(killed, default=last or began)
        spans[key].append((began, end, f"{member} {identifier}"))
    return [line for key, runs in spans.items() for line in _overlaps(key, sorted(runs))]


def _overlaps(key: str, runs: Sequence[tuple[datetime, datetime, str]]) -> list[str]:
    return [
        f"{key}: {second[2]} began before {first[2]} ended"
        for first, second in pairwise(runs)
        if second[0] < first[1]
    ]


def first_led(
    lines: Iterable[tuple[str, Mapping[str, object]]], name: str, born: datetime
) -> datetime | None:
    """Return when the member *name* that started at *born* led for the first time, None if never.

    A leader remembers what it applied, so it needs more memory than a standby from then on.
    """
    times = (moment(str(line["ts"])) for who, line in lines if _begins_to_lead(who, line, name))
    return min((at for at in times if at >= born), default=None)


def _begins_to_lead(who: str, line: Mapping[str, object], name: str) -> bool:
    return who == name and line.get("msg") == "leading" and "ts" in line


def slope(samples: Sequence[tuple[float, float]], *, after: float) -> float | None:
    """Return MiB per minute by least squares, of the samples older than *after* seconds.

    None when less than five minutes are left: noise alone would make a slope of those.
    """
    points = [(age / 60, mib) for age, mib in samples if age >= after]
    if len(points) < 3 or points[-1][0] - points[0][0] < _WINDOW_MINUTES:  # noqa: PLR2004
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
