# SPDX-License-Identifier: Apache-2.0
"""The records of a queue and what moves them from state to state; no clock, no waiting.

```
            add                    pop
 (none) ───────────▶ READY ───────────────▶ PROCESSING ──── done ──▶ (none)
    │                  ▲ ▲                     │     │
    │ add_after   due, │ │ done            add │     │ add_after
    ▼             add  │ │                     ▼     ▼
 DELAYED ──────────────┘ └──────────────── DIRTY ◀── PROCESSING_DELAYED
    ▲                                       due, add      │ done
    └─────────────────────────────────────────────────────┘
```

A record exists only while its key is in one of these states.

Order: a priority is a head start. Every point is worth `AGEING` seconds of waiting, so the key that
is handed out next is the one with the smallest `ready time - priority * AGEING`, and among equals
the one that came first. That number never changes while a key waits, all keys ageing alike, so a
plain heap keeps the order; and no key starves, as a newer one of higher priority can overtake it
only for that many seconds.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from flexinfer.workqueue.metrics import QueueMetrics

__all__ = ["AGEING", "LOW_PRIORITY", "Item", "QueueState"]

K = TypeVar("K", bound="Hashable")

LOW_PRIORITY = -100
"""Of keys from an initial list or a resync; controller-runtime's figure."""

AGEING = 10.0
"""Seconds of waiting that one point of priority is worth.

A key of LOW_PRIORITY gives way to live changes for 1000 s, which is also the longest backoff.
"""

_COMPACT_ABOVE = 64


class Phase(Enum):
    """Be where a record is; see the picture above."""

    READY = auto()
    DELAYED = auto()
    PROCESSING = auto()
    DIRTY = auto()
    PROCESSING_DELAYED = auto()


# Members as globals: Python 3.11 reads an attribute of an Enum class ten times slower.
READY, DELAYED, PROCESSING, DIRTY, PROCESSING_DELAYED = Phase


class Item(NamedTuple, Generic[K]):
    """Be a key that was handed out, with the priority it had."""

    key: K
    priority: int


class Record(Generic[K]):
    """Be what a queue knows of one key.

    `ready_at` is when it became ready or will, `dirty_since` when it came to need a run, and
    `entry` the number of its one valid entry in a heap, 0 if it has none.
    """

    __slots__ = ("dirty_since", "entry", "key", "phase", "priority", "ready_at", "started_at")

    def __init__(self, key: K, phase: Phase, priority: int, ready_at: float) -> None:
        self.key = key
        self.phase = phase
        self.priority = priority
        self.ready_at = self.dirty_since = self.started_at = ready_at
        self.entry = 0


class Agenda(Generic[K]):
    """Be a heap of records whose entries go stale instead of being searched for.

    An entry counts only while its number is the record's. The heap is rebuilt when most of it is
    stale, so its size stays in proportion to its records, at a constant cost for each operation.
    """

    __slots__ = ("_heap", "_numbers", "_stale")

    def __init__(self, numbers: Iterator[int]) -> None:
        self._heap: list[tuple[float, int, Record[K]]] = []
        self._numbers = numbers
        self._stale = 0

    def __len__(self) -> int:
        return len(self._heap) - self._stale

    def push(self, order: float, record: Record[K]) -> None:
        """Put *record* in, behind what has the same *order*."""
        record.entry = number = next(self._numbers)
        heappush(self._heap, (order, number, record))

    def discard(self, record: Record[K]) -> None:
        """Take out *record*, wherever it is."""
        record.entry = 0
        self._stale += 1
        if self._stale > max(_COMPACT_ABOVE, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[1]]
            heapify(self._heap)
            self._stale = 0

    def first(self) -> float:
        """Return the smallest order, infinity when there is no record."""
        heap = self._heap
        while heap:
            order, number, record = heap[0]
            if record.entry == number:
                return order
            heappop(heap)
            self._stale -= 1
        return math.inf

    def pop(self) -> Record[K]:
        """Take out the record of the smallest order; there must be one."""
        while True:
            _, number, record = heappop(self._heap)
            if record.entry == number:
                record.entry = 0
                return record
            self._stale -= 1

    def clear(self) -> None:
        """Take out everything."""
        self._heap.clear()
        self._stale = 0


