# SPDX-License-Identifier: Apache-2.0
"""What the containers of one pod have been through, as the runner that ran them remembers it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from hack.podrunner import termination
from hack.podrunner.pod import ContainerState, ContainerStatus, Running, Terminated, Waiting

if TYPE_CHECKING:
    from hack.podrunner.backoff import Backoff
    from hack.podrunner.launch import Launch
    from hack.podrunner.pod import Container, Pod

CREATING = "ContainerCreating"
CRASH_LOOP = "CrashLoopBackOff"
_LOST = Terminated(
    exit_code=137,
    reason="ContainerStatusUnknown",
    message="The container could not be located: the pod runner that ran it is gone.",
)


def now() -> datetime:
    """Return the time for statuses."""
    return datetime.now(UTC)


@dataclass(slots=True)
class ContainerRecord:
    """Follow one container; `process` is the name of its live process, empty for none."""

    name: str
    image: str
    falls_back: bool
    process: str = ""
    launch: Launch | None = None
    state: ContainerState = field(
        default_factory=lambda: ContainerState(waiting=Waiting(reason=CREATING))
    )
    last: ContainerState = field(default_factory=ContainerState)
    restarts: int = 0
    runs: int = 0
    ready: bool = False
    failed_probes: int = 0
    due: float = 0.0
    """When it may start next, by the runner's monotonic clock, as is `_begun`."""
    crashes: int = 0
    """How often it ended in a row."""
    _begun: float = 0.0
    _log_start: int = 0

    @classmethod
    def of(cls, container: Container, known: ContainerStatus | None) -> Self:
        """Begin with what the status says; a process that it says runs is gone with its runner."""
        falls_back = container.termination_message_policy == "FallbackToLogsOnError"
        record = cls(container.name, container.image, falls_back)
        if known is None:
            return record
        state = known.state
        if state.running is not None:
            lost = {"started_at": state.running.started_at, "finished_at": now()}
            state = ContainerState(terminated=_LOST.model_copy(update=lost))
        return replace(record, state=state, last=known.last_state, restarts=known.restart_count)

    @property
    def has_run(self) -> bool:
        """Tell whether it ever ran."""
        return self.process != "" or self.ended is not None

    @property
    def ended(self) -> Terminated | None:
        """Return how its latest run ended; None while it runs."""
        if self.process:
            return None
        return self.state.terminated or self.last.terminated

    def wait(self, reason: str, message: str = "") -> None:
        """Say why it does not run."""
        if self.state.terminated is not None:
            self.last = self.state
        self.state = ContainerState(waiting=Waiting(reason=reason, message=message))

    def begin(self, process: str, launch: Launch, *, clock: float) -> None:
        """Say that it runs from now on; its log goes on where it is."""
        if self.has_run:
            self.restarts += 1
        self.runs += 1
        if self.state.terminated is not None:
            self.last = self.state
        self.process, self.launch = process, launch
        self.ready, self.failed_probes = False, 0
        self.state = ContainerState(running=Running(started_at=now()))
        self._begun, self._log_start = clock, termination.size(launch.log)

    def end(
        self, code: int, *, backoff: Backoff, clock: float, reason: str = "", text: str = ""
    ) -> None:
        """Say that its process ended with *code*, and when it may start again."""
        started = self.state.running.started_at if self.state.running is not None else None
        if not text and self.launch is not None:
            text = termination.message(
                self.launch.message,
                self.launch.log,
                since=self._log_start,
                falls_back=self.falls_back and code != 0,
            )
        self.process, self.ready = "", False
        reason = reason or ("Error" if code else "Completed")
        self.state = ContainerState(
            terminated=Terminated(
                exit_code=code, reason=reason, message=text, started_at=started, finished_at=now()
            )
        )
        self.crashes = 1 if clock - self._begun > backoff.forgets_after else self.crashes + 1
        self.due = clock + backoff.wait(self.crashes)

    def status(self) -> ContainerStatus:
        """Return what the pod's status says of it."""
        runs = self.process != ""
        return ContainerStatus(
            name=self.name,
            image=self.image,
            ready=self.ready,
            started=runs,
            restart_count=self.restarts,
            state=self.state,
            last_state=self.last,
        )


@dataclass(slots=True)
class PodRecord:
    """Follow one pod; `kill_at` is when what runs of it is killed, by the monotonic clock."""

    uid: str
    containers: dict[str, ContainerRecord]
    start_time: datetime
    kill_at: float | None = None
    is_removed: bool = False

    @classmethod
    def of(cls, pod: Pod) -> Self:
        """Begin with what the pod's status says."""
        known = {status.name: status for status in pod.status.container_statuses}
        containers = {c.name: ContainerRecord.of(c, known.get(c.name)) for c in pod.spec.containers}
        return cls(pod.metadata.uid, containers, pod.status.start_time or now())

    @property
    def alive(self) -> list[str]:
        """Return the names of its live processes."""
        return [c.process for c in self.containers.values() if c.process]
