# SPDX-License-Identifier: Apache-2.0
"""The manager without informers: order of start and stop, failures, signals, settings."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING

import aiohttp
import anyio
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.transport import Transport
from flexinfer.controller import Controller, ControllerOptions
from flexinfer.envtest.eventually import eventually
from flexinfer.errors import ConfigurationError, FlexInferError
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.reconcile import Request, Result
from flexinfer.workqueue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flexinfer.reconcile import Reconciler

A, B = Request("ns", "a"), Request("ns", "b")


def transport() -> Transport:
    return Transport(StaticCredentials("https://127.0.0.1:1"))


def manager(*, grace: float = 10.0, signals: tuple[signal.Signals, ...] = ()) -> Manager:
    options = ManagerOptions(
        metrics_address="127.0.0.1:0", probe_address="127.0.0.1:0", grace=grace, signals=signals
    )
    return Manager(transport(), options=options, registry=CollectorRegistry())


def controller(
    made: Manager, reconciler: Reconciler, *keys: Request, name: str = "test"
) -> Controller:
    queue = WorkQueue[Request](name, registry=made.registry)
    for key in keys:
        queue.add(key)
    new = Controller(name, reconciler, queue=queue, registry=made.registry)
    made.add(new)
    return new


class Waiting:
    """Reconcile until released; tell what happened."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.release = anyio.Event()
        self.log: list[str] = []

    async def reconcile(self, request: Request) -> Result:
        self.log.append(f"start {request.name}")
        self.started.set()
        try:
            await self.release.wait()
        except anyio.get_cancelled_exc_class():
            self.log.append(f"cancelled {request.name}")
            raise
        self.log.append(f"end {request.name}")
        return Result()


class Doing:
    """Be a runnable that records its life."""

    def __init__(self, error: Exception | None = None, *, after: anyio.Event | None = None) -> None:
        self.error = error
        self.after = after
        self.started = anyio.Event()
        self.ended = False

    async def run(self) -> None:
        self.started.set()
        if self.after is not None:
            await self.after.wait()
        if self.error is not None:
            raise self.error
        try:
            await anyio.sleep_forever()
        finally:
            self.ended = True


@asynccontextmanager
async def running(made: Manager) -> AsyncIterator[None]:
    """Run *made* for the body, then stop it and wait for its end."""
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            await group.start(made.run)
            yield
            made.stop()


async def get(port: int | None, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_probes_and_metrics_are_served() -> None:
    made = manager()
    controller(made, Waiting())
    made.readyz.add("extra", lambda: None)
    async with running(made):
        assert await get(made.probe_port, "/healthz") == (200, "ok")
        status, text = await get(made.probe_port, "/readyz?verbose")
        assert status == 200
        assert "[+]event-loop ok\n" in text
        assert "[+]shutdown ok\n" in text
        assert "[+]extra ok\n" in text
        _, metrics = await get(made.metrics_port, "/metrics")
    assert 'controller_runtime_reconcile_total{controller="test",result="success"} 0.0' in metrics
    assert "flexinfer_event_loop_lag_seconds" in metrics


async def test_the_stop_turns_readiness_off_first_and_waits_for_the_running_reconcile() -> None:
    made = manager()
    reconciler = Waiting()
    controller(made, reconciler, A, B)
    async with running(made):
        await reconciler.started.wait()
        made.stop()
        status, text = await get(made.probe_port, "/readyz")
        assert status == 500
        assert "[-]shutdown failed: the manager is stopping\n" in text
        assert await get(made.probe_port, "/healthz") == (200, "ok")
        assert reconciler.log == ["start a"]
        reconciler.release.set()
    assert reconciler.log == ["start a", "end a"]
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(made.probe_port, "/healthz")


async def test_a_reconcile_that_outlasts_the_grace_time_is_cancelled_and_named() -> None:
    made = manager(grace=0.05)
    reconciler = Waiting()
    controller(made, reconciler, A)
    with pytest.RaisesGroup(
        pytest.RaisesExc(FlexInferError, match=r"outlasted the grace time of 0\.05 s .*test ns/a"),
    ):
        async with running(made):
            await reconciler.started.wait()
    assert reconciler.log == ["start a", "cancelled a"]


async def test_no_grace_at_all_stops_an_idle_manager_cleanly() -> None:
    made = manager(grace=0)
    controller(made, Waiting())
    async with running(made):
        pass


async def test_other_runnables_run_and_are_cancelled() -> None:
    made = manager()
    doing = Doing()
    made.add(doing)
    async with running(made):
        await doing.started.wait()
    assert doing.ended


async def test_a_runnable_that_fails_stops_the_manager_in_order() -> None:
    made = manager()
    reconciler = Waiting()
    controller(made, reconciler, A)
    made.add(Doing(ValueError("boom"), after=reconciler.started))
    with anyio.fail_after(20), pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="boom")):
        async with anyio.create_task_group() as group:
            group.start_soon(release_after_stop, made, reconciler)
            await made.run()
    assert reconciler.log == ["start a", "end a"]


async def release_after_stop(made: Manager, reconciler: Waiting) -> None:
    await reconciler.started.wait()
    await eventually(lambda: made.readyz.reason("shutdown") is not None, every=0.001)
    reconciler.release.set()


async def test_several_failures_leave_together() -> None:
    made = manager()
    made.add(Doing(ValueError("one")))
    made.add(Doing(KeyError("two")))
    with anyio.fail_after(20), pytest.RaisesGroup(ValueError, KeyError):
        await made.run()


