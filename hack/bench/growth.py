# SPDX-License-Identifier: Apache-2.0
"""`make bench-growth`: what one more object costs, at three sizes of sync and of reconcile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hack.bench import works
from hack.bench.results import medians
from hack.bench.works import in_turn, say, turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    """Measure every subject at every size in each round; return medians.

    Round by round and not size by size: a machine that is slower for a minute would show as growth.
    The largest reconcile, which takes minutes, has its place in the middle round alone.
    """
    found: list[Row] = []
    for number in range(rounds):
        say(f"Round {number + 1} of {rounds}")
        sizes = reconcile if number == rounds // 2 else reconcile[:-1]
        found += _reconciled(world, turn(subjects, number), sizes)
        found += _synced(world, turn(subjects, number), sync)
    return sorted(medians(found), key=lambda row: (row.work, row.n))


def _reconciled(world: World, subjects: Sequence[Subject], sizes: Sequence[int]) -> Iterator[Row]:
    for count in sizes:
        yield from in_turn(world, works.reconcile, subjects, count, rounds=1)


def _synced(world: World, subjects: Sequence[Subject], sizes: Sequence[int]) -> Iterator[Row]:
    world.renew(0)
    last = 0
    for count in sizes:
        say(f"Creating {count - last} objects more")
        world.populate(range(last, count))
        last = count
        yield from in_turn(world, works.sync, subjects, count, rounds=1)
