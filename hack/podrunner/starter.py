# SPDX-License-Identifier: Apache-2.0
"""Brings one container nearer to its end: starts it, starts it again, asks whether it is ready."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError
from hack.podrunner import readiness
from hack.podrunner.backoff import Backoff
from hack.podrunner.launch import launch_for
from hack.podrunner.record import CRASH_LOOP, CREATING
from hack.podrunner.refusal import LaunchError
from hack.podrunner.runtime import StartError
from hack.podrunner.status import restarts

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from flexinfer.client.protocol import Client
    from flexinfer.reconcile import Request
    from hack.podrunner.launch import Launch
    from hack.podrunner.pod import Container, Pod
    from hack.podrunner.record import ContainerRecord
    from hack.podrunner.runtime import Runtime
    from hack.podrunner.volumes import Folders

_START_ERROR = 128  # the exit code of a container that could not be started


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Be the runner's settings; raise ConfigurationError for impossible ones.

    `processes` is how many containers run at once; the others wait. `retry` is how many seconds
    a container waits that lacks something, such as a Secret or a free place.
    """

    processes: int = 16
    retry: float = 1.0
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ConfigurationError(f"processes is {self.processes}: allow at least 1 container")
        if not self.retry > 0:
            raise ConfigurationError(f"retry is {self.retry}: use a positive number of seconds")


class Starter:
    """Own which process is whose.

    *client* is asked for Secrets and claims, and must not be a cache. *enqueue* has a pod looked
    at again. `runtime` is set before the first step.
    """

    runtime: Runtime

    def __init__(
        self,
        *,
        client: Client,
        folders: Folders,
        options: RunnerOptions,
        enqueue: Callable[[Request], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._folders = folders
        self._options = options
        self._enqueue = enqueue
        self._clock = clock
        self._owners: dict[str, tuple[Request, ContainerRecord]] = {}

    async def step(self, pod: Pod, container: Container, known: ContainerRecord) -> float | None:
        """Do what is due for a container; return in how many seconds there is more to do."""
        if known.process:
            return await self._probe(container, known)
        if known.ended is not None:
            if not restarts(pod.spec.restart_policy, known.ended):
                return None
            left = known.due - self._clock()
            if left > 0:
                known.wait(CRASH_LOOP, self._backing_off(pod, known))
                return left
        try:
            launch = await self._prepare(pod, container)
        except LaunchError as error:
            known.wait(error.reason, str(error))
            return self._options.retry
        return await self._start(pod, container, known, launch)

    async def signal(self, process: str, number: signal.Signals) -> None:
        """Send a signal to a container; nothing happens when it has ended."""
        await self.runtime.signal(process, number)

    def exited(self, process: str, code: int) -> None:
        """Note that a process ended, and have its pod looked at."""
        request, known = self._owners.pop(process)
        known.end(code, backoff=self._options.backoff, clock=self._clock())
        self._enqueue(request)

    async def _prepare(self, pod: Pod, container: Container) -> Launch:
        if self.runtime.is_full:
            limit = self.runtime.limit
            raise LaunchError(CREATING, f"{limit} containers run already: one has to end first")
        return await launch_for(self._client, pod, container, self._folders)

    async def _start(
        self, pod: Pod, container: Container, known: ContainerRecord, launch: Launch
    ) -> float | None:
        process = f"{pod.key}/{container.name}/{pod.metadata.uid}/{known.runs}"
        self._owners[process] = (pod.key, known)
        known.begin(process, launch, clock=self._clock())
        try:
            await self.runtime.start(process, launch)
        except StartError as error:
            del self._owners[process]
            known.end(
                _START_ERROR,
                backoff=self._options.backoff,
                clock=self._clock(),
                reason="StartError",
                text=f"failed to start {launch.argv[0]}: {error}",
            )
            self._enqueue(pod.key)
            return None
        return await self._probe(container, known)

    async def _probe(self, container: Container, known: ContainerRecord) -> float | None:
        probe = container.readiness_probe
        if probe is None or known.launch is None:
            known.ready = bool(known.process)
            return None
        port = known.launch.port
        is_good = port is not None and await readiness.answers(probe, port)
        known.failed_probes = 0 if is_good else known.failed_probes + 1
        keeps = known.ready and known.failed_probes < probe.failure_threshold
        known.ready = bool(known.process) and (is_good or keeps)
        return probe.period_seconds

    def _backing_off(self, pod: Pod, known: ContainerRecord) -> str:
        """Say it as the kubelet does."""
        seconds = self._options.backoff.nominal(known.crashes)
        who = f"container={known.name} pod={pod.metadata.name}_{pod.metadata.namespace}"
        return f"back-off {seconds:g}s restarting failed {who}({pod.metadata.uid})"
