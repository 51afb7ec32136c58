# SPDX-License-Identifier: Apache-2.0
"""The rate-limited work queue: one record per key, so nothing runs twice at once or is lost.

Knows `errors` and `metrics`, does no I/O and owns no task. The core is synchronous with an
injected clock; `WorkQueue` adds the one `async get()`.

Invariants: a key is in exactly one state (ready, delayed, processing, processing and dirty);
N adds before a get give one run, N adds during a run give exactly one more; the earliest delay
wins; a plain add makes a delayed key ready and forgets the delay; a higher priority is never
lowered by a later add; waiting raises the effective priority, so nothing starves.

- `core`: `QueueState`, the records and their transitions.
- `ratelimit`: `RateLimiter`; `ExponentialBackoff` (5 ms … 1000 s, jittered), `TokenBucket`,
  `MaxOf`.
- `metrics`: controller-runtime's names, labels and buckets.
- `queue`: `WorkQueue`.
"""

from flexinfer.workqueue.core import AGEING, LOW_PRIORITY, Item
from flexinfer.workqueue.queue import MAX_DELAY, MAX_PRIORITY, QueueShutDown, WorkQueue
from flexinfer.workqueue.ratelimit import ExponentialBackoff, MaxOf, RateLimiter, TokenBucket

__all__ = [
    "AGEING",
    "LOW_PRIORITY",
    "MAX_DELAY",
    "MAX_PRIORITY",
    "ExponentialBackoff",
    "Item",
    "MaxOf",
    "QueueShutDown",
    "RateLimiter",
    "TokenBucket",
    "WorkQueue",
]
