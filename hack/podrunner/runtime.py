# SPDX-License-Identifier: Apache-2.0
"""The processes of containers, all children of one supervisor apart.

The supervisor is `flexinfer.envtest.supervisor`: when the runner goes, however it goes, it ends
every container with its process group. A lock in the folder is held until it has, so that the
next runner on this folder never runs a container beside the last one's.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from flexinfer import log
from flexinfer.envtest import supervisor
from flexinfer.errors import ConfigurationError, FlexInferError

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from anyio.abc import ByteReceiveStream, ByteSendStream

    from flexinfer.meta.envelope import Tree
    from hack.podrunner.launch import Launch

_ANSWER_TIMEOUT = 10.0
# The last runner's containers have the supervisor's grace, and a killed machine's worth on top.
_LOCK_TIMEOUT = supervisor.GRACE + 10.0
_LOCK_EVERY = 0.05
_LONGEST_LINE = 1 << 20
_log = log.get_logger(__name__)


class StartError(FlexInferError):
    """Report a command that cannot be started, such as a program that is not there."""


@dataclass(slots=True)
class _Answer:
    came: anyio.Event = field(default_factory=anyio.Event)
    content: Tree = field(default_factory=dict)


class Runtime:
    """Start, signal and mourn processes by name; at most *limit* at once.

    *on_exit* is called with the name and the exit code of each that ended: 128 and the number of
    the signal when one ended it. It is called from the event loop and must not wait.
    """

    def __init__(
        self, commands: ByteSendStream, *, limit: int, on_exit: Callable[[str, int], None]
    ) -> None:
        self.limit = limit
        self._commands = commands
        self._on_exit = on_exit
        self._sending = anyio.Lock()
        self._numbers = itertools.count()
        self._answers: dict[int, _Answer] = {}
        self._alive: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Tell whether no further process may be started now."""
        return len(self._alive) >= self.limit

    async def start(self, name: str, launch: Launch) -> None:
        """Start a process; raise StartError when it cannot be."""
        # Counted before the answer, so that two at once do not share the last place.
        self._alive.add(name)
        answer = await self._ask(
            do="start",
            name=name,
            argv=launch.argv,
            env=launch.environment,
            cwd=str(launch.folder),
            log=str(launch.log),
        )
        if "error" in answer:
            self._alive.discard(name)
            raise StartError(answer["error"])
        _log.info("container started", process=name, pid=answer["pid"])

    async def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process and its group; nothing happens when it has ended."""
        await self._ask(do="signal", name=name, signal=int(number))

    async def read(self, answers: ByteReceiveStream) -> None:
        """Hear what the supervisor says; raise FlexInferError when it is gone."""
        lines = BufferedByteReceiveStream(answers)
        try:
            while True:
                self._hear(json.loads(await lines.receive_until(b"\n", _LONGEST_LINE)))
        except (anyio.IncompleteRead, anyio.BrokenResourceError) as error:
            raise FlexInferError("the supervisor of the containers ended by itself") from error

    def _hear(self, message: Tree) -> None:
        if "exited" not in message:
            if (answer := self._answers.get(message["id"])) is not None:
                answer.content = message
                answer.came.set()
            return
        name, code = message["exited"], message["code"]
        code = 128 - code if code < 0 else code
        self._alive.discard(name)
        _log.info("container ended", process=name, code=code)
        self._on_exit(name, code)

    async def _ask(self, **command: object) -> Tree:
        number = next(self._numbers)
        answer = self._answers[number] = _Answer()
        line = json.dumps({"id": number, **command}).encode() + b"\n"
        try:
            with anyio.fail_after(_ANSWER_TIMEOUT):
                async with self._sending:
                    await self._commands.send(line)
                await answer.came.wait()
        finally:
            del self._answers[number]
        return answer.content


@asynccontextmanager
async def open_runtime(
    folder: Path, *, limit: int, on_exit: Callable[[str, int], None]
) -> AsyncIterator[Runtime]:
    """Run a supervisor for the block; every process has ended when it is left.

    Raises ConfigurationError when another runner keeps the folder.
    """
    lock = await _lock(folder)
    try:
        async with await anyio.open_process(
            [sys.executable, "-P", supervisor.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            start_new_session=True,
            pass_fds=(lock,),
        ) as process:
            if process.stdin is None or process.stdout is None:
                raise AssertionError("unreachable: pipes were asked for")
            runtime = Runtime(process.stdin, limit=limit, on_exit=on_exit)
            async with anyio.create_task_group() as group:
                group.start_soon(runtime.read, process.stdout)
                yield runtime
                group.cancel_scope.cancel()
    finally:
        os.close(lock)


async def _lock(folder: Path) -> int:
    """Return a descriptor that holds the lock for as long as it, or a copy of it, is open."""
    descriptor = _lock_file(folder)
    try:
        with anyio.fail_after(_LOCK_TIMEOUT):
            while not _try_lock(descriptor):  # noqa: ASYNC110 - no event tells of a lock
                await anyio.sleep(_LOCK_EVERY)
    except TimeoutError as error:
        os.close(descriptor)
        raise ConfigurationError(
            f"{folder} is kept by another pod runner: end that one, or name another folder"
        ) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock_file(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / "lock", os.O_CREAT | os.O_RDWR)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
