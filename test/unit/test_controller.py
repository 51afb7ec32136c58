# SPDX-License-Identifier: Apache-2.0
"""The controller: what follows each outcome of a reconcile, and how the workers end."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from flexinfer import log
from flexinfer.controller import Controller, ControllerOptions
from flexinfer.envtest.eventually import eventually
from flexinfer.errors import (
    ConfigurationError,
    ConflictError,
    ForbiddenError,
    ServerError,
    TerminalError,
    ThrottledError,
    TransportError,
)
from flexinfer.reconcile import Request, Result
from flexinfer.workqueue import LOW_PRIORITY, WorkQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

A, B = Request("ns", "a"), Request("ns", "b")


class Scripted:
    """Answer each reconcile with the next step of a script, then with success."""

    def __init__(self, *steps: Result | BaseException | Callable[[], Awaitable[Result]]) -> None:
        self.steps = list(steps)
        self.seen: list[Request] = []
        self.ran = anyio.Event()

    async def reconcile(self, request: Request) -> Result:
        self.seen.append(request)
        step = self.steps.pop(0) if self.steps else Result()
        if not self.steps:
            self.ran.set()
        if isinstance(step, BaseException):
            raise step
        return step if isinstance(step, Result) else await step()


class Recording(WorkQueue[Request]):
    """Be a real queue that also remembers how it was asked to retry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__("test", registry=registry)
        self.asked: list[tuple[str, Request, float, int]] = []
        self.forgotten: list[Request] = []

    def add_after(self, key: Request, delay: float, *, priority: int = 0) -> None:
        self.asked.append(("after", key, delay, priority))
        super().add_after(key, delay, priority=priority)

    def add_rate_limited(self, key: Request, *, priority: int = 0) -> None:
        super().add_rate_limited(key, priority=priority)
        _, _, delay, _ = self.asked.pop()
        self.asked.append(("limited", key, delay, priority))

    def forget(self, key: Request) -> None:
        self.forgotten.append(key)
        super().forget(key)


