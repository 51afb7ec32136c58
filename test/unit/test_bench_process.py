# SPDX-License-Identifier: Apache-2.0
"""The benchmark's look at a process from outside, on small processes that keep its protocol."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from flexinfer.envtest.eventually import eventually_sync
from hack.bench import measure, process
from hack.bench.process import SubjectError

MIB = 1 << 20
SUBJECT = """
import sys
import time
held = bytearray(int(sys.argv[1]) << 20)
del held
print("ready", flush=True)
sys.stdin.readline()
work = bytearray(b"x" * (int(sys.argv[2]) << 20))
until = time.process_time() + float(sys.argv[3])
while time.process_time() < until: pass
del work
print("done", flush=True)
sys.stdin.read()
"""


def subject(*, before: int = 0, during: int = 0, cpu: float = 0.0) -> list[str]:
    """A process that holds so many MiB before and during its work, which takes so much CPU."""
    return [sys.executable, "-c", SUBJECT, str(before), str(during), str(cpu)]


def test_the_cost_is_that_of_the_work_alone() -> None:
    cost = process.measured(subject(during=64, cpu=0.3), within=30)
    nothing = process.measured(subject(), within=30)
    assert nothing.cpu_s < 0.3 <= cost.cpu_s
    assert nothing.above_mib + 32 < cost.above_mib
    assert cost.cpu_s <= cost.wall_s + 0.1
    assert cost.rss_mib > cost.above_mib


def test_the_cpu_clock_of_a_process_is_its_own() -> None:
    with process.running(subject(cpu=0.1)) as running:
        running.expect("ready", within=30)
        before = measure.cpu_seconds(running.pid)
        running.go()
        running.expect("done", within=30)
        assert measure.cpu_seconds(running.pid) - before >= 0.1
        assert measure.rss_mib(running.pid) <= measure.peak_rss_mib(running.pid)
        running.finish()


def test_a_process_beside_it_works_at_the_same_time() -> None:
    cost = process.measured(subject(cpu=0.05), within=30, beside=subject(cpu=0.05))
    assert cost.wall_s > 0


def ends(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("raise SystemExit('no such file')", "ended before it said 'ready'; .*\nno such file"),
        ("print('hello')", "said b'hello', not 'ready'"),
        ("print('ready', flush=True); input(); raise SystemExit('lost')", "before it said 'done'"),
        (
            "print('ready', flush=True); input(); print('done', flush=True); input()",
            "(?s)ended with exit code 1; .*EOFError",
        ),
    ],
)
def test_a_subject_that_fails_gives_the_end_of_its_stderr(code: str, what: str) -> None:
    with pytest.raises(SubjectError, match=what):
        process.measured(ends(code), within=30)


def test_a_subject_that_says_nothing_is_ended_at_the_deadline() -> None:
    with process.running(subject(cpu=60)) as running:
        running.expect("ready", within=30)
        running.go()
        with pytest.raises(SubjectError, match="did not say 'done' within"):
            running.expect("done", within=0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(running.pid, 0)


def test_a_subject_ends_when_the_harness_is_killed() -> None:
    code = (
        "import os, sys; from hack.bench.process import Process\n"
        f"it = Process({subject(cpu=60)!r}); it.expect('ready', within=30); it.go()\n"
        "print(it.pid, flush=True); sys.stdin.read()"
    )
    with process.running([sys.executable, "-c", code]) as harness:
        assert harness._process.stdout is not None
        pid = int(harness._process.stdout.readline())
        os.kill(harness.pid, signal.SIGKILL)
        eventually_sync(lambda: is_gone(pid), within=10)


def is_gone(pid: int) -> bool:
    """Whether it has ended, be it that nobody has asked how."""
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_command_that_fails_is_named() -> None:
    assert measure.command(ends("pass")).cpu_s > 0
    with pytest.raises(RuntimeError, match="exit code 3"):
        measure.command(ends("raise SystemExit(3)"))
