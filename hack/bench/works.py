# SPDX-License-Identifier: Apache-2.0
"""Sync, reconcile and watch: the world of each, one run of a subject, and the look afterwards."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import anyio

from hack.bench import fixture, process, verify
from hack.bench.results import Cost, Row, medians

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from flexinfer.envtest.controlplane import ControlPlane
    from hack.bench.peers import Subject

ROUNDS_OF_WATCH = 20
_CHUNK = 10_000


def say(text: str) -> None:
    """Tell the person who waits what is being done."""
    print(f"==> {text}", flush=True)


@dataclass(frozen=True, slots=True)
class World:
    """The API server that all subjects work on, and what was left there by who came first.

    `folder` holds the service account of the subjects.
    """

    plane: ControlPlane
    folder: Path
    _digests: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)

    def populate(self, numbers: range) -> None:
        """Create the Items of these numbers."""
        for first in range(numbers.start, numbers.stop, _CHUNK):
            chunk = range(first, min(first + _CHUNK, numbers.stop))
            anyio.run(fixture.populate, self.folder, self.plane.url, chunk)
            if chunk.stop < numbers.stop:
                say(f"Created {chunk.stop}")

    def renew(self, count: int) -> None:
        """Make the world of *count* new Items and no child."""
        fixture.clear(self.plane)
        self.populate(range(count))

    def agree(self, work: str, count: int, subject: str, digest: str) -> None:
        """Raise VerificationError when two subjects left different states behind."""
        first, found = self._digests.setdefault((work, count), (subject, digest))
        if found != digest:
            raise verify.VerificationError(f"{work}: {first} and {subject} left different states")


def _within(count: int) -> float:
    """Return how many seconds so many objects, or updates, may take: ten times what they do."""
    return 60 + count / 50


def sync(world: World, subject: Subject, count: int) -> Cost:
    """List the Items that are there; the subject itself counts them."""
    argv = subject.argv("sync", world.folder, world.plane.url, count)
    return process.measured(argv, within=_within(count))


def reconcile(world: World, subject: Subject, count: int) -> Cost:
    """Reconcile *count* new Items and look at each of them, and at its child, afterwards."""
    world.renew(count)
    argv = subject.argv("reconcile", world.folder, world.plane.url, count)
    cost = process.measured(argv, within=_within(count))
    found = verify.reconciled(
        fixture.items(world.plane), fixture.children(world.plane), count=count
    )
    world.agree("reconcile", count, subject.name, found)
    return cost


def watch(world: World, subject: Subject, count: int) -> Cost:
    """Watch *count* new Items while another process writes to them."""
    world.renew(count)
    argv = subject.argv("watch", world.folder, world.plane.url, count)
    arguments = (str(ROUNDS_OF_WATCH), str(world.folder), world.plane.url, str(count))
    writer = (sys.executable, "-m", "hack.bench.writer", *arguments)
    cost = process.measured(argv, within=_within(count * ROUNDS_OF_WATCH), beside=writer)
    world.agree(
        "watch", count, subject.name, verify.watched(fixture.items(world.plane), count=count)
    )
    return cost


Work: TypeAlias = "Callable[[World, Subject, int], Cost]"


def turn(subjects: Sequence[Subject], number: int) -> Sequence[Subject]:
    """Return the subjects as one round takes them.

    Each round begins with the next one: what one leaves to the API server, another inherits.
    """
    first = number % len(subjects)
    return (*subjects[first:], *subjects[:first])


def in_turn(
    world: World, work: Work, subjects: Sequence[Subject], count: int, *, rounds: int
) -> list[Row]:
    """Measure every subject once in each round, in turn; return a row of medians for each."""
    name = work.__name__
    n = count * ROUNDS_OF_WATCH if work is watch else count
    found: list[Row] = []
    for number in range(rounds):
        for subject in turn(subjects, number):
            cost = work(world, subject, count)
            found.append(Row(name, subject.name, n, cost))
            say(
                f"{name} of {count}, round {number + 1} of {rounds}, {subject.name}: "
                f"{cost.wall_s:.2f} s wall, {cost.cpu_s:.3f} s CPU, {cost.rss_mib:.1f} MiB"
            )
    return medians(found)
