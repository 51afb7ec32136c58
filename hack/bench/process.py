# SPDX-License-Identifier: Apache-2.0
"""A process that keeps the subjects' protocol, from the harness's side. Every wait ends."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flexinfer.errors import FlexInferError
from hack.bench import measure
from hack.bench.results import Cost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_TAIL = 2000
_END_WITHIN = 20.0
_SAY_EVERY = 30.0
READY_WITHIN = 120.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class SubjectError(FlexInferError):
    """Say which process did not do what, and how its stderr ends."""


def _die_with_parent() -> None:
    """Let the kernel end it when the harness is killed: it would ask a gone API server for ever."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A running process; its stderr goes to a file that is shown only when it fails."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._argv = list(argv)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **(environment or {})},
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, which takes no lock
        )
        self._read = b""

    @property
    def pid(self) -> int:
        """Return its process id; it stays its own until `close`."""
        return self._process.pid

    def expect(self, word: str, *, within: float) -> float:
        """Wait for the line *word* and return when it came, by `time.perf_counter`.

        Raises SubjectError when another line, or none, came, with the tail of its stderr.
        """
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        out = self._process.stdout.fileno()
        deadline = time.perf_counter() + within
        poll = select.poll()
        poll.register(out, select.POLLIN)
        while b"\n" not in self._read:
            left = deadline - time.perf_counter()
            if left <= 0:
                raise self._failure(f"did not say {word!r} within {within:g} s")
            if not poll.poll(min(left, _SAY_EVERY) * 1000):
                if left > _SAY_EVERY:
                    print(f"==> Waiting for {word!r}", flush=True)
                continue
            found = os.read(out, 4096)
            if not found:
                raise self._failure(f"ended before it said {word!r}")
            self._read += found
        at = time.perf_counter()
        line, _, self._read = self._read.partition(b"\n")
        if line.decode(errors="replace").strip() != word:
            raise self._failure(f"said {line!r}, not {word!r}")
        return at

    def go(self) -> float:
        """Let it begin; return when that was, by `time.perf_counter`."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        at = time.perf_counter()
        try:
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure("took no go") from error
        return at

    def check(self) -> None:
        """Raise SubjectError when it has ended by itself."""
        if self._process.poll() is not None:
            raise self._failure("ended by itself")

    def finish(self) -> None:
        """Let it end; raise SubjectError when it does not, or not well."""
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        self._process.stdin.close()
        try:
            code = self._process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not end within {_END_WITHIN:g} s") from None
        if code:
            raise self._failure(f"ended with exit code {code}")

    def close(self) -> None:
        """End it, whatever state it is in; return when it is gone. Again is harmless."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_WITHIN)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                pipe.close()

    def _failure(self, what: str) -> SubjectError:
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - _TAIL))
        tail = self._stderr.read().decode(errors="replace").strip()
        return SubjectError(f"{' '.join(self._argv)} {what}; its stderr ends with:\n{tail}")


@contextmanager
def running(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Process]:
    """Run a process for as long as the block."""
    process = Process(argv, environment)
    try:
        yield process
    finally:
        process.close()


def measured(argv: Sequence[str], *, within: float, beside: Sequence[str] = ()) -> Cost:
    """Run a subject through the protocol and return what its work cost.

    *beside* is a second process of the same protocol that begins when the subject does, and is
    not measured.
    """
    with running(argv) as subject:
        subject.expect("ready", within=READY_WITHIN)
        if not beside:
            return _work(subject, within=within)
        with running(beside) as other:
            other.expect("ready", within=READY_WITHIN)
            other.go()
            cost = _work(subject, within=within)
            other.expect("done", within=READY_WITHIN)
            other.finish()
            return cost


def _work(subject: Process, *, within: float) -> Cost:
    cpu, rss = measure.cpu_seconds(subject.pid), measure.rss_mib(subject.pid)
    began = subject.go()
    ended = subject.expect("done", within=within)
    cpu = measure.cpu_seconds(subject.pid) - cpu
    peak = measure.peak_rss_mib(subject.pid)
    subject.finish()
    return Cost(ended - began, cpu, peak, peak - rss)
