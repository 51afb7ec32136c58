# SPDX-License-Identifier: Apache-2.0
"""The process that is the parent of all processes of one control plane, and their end.

It is run by its path, needs nothing but the standard library, and starts in milliseconds. It
reads commands and writes answers as JSON lines; when its input ends, whatever became of the
writer, it ends its children (SIGTERM, then SIGKILL after a grace) and itself. Should it be killed
itself, the kernel kills its children (PR_SET_PDEATHSIG). It has one thread.

Commands, each with an `id` that its answer repeats:
`start` (name, argv, log; env and cwd unless they are ours), `signal` (name, signal), `wait` (name,
timeout), `detach` (remove: a folder to remove when all have ended; may be left out).
Unasked it says `{"exited": name, "code": …, "expected": …, "tail": …}`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

GRACE = 3.0
"""Seconds that all children together get to end by SIGTERM, before SIGKILL."""
_TICK = 0.05
_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 4000
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def tail(path: str) -> str:
    """Return the last lines of the log at *path*; empty when there is none."""
    with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 - quick start
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read().decode(errors="replace")
    return ""


@dataclass
class Child:
    """A process, and whether somebody asked for its end."""

    name: str
    log: str
    process: subprocess.Popen[bytes]
    signalled: bool = False
    waiters: list[tuple[Any, float]] = field(default_factory=list)

    def kill(self, number: int) -> None:
        """Send a signal to the child and to what it started."""
        self.signalled = self.signalled or number in {signal.SIGTERM, signal.SIGKILL}
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Supervisor:
    """Serve commands from one pipe until it closes."""

    def __init__(self) -> None:
        self._children: dict[str, Child] = {}
        self._ending = False
        self._attached = True
        self._remove: str | None = None
        self._unread = b""

    def serve(self) -> None:
        """Run until the input ends or a signal asks for the end; then end every child."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._end)
        # A terminal's Ctrl-C is for the program in front of it, which then closes the pipe.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            while not self._ending:
                if selector.select(_TICK):
                    self._read(selector)
                self._reap()
        self._end_children()
        if self._remove is not None:
            import shutil  # noqa: PLC0415 - quick start

            shutil.rmtree(self._remove, ignore_errors=True)

    def _end(self, _number: int, _frame: object) -> None:
        self._ending = True

    def _read(self, selector: selectors.BaseSelector) -> None:
        data = os.read(0, 1 << 16)
        if not data:
            selector.unregister(0)
            self._ending = self._ending or self._attached
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, command: dict[str, Any]) -> None:
        try:
            answer = getattr(self, f"_do_{command['do']}")(command)
        except (OSError, KeyError, AttributeError, subprocess.SubprocessError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        if answer is not None:
            self._say({"id": command["id"], **answer})

    def _do_start(self, command: dict[str, Any]) -> dict[str, Any]:
        name = command["name"]
        if name in self._children:
            return {"error": f"{name} runs already"}
        with open(command["log"], "ab") as log:  # noqa: PTH123 - quick start
            process = subprocess.Popen(
                command["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=command.get("env"),
                cwd=command.get("cwd"),
                process_group=0,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
            )
        self._children[name] = Child(name, command["log"], process)
        return {"pid": process.pid}

    def _do_signal(self, command: dict[str, Any]) -> dict[str, Any]:
        child = self._children.get(command["name"])
        if child is not None:
            child.kill(command["signal"])
        return {"running": child is not None}

    def _do_wait(self, command: dict[str, Any]) -> dict[str, Any] | None:
        child = self._children.get(command["name"])
        if child is None:
            return {"running": False}
        child.waiters.append((command["id"], time.monotonic() + command["timeout"]))
        return None

    def _do_detach(self, command: dict[str, Any]) -> dict[str, Any]:
        self._attached = False
        self._remove = command.get("remove")
        return {"pid": os.getpid()}

    def _reap(self) -> None:
        now = time.monotonic()
        for child in list(self._children.values()):
            code = child.process.poll()
            gone = code is not None
            over = [entry for entry in child.waiters if gone or entry[1] <= now]
            child.waiters = [entry for entry in child.waiters if entry not in over]
            if gone:
                del self._children[child.name]
                self._say(self._obituary(child, code))
                # What a child started must not outlive it.
                child.kill(signal.SIGKILL)
            for waiter, _ in over:
                self._say({"id": waiter, "running": not gone})

    @staticmethod
    def _obituary(child: Child, code: int | None) -> dict[str, Any]:
        expected = child.signalled
        return {
            "exited": child.name,
            "code": code,
            "expected": expected,
            "tail": "" if expected else tail(child.log),
        }

    def _end_children(self) -> None:
        # One after another, the last started first: kube-apiserver cannot end without etcd.
        deadline = time.monotonic() + GRACE
        for child in list(self._children.values())[::-1]:
            child.kill(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
            child.kill(signal.SIGKILL)
            child.process.wait()

    @staticmethod
    def _say(line: dict[str, Any]) -> None:
        # After the reader has gone there is nobody to tell, and the input's end says the rest.
        with contextlib.suppress(OSError):
            os.write(1, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    Supervisor().serve()
