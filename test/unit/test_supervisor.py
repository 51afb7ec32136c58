# SPDX-License-Identifier: Apache-2.0
"""Processes end with their owner, one way or another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.eventually import eventually_sync
from flexinfer.envtest.processes import ProcessError, Processes

if TYPE_CHECKING:
    from collections.abc import Iterator

SLEEP = ["sleep", "600"]
STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path / "logs") as running:
        yield running


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ends(pid: int) -> None:
    eventually_sync(lambda: not runs(pid))


def test_a_child_runs_and_is_stopped_and_starts_again(processes: Processes) -> None:
    first = processes.start("sleeper", SLEEP)
    assert runs(first)
    processes.stop("sleeper")
    assert not runs(first)
    second = processes.start("sleeper")
    assert runs(second)
    processes.kill("sleeper")
    assert not runs(second)
    processes.check()


def test_what_a_child_says_is_in_its_log(processes: Processes) -> None:
    processes.start("echo", ["sh", "-c", "echo out; echo err >&2; exec sleep 600"])
    eventually_sync(lambda: processes.log("echo").read_text() == "out\nerr\n")


def test_a_child_keeps_what_was_added_to_its_environment(processes: Processes) -> None:
    tell = ["sh", "-c", 'echo "$COLOUR ${PATH:+and all else}"; exec sleep 600']
    processes.start("teller", tell, env={"COLOUR": "red"})
    eventually_sync(lambda: processes.log("teller").read_text() == "red and all else\n")
    processes.kill("teller")
    processes.start("teller")
    eventually_sync(lambda: processes.log("teller").read_text() == 2 * "red and all else\n")


def test_an_end_by_itself_is_reported_with_the_end_of_the_log(processes: Processes) -> None:
    processes.start("failing", ["sh", "-c", "echo the disk is full; exit 7"])

    def is_reported() -> bool:
        try:
            processes.check()
        except ProcessError as error:
            return "failing ended by itself with code 7" in str(error) and "full" in str(error)
        return False

    eventually_sync(is_reported)
    processes.start("failing", SLEEP)
    processes.check()


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(processes: Processes) -> None:
    pid = processes.start("stubborn", STUBBORN)
    eventually_sync(lambda: processes.log("stubborn").read_text() == "ready\n")
    processes.stop("stubborn", grace=0.2)
    assert not runs(pid)


def test_a_child_can_be_paused(processes: Processes) -> None:
    pid = processes.start("sleeper", SLEEP)
    processes.send("sleeper", signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    eventually_sync(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    processes.send("sleeper", signal.SIGCONT)
    processes.stop("sleeper")
    assert not runs(pid)


def test_signals_to_one_that_has_ended_do_nothing(processes: Processes) -> None:
    processes.send("nobody", signal.SIGTERM)
    processes.stop("nobody")


def test_a_binary_that_is_not_there_is_an_error(processes: Processes) -> None:
    with pytest.raises(ProcessError, match="FileNotFoundError"):
        processes.start("missing", ["/does/not/exist"])


def test_a_name_runs_once(processes: Processes) -> None:
    processes.start("sleeper", SLEEP)
    with pytest.raises(ProcessError, match="runs already"):
        processes.start("sleeper", SLEEP)


def test_closing_ends_all_and_a_second_time_does_nothing(tmp_path: Path) -> None:
    running = Processes(tmp_path)
    pids = [running.start(f"sleeper-{number}", SLEEP) for number in range(3)]
    running.close()
    running.close()
    assert not any(runs(pid) for pid in pids)
    with pytest.raises(ProcessError, match="supervisor of the control plane is gone"):
        running.start("late", SLEEP)


def test_closing_ends_what_ignores_sigterm(tmp_path: Path) -> None:
    running = Processes(tmp_path)
    pid = running.start("stubborn", STUBBORN)
    eventually_sync(lambda: running.log("stubborn").read_text() == "ready\n")
    running.close()
    assert not runs(pid)


def test_what_a_child_started_ends_with_it(processes: Processes, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    processes.start("parent", ["sh", "-c", f"sleep 600 & echo $! > {note}; wait"])
    eventually_sync(lambda: note.exists() and note.read_text() != "")
    grandchild = int(note.read_text())
    processes.stop("parent")
    ends(grandchild)


def test_children_of_a_killed_supervisor_are_killed(tmp_path: Path) -> None:
    running = Processes(tmp_path)
    pid = running.start("sleeper", SLEEP)
    os.kill(running.supervisor_pid, signal.SIGKILL)
    ends(pid)
    running.close()


def test_sigterm_to_the_supervisor_ends_all(tmp_path: Path) -> None:
    running = Processes(tmp_path)
    pid = running.start("sleeper", SLEEP)
    os.kill(running.supervisor_pid, signal.SIGTERM)
    ends(pid)
    running.close()


PROGRAM = """
import sys, time
from pathlib import Path
from flexinfer.envtest.processes import Processes
processes = Processes(Path(sys.argv[1]))
print(processes.start("sleeper", ["sleep", "600"]), processes.supervisor_pid, flush=True)
if sys.argv[2] == "detach":
    processes.detach()
    print("detached", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("mode", ["attached", "detach"])
def test_children_of_a_killed_owner_end_unless_detached(tmp_path: Path, mode: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), mode], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        with owner.stdout:
            child, supervisor = map(int, owner.stdout.readline().split())
            if mode == "detach":
                assert owner.stdout.readline() == "detached\n"
    finally:
        owner.kill()
        owner.wait()
    if mode == "detach":
        assert runs(child)
        os.kill(supervisor, signal.SIGTERM)
    ends(child)
    ends(supervisor)
