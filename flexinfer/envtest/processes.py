# SPDX-License-Identifier: Apache-2.0
"""The processes of one control plane, as their owner sees them: start, signal, wait, close.

The work is done by `supervisor`, a process apart, so that nothing outlives its owner.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Self

import structlog

from flexinfer.envtest import supervisor
from flexinfer.errors import FlexInferError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from flexinfer.meta.envelope import Tree

__all__ = ["ProcessError", "Processes"]

_ANSWER_TIMEOUT = 10.0
# The components' start is what tests wait for; collecting less often takes a quarter off it.
_GO = {"GOGC": "200"}
_log = structlog.get_logger(__name__)


class ProcessError(FlexInferError):
    """Report a process that did not start, did not end, or ended by itself."""


class Processes:
    """Named child processes whose life ends with this object, or with this Python process.

    Methods may be called from several threads. Output of the children goes to `<name>.log` in
    the folder *logs*.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._ids = itertools.count()
        self._answers: dict[int, queue.SimpleQueue[Tree]] = {}
        self._lock = threading.Lock()
        self._obituaries: dict[str, str] = {}
        self._started: dict[str, tuple[list[str], dict[str, str]]] = {}
        logs.mkdir(parents=True, exist_ok=True)
        with self.log("supervisor").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", supervisor.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **_GO},
            )
        self._reader = threading.Thread(target=self._read, name="supervisor-reader", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def supervisor_pid(self) -> int:
        """Return the process that ends all others when it is sent SIGTERM."""
        return self._process.pid

    def log(self, name: str) -> Path:
        """Return the file that holds what *name* said."""
        return self._logs / f"{name}.log"

    def start(
        self, name: str, argv: Sequence[str] = (), *, env: Mapping[str, str] | None = None
    ) -> int:
        """Start *name* as it was started last, unless *argv* is given.

        *env* adds to the environment of this process. Returns its process id.

        Raises:
            ProcessError: It runs already, or its binary does not start.
        """
        command, more = (list(argv), dict(env or {})) if argv else self._started[name]
        self._started[name] = (command, more)
        self._obituaries.pop(name, None)
        environment = {**os.environ, **_GO, **more} if more else None
        log = str(self.log(name))
        answer = self._ask(do="start", name=name, argv=command, log=log, env=environment)
        return int(answer["pid"])

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to *name* and what it started; nothing happens when it has ended."""
        self._ask(do="signal", name=name, signal=int(number))

    def stop(self, name: str, *, grace: float = supervisor.GRACE) -> None:
        """End *name* with SIGTERM, and with SIGKILL after *grace* seconds."""
        self.send(name, signal.SIGTERM)
        if not self._wait(name, grace):
            self.kill(name)

    def kill(self, name: str) -> None:
        """End *name* at once with SIGKILL, and wait until it is gone."""
        self.send(name, signal.SIGKILL)
        if not self._wait(name, _ANSWER_TIMEOUT):
            raise ProcessError(f"{name} did not end after SIGKILL")

    def check(self) -> None:
        """Raise ProcessError with the tail of the log when a process ended by itself."""
        for obituary in self._obituaries.values():
            raise ProcessError(obituary)

    def detach(self, *, remove: Path | None = None) -> None:
        """Let all processes outlive this one; SIGTERM to `supervisor_pid` then ends them.

        The folder *remove* goes when they have ended.
        """
        self._ask(do="detach", remove=None if remove is None else str(remove))

    def close(self) -> None:
        """End every process, then the supervisor; return when all are gone. Again is harmless."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(supervisor.GRACE + _ANSWER_TIMEOUT)
        except subprocess.TimeoutExpired:
            # Its children die with it by PR_SET_PDEATHSIG.
            self._process.kill()
            self._process.wait()
        self._reader.join(_ANSWER_TIMEOUT)

    def _wait(self, name: str, timeout: float) -> bool:
        answer = self._ask(do="wait", name=name, timeout=timeout, within=timeout + _ANSWER_TIMEOUT)
        return not answer["running"]

    def _ask(self, *, within: float = _ANSWER_TIMEOUT, **command: object) -> Tree:
        number = next(self._ids)
        answers: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        self._answers[number] = answers
        line = json.dumps({"id": number, **command}).encode() + b"\n"
        try:
            with self._lock:
                assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
                self._process.stdin.write(line)
                self._process.stdin.flush()
            answer = answers.get(timeout=within)
        except (OSError, ValueError, queue.Empty) as error:
            raise ProcessError(f"The supervisor of the control plane is gone: {error!r}") from error
        finally:
            del self._answers[number]
        if "error" in answer:
            raise ProcessError(f"{command.get('name', 'supervisor')}: {answer['error']}")
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        with self._process.stdout as lines:
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, message: Tree) -> None:
        if "exited" in message:
            if not message["expected"]:
                self._mourn(message["exited"], message["code"], message["tail"])
            return
        answers = self._answers.get(message["id"])
        if answers is not None:
            answers.put(message)

    def _mourn(self, name: str, code: int, tail: str) -> None:
        _log.error("control plane process ended by itself", process=name, code=code)
        self._obituaries[name] = (
            f"{name} ended by itself with code {code}; {self.log(name)} ends with:\n{tail}"
        )
