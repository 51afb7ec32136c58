# SPDX-License-Identifier: Apache-2.0
"""The processes of containers: started, mourned, signalled, and gone with their runtime."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.eventually import eventually
from flexinfer.errors import ConfigurationError
from hack.podrunner import runtime as runtime_module
from hack.podrunner.launch import Launch
from hack.podrunner.runtime import StartError, open_runtime

if TYPE_CHECKING:
    from collections.abc import Callable


class Exits(dict[str, int]):
    """Hold how each process ended."""

    def note(self, name: str, code: int) -> None:
        self[name] = code


@pytest.fixture
def launch(tmp_path: Path) -> Callable[[str], Launch]:
    def of(script: str) -> Launch:
        return Launch(
            argv=("sh", "-c", script),
            environment={"PATH": os.environ["PATH"], "WHO": "me"},
            folder=tmp_path,
            log=tmp_path / "log",
            message=tmp_path / "message",
            port=None,
        )

    return of


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_process_has_its_environment_and_folder_and_its_exit_code_is_told(
    tmp_path: Path, launch: Callable[[str], Launch]
) -> None:
    exits = Exits()
    async with open_runtime(tmp_path / "run", limit=2, on_exit=exits.note) as runtime:
        await runtime.start("first", launch('echo "$WHO ${HOME-homeless}"; pwd; exit 5'))
        await runtime.start("second", launch("exec sleep 600"))
        await eventually(lambda: exits == {"first": 5})
        assert not runtime.is_full
        await runtime.signal("second", signal.SIGTERM)
        await eventually(lambda: exits == {"first": 5, "second": 128 + signal.SIGTERM})
        await runtime.signal("second", signal.SIGTERM)
    assert (tmp_path / "log").read_text() == f"me homeless\n{tmp_path}\n"


async def test_what_cannot_be_started_takes_no_place(
    tmp_path: Path, launch: Callable[[str], Launch]
) -> None:
    exits = Exits()
    missing = Launch(
        argv=("no-such-program",),
        environment={"PATH": "/nonexistent"},
        folder=tmp_path,
        log=tmp_path / "log",
        message=tmp_path / "message",
        port=None,
    )
    async with open_runtime(tmp_path, limit=1, on_exit=exits.note) as runtime:
        with pytest.raises(StartError, match="no-such-program"):
            await runtime.start("missing", missing)
        assert not runtime.is_full
        await runtime.start("there", launch("exec sleep 600"))
        assert runtime.is_full
    assert "missing" not in exits


async def test_leaving_ends_every_process_and_what_it_started(
    tmp_path: Path, launch: Callable[[str], Launch]
) -> None:
    pids = tmp_path / "pids"
    stubborn = f"trap '' TERM; echo $$ >> {pids}; sleep 600 & echo $! >> {pids}; wait; wait"
    async with open_runtime(tmp_path, limit=1, on_exit=Exits().note) as runtime:
        await runtime.start("stubborn", launch(stubborn))
        await eventually(
            lambda: len(pids.read_text().splitlines()) == 2 if pids.exists() else False
        )
    assert [pid for pid in pids.read_text().split() if is_alive(int(pid))] == []


async def test_a_folder_has_one_runner_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "_LOCK_TIMEOUT", 0.2)
    other = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ConfigurationError, match="kept by another pod runner"):
        async with open_runtime(tmp_path, limit=1, on_exit=Exits().note):
            pass
    os.close(other)
    async with open_runtime(tmp_path, limit=1, on_exit=Exits().note):
        pass
