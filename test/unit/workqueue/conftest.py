# SPDX-License-Identifier: Apache-2.0
"""Work queues on a clock that a test moves by hand."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest
from prometheus_client import CollectorRegistry

from flexinfer.envtest.clock import ManualClock
from flexinfer.workqueue import RateLimiter, WorkQueue


class Queue(WorkQueue[Hashable]):
    """A queue that can be emptied by one worker."""

    async def drain(self) -> list[Hashable]:
        keys = []
        while len(self):
            key, _ = await self.get()
            self.done(key)
            keys.append(key)
        return keys


MakeQueue = Callable[..., Queue]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make_queue(clock: ManualClock) -> MakeQueue:
    """Give a function that makes a queue, on *clock* unless it is given another."""

    def make(
        limiter: RateLimiter[Hashable] | None = None, *, clock: Callable[[], float] = clock
    ) -> Queue:
        return Queue("test", clock=clock, rate_limiter=limiter, registry=CollectorRegistry())

    return make
