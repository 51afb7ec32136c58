# SPDX-License-Identifier: Apache-2.0
"""`make bench-growth`: what one more object costs, at three sizes of sync and of reconcile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hack.bench import works
from hack.bench.works import in_turn, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hack.bench.peers import Subject
    from hack.bench.results import Row
    from hack.bench.works import World

RECONCILE = (1_000, 5_000, 20_000)
SYNC = (1_000, 10_000, 50_000)


def rows(
    world: World,
    subjects: Sequence[Subject],
    *,
    reconcile: Sequence[int],
    sync: Sequence[int],
    rounds: int,
) -> list[Row]:
    """Measure every subject at every size.

    In so many rounds, that a machine that is slow for a few seconds does not show as growth; the
    largest reconcile, which takes minutes, once.
    """
    found: list[Row] = []
    for count in reconcile:
        say(f"reconcile of {count}")
        often = 1 if count == max(reconcile) else rounds
        found += in_turn(world, works.reconcile, subjects, count, rounds=often)
    world.renew(0)
    last = 0
    for count in sync:
        say(f"Creating {count - last} objects more")
        world.populate(range(last, count))
        last = count
        found += in_turn(world, works.sync, subjects, count, rounds=rounds)
    return found
