# SPDX-License-Identifier: Apache-2.0
"""`make soak`: build a world, break it for a while, let it heal, and judge."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import TYPE_CHECKING

from flexinfer.envtest.controlplane import ControlPlane, Options
from flexinfer.errors import ApiError, TransportError
from hack.localcluster import local
from hack.soak import oracle, witness
from hack.soak.chaos import Chaos
from hack.soak.crew import Crew, Member
from hack.soak.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_USER = f"system:serviceaccount:{local.NAMESPACE}:{local.SERVICE_ACCOUNT}"
_NODES = 8
_EDITS_PER_SECOND = 10.0
_SECONDS_PER_STRIKE = 12.0
_HEAL_WITHIN = 300.0
_SETTLE_AFTER = 120.0
_MOST_MIB_PER_MINUTE = 1.0


def main() -> int:
    """Run the soak; 0 when nothing was found wrong."""
    arguments = _arguments()
    rng = random.Random(arguments.seed)  # noqa: S311 - a repeatable choice, no secret
    options = Options(apiserver_flags=("--audit-log-maxsize=4096",))
    with ControlPlane.start(options=options) as plane:
        local.install(plane)
        folder = plane.layout.folder / "serviceaccount"
        plane.write_service_account(folder, local.NAMESPACE, local.SERVICE_ACCOUNT)
        nodes = [plane.add_node("cpu", zone=f"zone-{number % 3}") for number in range(_NODES)]
        crew = Crew(plane, folder, count=arguments.managers)
        world = World(plane.admin, rng)
        _say(f"Creating {arguments.models} Models")
        for number in range(arguments.models):
            world.create(f"model-{number:05d}")
        _wait_right(plane, world, within=_HEAL_WITHIN)
        chaos = Chaos(plane, crew, world, nodes, rng)
        _break(plane, crew, world, chaos, minutes=arguments.minutes)
        _say("Healing")
        _retry(chaos.heal)
        _retry(world.assert_all)
        faults = _wait_right(plane, world, within=_HEAL_WITHIN)
        return _judge(plane, crew, world, chaos, faults)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long things go wrong")
    parser.add_argument("--models", type=int, default=2000, help="how many Models there are")
    parser.add_argument("--managers", type=int, default=3, help="how many managers compete")
    parser.add_argument("--seed", type=int, default=1, help="what to choose the same again by")
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"==> {text}", flush=True)


def _retry(write: Callable[[], object]) -> None:
    """Do *write* again while the API server is on its way back."""
    deadline = time.monotonic() + 60
    while True:
        try:
            write()
        except (ApiError, TransportError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _break(plane: ControlPlane, crew: Crew, world: World, chaos: Chaos, *, minutes: float) -> None:
    """Edit all the time, strike now and then, and note the managers' memory."""
    end = time.monotonic() + minutes * 60
    next_strike = next_sample = time.monotonic()
    while (now := time.monotonic()) < end:
        if now >= next_sample:
            crew.sample()
            next_sample = now + 5
        if now >= next_strike:
            left = (end - now) / 60
            _say(f"{left:.1f} min left, {world.edits} edits: {chaos.strike()}")
            next_strike = time.monotonic() + _SECONDS_PER_STRIKE
        _retry(world.edit)
        time.sleep(1 / _EDITS_PER_SECOND)
    plane.wait_ready(within=60)


def _wait_right(plane: ControlPlane, world: World, *, within: float) -> list[str]:
    """Wait until every object is in its right state; return what is not in the end."""
    deadline = time.monotonic() + within
    while True:
        faults = oracle.faults(plane.admin, world)
        if not faults or time.monotonic() > deadline:
            return faults
        time.sleep(1)


def _judge(plane: ControlPlane, crew: Crew, world: World, chaos: Chaos, faults: list[str]) -> int:
    """Print the figures and what was found wrong; return the exit code."""
    events = plane.audit().by(_USER)
    elected = witness.terms(events)
    lines = crew.lines()
    everyone = (*crew.past, *crew.members.values())
    slopes = {
        f"{member.name} ({member.pid})": value
        for member in everyone
        if (value := _slope(member, lines)) is not None
    }
    steep = [
        f"{name}: {mib:.2f} MiB/min" for name, mib in slopes.items() if mib > _MOST_MIB_PER_MINUTE
    ]
    found = {
        "objects not in their right state": faults,
        "writes of a leader after its successor began": witness.late_writes(events, elected),
        "keys reconciled twice at once": witness.double_work(lines, crew.kills, crew.pauses),
        "managers whose memory grows": steep,
        "memory that could not be measured": [] if slopes else ["no manager lived long enough"],
    }
    figures = {
        "models": len(world.wishes),
        "edits": world.edits,
        "strikes": chaos.counts,
        "terms": len(elected),
        "reconciles": sum(line.get("msg") == "reconciling" for _, line in lines),
        "writes": len(
            events.writes().by(f"system:serviceaccount:{local.NAMESPACE}:{local.SERVICE_ACCOUNT}")
        ),
        "mib_per_minute": {name: round(mib, 3) for name, mib in slopes.items()},
        "peak_mib": round(
            max(mib for m in (*crew.past, *crew.members.values()) for _, mib in m.rss), 1
        ),
        "found": {what: len(problems) for what, problems in found.items()},
    }
    print(json.dumps(figures, indent=2))
    for what, problems in found.items():
        for problem in problems[:20]:
            print(f"{what}: {problem}")
    return 1 if any(found.values()) else 0


def _slope(member: Member, lines: Sequence[tuple[str, dict[str, object]]]) -> float | None:
    """Return how fast a member's memory grows, two minutes after it started, and first led."""
    led = witness.first_led(lines, member.name, member.born)
    led_at = (led - member.born).total_seconds() if led else 0.0
    return witness.slope(member.rss, after=led_at + _SETTLE_AFTER)


sys.exit(main())