async def test_a_runnable_may_end_early() -> None:
    class Brief:
        async def run(self) -> None:
            pass

    made = manager()
    made.add(Brief())
    async with running(made):
        await anyio.wait_all_tasks_blocked()
        assert made.readyz.reason("shutdown") is None


async def test_a_controller_that_ends_by_itself_is_a_failure() -> None:
    made = manager()
    ended = controller(made, Waiting())
    ended.shut_down()
    with anyio.fail_after(20), pytest.raises(FlexInferError, match="test ended although nothing"):
        await made.run()


async def test_cancelling_run_ends_everything_at_once() -> None:
    made = manager()
    reconciler = Waiting()
    controller(made, reconciler, A)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            await group.start(made.run)
            await reconciler.started.wait()
            group.cancel_scope.cancel()
    assert reconciler.log == ["start a", "cancelled a"]


async def test_a_signal_begins_the_stop() -> None:
    before = signal.getsignal(signal.SIGTERM)
    made = manager(signals=(signal.SIGTERM,))
    reconciler = Waiting()
    controller(made, reconciler, A)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            await group.start(made.run)
            await reconciler.started.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            await eventually(lambda: made.readyz.reason("shutdown") is not None, every=0.001)
            reconciler.release.set()
    assert reconciler.log == ["start a", "end a"]
    assert signal.getsignal(signal.SIGTERM) == before


async def test_a_signal_between_the_open_ports_and_the_first_task_begins_the_stop() -> None:
    missed = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: missed.append(number))
    made = manager(signals=(signal.SIGTERM,))
    try:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                await group.start(made.run)
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not missed


STUCK = """
import sys, time
import anyio
from flexinfer import log, loop
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.transport import Transport
from flexinfer.controller import Controller
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.reconcile import Request
from flexinfer.workqueue import WorkQueue

class Stuck:
    async def reconcile(self, request):
        print("reconciling", flush=True)
        with anyio.CancelScope(shield=True):
            while manager.readyz.reason("shutdown") is None:
                await anyio.sleep(0.001)
            if sys.argv[1] == "blocking":
                print("stuck", flush=True)
                time.sleep(60)
            await anyio.sleep(0.01)
            print("stuck", flush=True)
            await anyio.sleep(60)

log.configure(form=log.LogFormat.JSON, stream=sys.stdout)
manager = Manager(
    Transport(StaticCredentials("https://127.0.0.1:1")),
    options=ManagerOptions(metrics_address="0", probe_address="0"),
)
queue = WorkQueue("stuck")
queue.add(Request("ns", "a"))
manager.add(Controller("stuck", Stuck(), queue=queue))
loop.run(manager.run)
"""


@pytest.mark.parametrize("how", ["waiting", "blocking"])
def test_a_second_signal_ends_the_process_at_once(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            wait_for_line(process.stdout, "reconciling")
            process.send_signal(signal.SIGTERM)
            wait_for_line(process.stdout, "stuck")
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 1
            assert "second signal: ending at once" in process.stderr.read()
        finally:
            process.kill()


def wait_for_line(lines: IO[str], text: str) -> None:
    for line in lines:
        if text in line:
            return
    raise AssertionError(f"the process ended without {text!r}")


async def test_a_manager_runs_once_and_takes_nothing_late() -> None:
    made = manager()
    async with running(made):
        with pytest.raises(ConfigurationError, match="a manager runs once"):
            await made.run()
        with pytest.raises(ConfigurationError, match="the manager runs already"):
            made.add(Doing())


def test_two_controllers_of_one_name_are_refused() -> None:
    made = manager()
    first = controller(made, Waiting())
    with pytest.raises(ConfigurationError, match="there is a controller 'test' already"):
        made.add(first)


async def test_what_cannot_be_run_is_refused_with_the_cure() -> None:
    async def work() -> None: ...

    made = manager()
    for wrong in (work, Doing, object()):
        with pytest.raises(ConfigurationError, match=r"add an object with `async def run\(self\)"):
            made.add(wrong)  # type: ignore[arg-type] # what an untyped program may give


async def test_a_taken_port_fails_the_start_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ManagerOptions(metrics_address=address, probe_address="0", signals=())
        made = Manager(transport(), options=options, registry=CollectorRegistry())
        with pytest.raises(ConfigurationError, match=r"metrics_address .* cannot be listened on"):
            await made.run()


async def test_servers_can_be_off() -> None:
    options = ManagerOptions(metrics_address="0", probe_address="0", signals=())
    made = Manager(transport(), options=options, registry=CollectorRegistry())
    async with running(made):
        assert made.metrics_port is None
        assert made.probe_port is None


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="metrics_address 'nowhere' is no address"):
        ManagerOptions(metrics_address="nowhere")
    with pytest.raises(ConfigurationError, match="probe_address ':x' has no valid port"):
        ManagerOptions(probe_address=":x")
    with pytest.raises(ConfigurationError, match="are both ':8080'"):
        ManagerOptions(probe_address=":8080")
    for grace in (-1, math.nan, math.inf):
        with pytest.raises(ConfigurationError, match="grace is"):
            ManagerOptions(grace=grace)
    for timeout in (0, -1, math.nan, math.inf):
        with pytest.raises(ConfigurationError, match="cache_sync_timeout is"):
            ManagerOptions(cache_sync_timeout=timeout)
    with pytest.raises(ConfigurationError, match="workers is 0"):
        ManagerOptions(controller=ControllerOptions(workers=0))