class QueueState(Generic[K]):
    """Hold the records; every method takes the time *now*, which must not go backwards."""

    def __init__(self, metrics: QueueMetrics) -> None:
        numbers = count(1)
        self._records: dict[K, Record[K]] = {}
        self._ready: Agenda[K] = Agenda(numbers)
        self._delayed: Agenda[K] = Agenda(numbers)
        self._processing: set[Record[K]] = set()
        self._metrics = metrics
        # Not later than the earliest delay: one comparison tells that there is nothing to promote.
        self._check_at = math.inf

    def __len__(self) -> int:
        """Return the number of ready keys, as of the last `promote`."""
        return len(self._ready)

    @property
    def is_idle(self) -> bool:
        """Say whether no key is ready and none is processed."""
        return not self._processing and not self._ready

    def add(self, key: K, now: float, priority: int) -> None:
        """Ask for a run of *key* as soon as possible."""
        if now >= self._check_at:
            self.promote(now)
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = Record(key, READY, priority, now)
            self._metrics.added(priority)
            self._ready.push(now - priority * AGEING, record)
        else:
            self._merge(record, now, now, priority)

    def add_after(self, key: K, now: float, delay: float, priority: int) -> None:
        """Ask for a run of *key* no later than *delay* seconds, above 0, from now."""
        if now >= self._check_at:
            self.promote(now)
        due = now + delay
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = Record(key, DELAYED, priority, due)
            self._delay(record, due)
        else:
            self._merge(record, now, due, priority)

    def pop(self, now: float) -> Item[K] | None:
        """Hand out the next key, or None when none is ready."""
        if now >= self._check_at:
            self.promote(now)
        if not self._ready:
            return None
        record = self._ready.pop()
        record.phase = PROCESSING
        record.started_at = now
        self._processing.add(record)
        self._metrics.taken(record.priority, now - record.dirty_since)
        return Item(record.key, record.priority)

    def done(self, key: K, now: float) -> None:
        """End the run of *key*; if it became dirty meanwhile it goes to the tail."""
        if now >= self._check_at:
            self.promote(now)
        record = self._records.get(key)
        if record is None or record not in self._processing:
            return
        self._processing.remove(record)
        self._metrics.work_duration.observe(now - record.started_at)
        if record.phase is PROCESSING:
            del self._records[key]
        elif record.phase is DIRTY:
            record.ready_at = now
            self._line_up(record)
        else:
            record.phase = DELAYED

    def promote(self, now: float) -> None:
        """Make every delayed key whose time has come ready, or dirty if it is processed."""
        while (due := self._delayed.first()) <= now:
            self._make_due(self._delayed.pop(), due)
        self._check_at = due

    def next_due(self) -> float:
        """Return when the earliest delayed key becomes ready; infinity when there is none."""
        return self._delayed.first()

    def ages(self, now: float) -> list[float]:
        """Return for how long each key in processing has been running."""
        return [now - record.started_at for record in self._processing]

    def drop(self, now: float) -> None:
        """Forget every run that was asked for; keys in processing stay until done."""
        self.promote(now)  # so that what is dropped was counted
        self._ready.clear()
        self._delayed.clear()
        self._check_at = math.inf
        self._records = {record.key: record for record in self._processing}
        for record in self._records.values():
            record.phase = PROCESSING
        self._metrics.dropped()

    def _merge(self, record: Record[K], now: float, due: float, priority: int) -> None:
        """Add to what is already asked for: the higher priority, the earlier time."""
        if record.phase is PROCESSING:
            record.priority = priority
            if due <= now:
                self._make_due(record, now)
            else:
                record.phase = PROCESSING_DELAYED
                self._delay(record, due)
            return
        if priority > record.priority:
            self._raise(record, priority)
        if record.phase is DELAYED or record.phase is PROCESSING_DELAYED:
            if due <= now:
                self._delayed.discard(record)
                self._make_due(record, now)
            elif due < record.ready_at:
                self._delayed.discard(record)
                self._delay(record, due)

    def _delay(self, record: Record[K], due: float) -> None:
        record.ready_at = due
        self._delayed.push(due, record)
        self._check_at = min(self._check_at, due)

    def _make_due(self, record: Record[K], at: float) -> None:
        record.ready_at = record.dirty_since = at
        self._metrics.added(record.priority)
        if record.phase is DELAYED:
            self._line_up(record)
        else:
            record.phase = DIRTY

    def _line_up(self, record: Record[K]) -> None:
        record.phase = READY
        self._ready.push(record.ready_at - record.priority * AGEING, record)

    def _raise(self, record: Record[K], priority: int) -> None:
        if record.phase is READY or record.phase is DIRTY:
            self._metrics.raised(record.priority, priority)
        record.priority = priority
        if record.phase is READY:
            self._ready.discard(record)
            self._line_up(record)
