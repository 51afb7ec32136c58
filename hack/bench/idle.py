# SPDX-License-Identifier: Apache-2.0
"""The idle manager over Models that nobody asks for, and how long it takes to start.

Ours is `flexinfer manager` as it is deployed, without leader election; the Go peer holds the same
informers. Both serve metrics and probes, and use the manager's own service account.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from api.flexinfer.v1alpha2.model_types import Model
from flexinfer.envtest.ports import LOOPBACK, free_ports
from flexinfer.errors import FlexInferError
from hack.bench import fixture, measure
from hack.bench.peers import OURS
from hack.bench.process import Process, running
from hack.bench.results import Cost, Row, medians
from hack.bench.works import say, turn
from hack.localcluster import local
from hack.localcluster.processes import http_get

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree
    from hack.bench.peers import Subject
    from hack.bench.works import World

NAMESPACE = "default"
QUIET_SECONDS = 30.0
_READY_WITHIN = 120.0
_QUIET_WITHIN = 180.0
_IDLE_WITHIN = 300.0
_OK = 200
# A process is quiet when it took less than this share of a core in each of so many seconds.
_QUIET_SHARE, _QUIET_FOR = 0.03, 5
_CONTROLLERS = "kube-controller-manager"
_PATH = Model.resource.collection_path(NAMESPACE)


def model(number: int) -> Tree:
    """Return a Model that is idle from the start: no GPU, no cache, scaled to zero."""
    return {
        "apiVersion": Model.resource.api_version,
        "kind": Model.resource.kind,
        "metadata": {"name": f"model-{number:04d}", "namespace": NAMESPACE},
        "spec": {
            "backend": "llamacpp",
            "source": "HF://ggml-org/models",
            "cache": {"strategy": "None"},
            "config": {"ggufFile": "tiny.gguf"},
        },
    }


@dataclass(frozen=True, slots=True)
class Managers:
    """How the managers of one world are started; `account` is the folder of their account."""

    plane: ControlPlane
    account: Path
    count: int

    @contextmanager
    def started(self, subject: Subject) -> Iterator[tuple[Process, str]]:
        """Start the manager of *subject*; give it and the URL that says when it is ready."""
        metrics, probes = (f"{LOOPBACK}:{port}" for port in free_ports(2))
        environment = {"METRICS_ADDRESS": metrics, "PROBE_ADDRESS": probes}
        argv = subject.argv("idle", self.account, self.plane.url, self.count)
        if subject.name == OURS:
            argv = [
                *(_script(), "manager", "--log-format=json"),
                f"--metrics-bind-address={metrics}",
                f"--health-probe-bind-address={probes}",
                f"--service-account-dir={self.account}",
                f"--server={self.plane.url}",
            ]
        with running(argv, environment) as process:
            yield process, f"http://{probes}/readyz"


def _script() -> str:
    return str(Path(sys.executable).with_name("flexinfer"))


@contextmanager
def managers(world: World, ours: Subject, count: int) -> Iterator[Managers]:
    """Make *count* idle Models with all that is made for them, by one run of our manager.

    kube-controller-manager runs for that time only, so that nothing moves afterwards.
    """
    plane = world.plane
    say(f"Making {count} idle Models")
    local.install(plane)
    account = world.folder.with_name("manager")
    plane.write_service_account(account, local.NAMESPACE, local.SERVICE_ACCOUNT)
    anyio.run(fixture.create_all, world.folder, plane.url, Model.resource, range(count), model)
    prepared = Managers(plane, account, count)
    plane.processes.start(_CONTROLLERS)
    with prepared.started(ours) as (process, url):
        _wait_ready(process, url)
        _wait_all_idle(plane, process, count)
        _wait_quiet(process)
    plane.processes.stop(_CONTROLLERS)
    yield prepared


def _wait_all_idle(plane: ControlPlane, process: Process, count: int) -> None:
    deadline = time.monotonic() + _IDLE_WITHIN
    while time.monotonic() < deadline:
        process.check()
        found = plane.admin.get(_PATH)["items"]
        idle = [m for m in found if m.get("status", {}).get("phase") == "Idle"]
        if len(idle) == count:
            return
        say(f"{len(idle)} of {count} are idle")
        time.sleep(3)
    raise FlexInferError(f"not all Models were idle within {_IDLE_WITHIN:g} s")


def _wait_ready(process: Process, url: str) -> float:
    """Return when `/readyz` first said yes, by `time.perf_counter`, within some 5 ms."""
    deadline = process.started + _READY_WITHIN
    while time.perf_counter() < deadline:
        if http_get(url)[0] == _OK:
            return time.perf_counter()
        process.check()
        time.sleep(0.005)
    raise FlexInferError(f"{url} did not say yes within {_READY_WITHIN:g} s")


def _wait_quiet(process: Process) -> None:
    deadline = time.monotonic() + _QUIET_WITHIN
    quiet = 0
    while quiet < _QUIET_FOR:
        process.check()
        if time.monotonic() > deadline:
            raise FlexInferError(f"the manager was not quiet within {_QUIET_WITHIN:g} s")
        before = measure.cpu_seconds(process.pid)
        time.sleep(1)
        share = measure.cpu_seconds(process.pid) - before
        quiet = quiet + 1 if share < _QUIET_SHARE else 0


def start(managers: Managers, subject: Subject) -> Cost:
    """Return what it costs until a manager is ready; the memory is that at the end."""
    with managers.started(subject) as (process, url):
        ready = _wait_ready(process, url) - process.started
        cpu, rss = measure.cpu_seconds(process.pid), measure.rss_mib(process.pid)
        return Cost(ready, cpu, rss, rss)


def quiet(managers: Managers, subject: Subject, seconds: float) -> Cost:
    """Return what *seconds* of quiet cost; the memory is that at their end."""
    with managers.started(subject) as (process, url):
        _wait_ready(process, url)
        _wait_quiet(process)
        before, began = measure.cpu_seconds(process.pid), time.perf_counter()
        time.sleep(seconds)
        process.check()
        cpu = measure.cpu_seconds(process.pid) - before
        rss = measure.rss_mib(process.pid)
        return Cost(time.perf_counter() - began, cpu, rss, rss)


def rows(
    managers: Managers, subjects: Sequence[Subject], *, rounds: int, seconds: float
) -> list[Row]:
    """Measure every manager in turn, the starts thrice as often; return rows of medians."""
    found: list[Row] = []
    for number in range(3 * rounds):
        for subject in turn(subjects, number):
            cost = start(managers, subject)
            found.append(Row("startup", subject.name, managers.count, cost))
            say(
                f"startup, round {number + 1} of {3 * rounds}, {subject.name}: {cost.wall_s:.2f} s "
                f"wall, {cost.cpu_s:.2f} s CPU"
            )
    for number in range(rounds):
        for subject in turn(subjects, number):
            cost = quiet(managers, subject, seconds)
            found.append(Row("idle", subject.name, managers.count, cost))
            say(
                f"idle, round {number + 1} of {rounds}, {subject.name}: "
                f"{cost.cpu_s / cost.wall_s:.2%} CPU, {cost.rss_mib:.1f} MiB"
            )
    return medians(found)


def help_rows(rounds: int) -> list[Row]:
    """Return what `flexinfer manager --help` costs, and what `python -c pass` does, in turn."""
    commands = {
        OURS: [_script(), "manager", "--help"],
        "python -c pass": [sys.executable, "-c", "pass"],
    }
    return medians(
        Row("help", name, 1, measure.command(argv))
        for _ in range(rounds)
        for name, argv in commands.items()
    )