class Bench:
    """Be a controller, its queue and its metrics."""

    def __init__(self, reconciler: Any, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.queue = Recording(self.registry)
        self.controller = Controller(
            "test",
            reconciler,
            queue=self.queue,
            options=ControllerOptions(**({"jitter": lambda: 0.5} | options)),
            registry=self.registry,
        )

    def metric(self, name: str, **labels: str) -> float | None:
        labels = {"controller": "test", **labels}
        return self.registry.get_sample_value(f"controller_runtime_{name}", labels)

    def results(self) -> dict[str, float | None]:
        names = ("success", "error", "requeue", "requeue_after")
        return {name: self.metric("reconcile_total", result=name) for name in names}

    def only_retry(self) -> tuple[str, Request, float, int]:
        ((how, key, delay, priority),) = self.queue.asked
        return how, key, round(delay, 6), priority

    async def run_until(self, happened: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(self.controller.run)
                await eventually(happened, within=10, every=0.001)
                self.controller.shut_down()

    async def run_once(self, key: Request = A, *, priority: int = 0) -> None:
        """Run one reconcile of *key* to its end."""
        self.queue.add(key, priority=priority)
        await self.run_until(lambda: (self.metric("reconcile_time_seconds_count") or 0) >= 1)


async def test_success_forgets_the_failures() -> None:
    bench = Bench(Scripted(Result()))
    await bench.run_once()
    assert bench.queue.forgotten == [A]
    assert bench.queue.asked == []
    assert bench.results() == {"success": 1, "error": 0, "requeue": 0, "requeue_after": 0}


async def test_requeue_after_comes_up_to_a_tenth_later() -> None:
    bench = Bench(Scripted(Result(requeue_after=30)))
    await bench.run_once(priority=7)
    assert bench.queue.forgotten == [A]
    assert bench.only_retry() == ("after", A, 31.5, 7)
    assert bench.results() == {"success": 0, "error": 0, "requeue": 0, "requeue_after": 1}


@given(st.floats(min_value=0, max_value=1e9), st.floats(min_value=0, max_value=1))
def test_the_jitter_never_shortens_and_stays_within_a_tenth(delay: float, draw: float) -> None:
    controller = Bench(Scripted(), jitter=lambda: draw).controller
    assert delay <= controller._spread(delay) <= delay * 1.1 * (1 + 1e-9)


@pytest.mark.parametrize("delay", [0.0, -1.0, -math.inf])
async def test_a_delay_that_is_not_positive_is_immediate(delay: float) -> None:
    reconciler = Scripted(Result(requeue_after=delay), Result())
    bench = Bench(reconciler)
    bench.queue.add(A)
    await bench.run_until(reconciler.ran.is_set)
    assert reconciler.seen == [A, A]


@pytest.mark.parametrize("delay", [1e12, math.inf, 10**400])
async def test_an_absurd_delay_waits_long_and_does_no_harm(delay: float) -> None:
    bench = Bench(Scripted(Result(requeue_after=delay)))
    await bench.run_once()
    assert bench.results()["requeue_after"] == 1
    assert bench.results()["error"] == 0


async def test_nan_is_an_error_of_that_key_only() -> None:
    reconciler = Scripted(Result(requeue_after=math.nan), Result())
    bench = Bench(reconciler)
    bench.queue.add(A)
    bench.queue.add(B)
    with structlog.testing.capture_logs() as logs:
        await bench.run_until(lambda: reconciler.seen.count(A) == 2)
    assert reconciler.seen == [A, B, A]
    assert bench.results() == {"success": 2, "error": 1, "requeue": 0, "requeue_after": 0}
    assert any("requeue_after is NaN" in line.get("error", "") for line in logs)


@pytest.mark.parametrize(
    "error", [ValueError("boom"), TransportError("refused"), ServerError("500"), OSError()]
)
async def test_an_error_is_retried_with_backoff_and_keeps_its_priority(error: Exception) -> None:
    bench = Bench(Scripted(error))
    await bench.run_once(priority=LOW_PRIORITY)
    assert bench.queue.forgotten == []
    ((how, key, delay, priority),) = bench.queue.asked
    assert (how, key, priority) == ("limited", A, LOW_PRIORITY)
    assert 0 < delay <= 0.01
    assert bench.metric("reconcile_errors_total") == 1
    assert bench.results()["error"] == 1


async def test_backoff_grows_until_a_success() -> None:
    reconciler = Scripted(*[ValueError("boom")] * 3, Result(), ValueError("again"))
    bench = Bench(reconciler)
    bench.queue.add(A)
    await bench.run_until(lambda: len(reconciler.seen) == 4)
    assert bench.queue.requeues(A) == 0
    assert [how for how, *_ in bench.queue.asked] == ["limited"] * 3
    delays = [delay for _, _, delay, _ in bench.queue.asked]
    assert delays[0] < delays[2]


async def test_a_terminal_error_is_not_retried() -> None:
    bench = Bench(Scripted(TerminalError("no such backend")))
    await bench.run_once()
    assert bench.queue.asked == []
    assert bench.queue.forgotten == []
    assert bench.metric("terminal_reconcile_errors_total") == 1
    assert bench.metric("reconcile_errors_total") == 1
    assert bench.results()["error"] == 1


async def test_a_throttled_reconcile_obeys_retry_after() -> None:
    bench = Bench(Scripted(ThrottledError("slow down", retry_after=20.0)))
    await bench.run_once()
    assert bench.only_retry() == ("after", A, 21.0, 0)
    assert bench.results()["error"] == 1


async def test_retry_after_zero_is_not_a_hot_loop() -> None:
    bench = Bench(Scripted(ThrottledError("slow down", retry_after=0.0)))
    await bench.run_once()
    assert bench.only_retry() == ("after", A, 1.05, 0)


async def test_throttling_without_a_time_backs_off() -> None:
    bench = Bench(Scripted(ThrottledError("slow down")))
    await bench.run_once()
    assert bench.queue.asked[0][0] == "limited"


async def test_conflicts_are_retried_quickly_until_they_go_on_and_on() -> None:
    reconciler = Scripted(*[ConflictError("other writer")] * 5, Result())
    bench = Bench(reconciler)
    bench.queue.add(A)
    await bench.run_until(lambda: bench.results()["success"] == 1)
    assert [how for how, *_ in bench.queue.asked] == ["after"] * 3 + ["limited"] * 2
    assert all(0.01 <= delay <= 0.1 for _, _, delay, _ in bench.queue.asked[:3])
    assert bench.controller._conflicts == {}


async def test_a_conflict_is_no_alarm() -> None:
    bench = Bench(Scripted(ConflictError("other writer")))
    with structlog.testing.capture_logs() as logs:
        await bench.run_once()
    assert [line["log_level"] for line in logs if "race" in line["event"]] == ["info"]
    assert not [line for line in logs if line["log_level"] == "error"]


async def test_an_error_in_a_task_group_is_judged_by_what_it_is() -> None:
    async def grouped() -> Result:
        async def fail() -> None:
            raise TerminalError("inside")

        async with anyio.create_task_group() as group:
            group.start_soon(fail)
        return Result()

    bench = Bench(Scripted(grouped))
    await bench.run_once()
    assert bench.metric("terminal_reconcile_errors_total") == 1


async def test_a_bug_of_the_reconciler_counts_as_a_panic() -> None:
    async def buggy() -> Result:
        results: dict[str, Result] = {}
        return results["missing"]

    bench = Bench(Scripted(buggy))
    await bench.run_once()
    assert bench.metric("reconcile_panics_total") == 1
    assert bench.queue.asked[0][0] == "limited"


async def test_a_forgotten_return_is_an_error_that_says_so() -> None:
    async def forgetful() -> Any:
        return None

    bench = Bench(Scripted(forgetful))
    with structlog.testing.capture_logs() as logs:
        await bench.run_once()
    (failure,) = [line for line in logs if line["log_level"] == "error"]
    assert failure["error"] == "TypeError: reconcile returned NoneType, not a Result"


async def test_one_name_that_fails_does_not_disturb_another() -> None:
    class Selective:
        def __init__(self) -> None:
            self.good = 0

        async def reconcile(self, request: Request) -> Result:
            if request == A:
                raise RuntimeError("always")
            self.good += 1
            return Result()

    reconciler = Selective()
    bench = Bench(reconciler, workers=2)
    for number in range(50):
        bench.queue.add(Request("ns", f"good-{number}"))
    bench.queue.add(A)
    await bench.run_until(lambda: reconciler.good == 50 and len(bench.queue.asked) >= 3)
    assert bench.results()["success"] == 50


async def test_a_reconcile_that_takes_too_long_is_cancelled_counted_and_retried() -> None:
    cancelled = []

    async def stuck() -> Result:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(True)
            raise
        return Result()

    bench = Bench(Scripted(stuck), reconcile_timeout=0.01)
    with structlog.testing.capture_logs() as logs:
        await bench.run_once()
    assert cancelled == [True]
    assert bench.metric("reconcile_timeouts_total") == 1
    assert bench.queue.asked[0][0] == "limited"
    (failure,) = [line for line in logs if line["log_level"] == "error"]
    assert "took longer than 0.01 s" in failure["error"]


async def test_an_overdue_run_takes_nothing_from_the_next_one() -> None:
    left = []

    async def looks() -> Result:
        left.append(anyio.current_effective_deadline() - anyio.current_time())
        return Result()

    async def stuck() -> Result:
        await anyio.sleep_forever()
        return Result()

    bench = Bench(Scripted(stuck, looks, looks), reconcile_timeout=0.2)
    for name in ("a", "b", "c"):
        bench.queue.add(Request("ns", name))
    # Not the number of successes: the overdue name soon has its own, by its retry.
    await bench.run_until(lambda: len(left) == 2)
    assert bench.metric("reconcile_timeouts_total") == 1
    assert min(left) > 0.2 / 5


async def test_an_overdue_run_that_ends_in_several_errors_is_one_failure() -> None:
    async def breaks() -> Result:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class() as cancelled:
            raise BaseExceptionGroup("both", [cancelled, ValueError("and this")]) from None
        return Result()

    bench = Bench(Scripted(breaks, Result()), reconcile_timeout=0.02)
    bench.queue.add(A)
    await bench.run_until(lambda: bench.results()["success"] == 1)
    assert bench.metric("reconcile_timeouts_total") == 1
    assert bench.results()["error"] == 1


async def test_the_reconcilers_own_timeout_is_not_ours() -> None:
    bench = Bench(Scripted(TimeoutError("a call of its own")))
    await bench.run_once()
    assert bench.metric("reconcile_timeouts_total") == 0
    assert bench.results()["error"] == 1


async def test_a_stuck_name_does_not_hold_up_others() -> None:
    class OneStuck:
        def __init__(self) -> None:
            self.good = 0

        async def reconcile(self, request: Request) -> Result:
            if request == A:
                await anyio.sleep_forever()
            self.good += 1
            return Result()

    reconciler = OneStuck()
    bench = Bench(reconciler, reconcile_timeout=0.02)
    bench.queue.add(A)
    for number in range(10):
        bench.queue.add(Request("ns", f"good-{number}"))
    await bench.run_until(lambda: reconciler.good == 10)


async def test_a_cancellation_that_escapes_a_reconciler_ends_no_worker() -> None:
    reconciler = Scripted(asyncio.CancelledError(), Result())
    bench = Bench(reconciler)
    bench.queue.add(A)
    await bench.run_until(lambda: bench.results()["success"] == 1)
    assert reconciler.seen == [A, A]
    assert bench.results()["error"] == 1


async def test_no_name_is_reconciled_twice_at_once() -> None:
    class Overlap:
        def __init__(self) -> None:
            self.inside: set[Request] = set()
            self.most = 0
            self.runs = 0

        async def reconcile(self, request: Request) -> Result:
            assert request not in self.inside
            self.inside.add(request)
            self.most = max(self.most, len(self.inside))
            await anyio.sleep(0.001)
            self.inside.remove(request)
            self.runs += 1
            return Result(requeue_after=0)

    reconciler = Overlap()
    bench = Bench(reconciler, workers=4)
    keys = [Request("ns", str(number)) for number in range(6)]
    for key in keys:
        bench.queue.add(key)
    await bench.run_until(lambda: reconciler.runs > 100)
    assert reconciler.most == 4
    assert bench.results()["error"] == 0


async def test_the_stop_waits_for_the_running_reconcile_and_drops_the_queue() -> None:
    release = anyio.Event()

    async def slow() -> Result:
        await release.wait()
        return Result()

    reconciler = Scripted(slow)
    bench = Bench(reconciler)
    bench.queue.add(A)
    bench.queue.add(B)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(bench.controller.run)
            await reconciler.ran.wait()
            assert bench.metric("active_workers") == 1
            bench.controller.shut_down()
            await anyio.wait_all_tasks_blocked()
            release.set()
    assert reconciler.seen == [A]
    assert bench.results()["success"] == 1
    assert bench.controller.cut_off == []
    assert bench.metric("active_workers") == 0


async def test_cancelling_ends_the_running_reconcile_and_names_it() -> None:
    reconciler = Scripted(anyio.sleep_forever)  # type: ignore[arg-type] # it never returns
    bench = Bench(reconciler)
    bench.queue.add(A)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(bench.controller.run)
            await reconciler.ran.wait()
            bench.controller.shut_down()
            group.cancel_scope.cancel()
    assert bench.controller.cut_off == [A]
    assert bench.results()["error"] == 0
    assert bench.metric("active_workers") == 0


async def test_a_second_run_takes_up_what_the_first_was_cancelled_at_and_what_came_since() -> None:
    reconciler = Scripted(anyio.sleep_forever)  # type: ignore[arg-type] # it never returns
    bench = Bench(reconciler)
    bench.queue.add(A)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(bench.controller.run)
            await reconciler.ran.wait()
            group.cancel_scope.cancel()
    for _ in range(100):
        bench.queue.add(B)
    assert len(bench.queue) == 2
    await bench.run_until(lambda: len(reconciler.seen) == 3)
    assert reconciler.seen == [A, A, B]
    assert bench.controller.cut_off == []
    assert bench.results()["success"] == 2
    assert bench.metric("active_workers") == 0


async def test_all_series_exist_before_the_first_reconcile() -> None:
    bench = Bench(Scripted(), workers=3)
    assert bench.results() == dict.fromkeys(bench.results(), 0)
    for name in ("errors", "panics", "timeouts"):
        assert bench.metric(f"reconcile_{name}_total") == 0
    assert bench.metric("terminal_reconcile_errors_total") == 0
    await bench.run_until(lambda: True)
    assert bench.metric("max_concurrent_reconciles") == 3


async def test_every_line_of_a_reconcile_carries_its_keys() -> None:
    logger = log.get_logger("reconciler")

    async def leaky() -> Result:
        structlog.contextvars.bind_contextvars(left_over="yes")
        raise ValueError("boom")

    async def chatty() -> Result:
        logger.info("applied")
        return Result()

    reconciler = Scripted(leaky, chatty)
    bench = Bench(reconciler)
    bench.queue.add(A)
    merge = [structlog.contextvars.merge_contextvars, log.merge_run]
    with structlog.testing.capture_logs(processors=merge) as logs:
        await bench.run_until(lambda: bench.results()["success"] == 1)
    (failure,) = [line for line in logs if line["event"] == "reconcile failed"]
    (applied,) = [line for line in logs if line["event"] == "applied"]
    for line in (failure, applied):
        assert (line["controller"], line["namespace"], line["name"]) == ("test", "ns", "a")
    assert failure["reconcile_id"] != applied["reconcile_id"]
    assert isinstance(failure["exc_info"], ValueError)
    assert "left_over" not in applied


@pytest.mark.parametrize(
    "error", [ForbiddenError("quota"), TransportError("refused"), TerminalError("no"), ValueError()]
)
async def test_only_what_is_no_state_of_the_world_is_logged_with_a_traceback(
    error: Exception,
) -> None:
    bench = Bench(Scripted(error))
    with structlog.testing.capture_logs() as logs:
        await bench.run_once()
    (failure,) = [line for line in logs if line["event"] == "reconcile failed"]
    assert failure["error"] == f"{type(error).__name__}: {error}"
    assert failure["exc_info"] is (error if isinstance(error, ValueError) else None)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="workers is 0: a controller needs at least 1"):
        ControllerOptions(workers=0)
    with pytest.raises(ConfigurationError, match="hot_loop is 0: use a number of runs a minute"):
        ControllerOptions(hot_loop=0)
    for timeout in (0, -1, math.nan):
        with pytest.raises(ConfigurationError, match="reconcile_timeout is"):
            ControllerOptions(reconcile_timeout=timeout)
    registry = CollectorRegistry()
    queue = WorkQueue[Request]("q", registry=registry)
    with pytest.raises(ConfigurationError, match="controller name is empty"):
        Controller("", Scripted(), queue=queue, registry=registry)
