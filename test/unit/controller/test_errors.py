# SPDX-License-Identifier: Apache-2.0
"""What follows a reconcile that fails: how soon it is tried again, by the kind of error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
import structlog

from flexinfer.errors import (
    ConflictError,
    ServerError,
    TerminalError,
    ThrottledError,
    TransportError,
)
from flexinfer.reconcile import Request, Result
from flexinfer.workqueue import LOW_PRIORITY

if TYPE_CHECKING:
    from test.unit.controller.conftest import Bench, Scripted

A = Request("ns", "a")


@pytest.mark.parametrize(
    "error", [ValueError("boom"), TransportError("refused"), ServerError("500"), OSError()]
)
async def test_an_error_is_retried_with_backoff_and_keeps_its_priority(
    new_bench: type[Bench], scripted: type[Scripted], error: Exception
) -> None:
    bench = new_bench(scripted(error))
    await bench.run_once(priority=LOW_PRIORITY)
    assert bench.queue.forgotten == []
    ((how, key, delay, priority),) = bench.queue.asked
    assert (how, key, priority) == ("limited", A, LOW_PRIORITY)
    assert 0 < delay <= 0.01
    assert bench.metric("reconcile_errors_total") == 1
    assert bench.results()["error"] == 1


async def test_backoff_grows_until_a_success(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    reconciler = scripted(*[ValueError("boom")] * 3, Result(), ValueError("again"))
    bench = new_bench(reconciler)
    bench.queue.add(A)
    await bench.run_until(lambda: len(reconciler.seen) == 4)
    assert bench.queue.requeues(A) == 0
    assert [how for how, *_ in bench.queue.asked] == ["limited"] * 3
    delays = [delay for _, _, delay, _ in bench.queue.asked]
    assert delays[0] < delays[2]


async def test_a_terminal_error_is_not_retried(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    bench = new_bench(scripted(TerminalError("no such backend")))
    await bench.run_once()
    assert bench.queue.asked == []
    assert bench.queue.forgotten == []
    assert bench.metric("terminal_reconcile_errors_total") == 1
    assert bench.metric("reconcile_errors_total") == 1
    assert bench.results()["error"] == 1


async def test_a_throttled_reconcile_obeys_retry_after(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    bench = new_bench(scripted(ThrottledError("slow down", retry_after=20.0)))
    await bench.run_once()
    assert bench.only_retry() == ("after", A, 21.0, 0)
    assert bench.results()["error"] == 1


async def test_retry_after_zero_is_not_a_hot_loop(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    bench = new_bench(scripted(ThrottledError("slow down", retry_after=0.0)))
    await bench.run_once()
    assert bench.only_retry() == ("after", A, 1.05, 0)


async def test_throttling_without_a_time_backs_off(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    bench = new_bench(scripted(ThrottledError("slow down")))
    await bench.run_once()
    assert bench.queue.asked[0][0] == "limited"


async def test_conflicts_are_retried_quickly_until_they_go_on_and_on(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    reconciler = scripted(*[ConflictError("other writer")] * 5, Result())
    bench = new_bench(reconciler)
    bench.queue.add(A)
    await bench.run_until(lambda: bench.results()["success"] == 1)
    assert [how for how, *_ in bench.queue.asked] == ["after"] * 3 + ["limited"] * 2
    assert all(0.01 <= delay <= 0.1 for _, _, delay, _ in bench.queue.asked[:3])
    assert bench.controller._conflicts == {}


async def test_a_conflict_is_no_alarm(new_bench: type[Bench], scripted: type[Scripted]) -> None:
    bench = new_bench(scripted(ConflictError("other writer")))
    with structlog.testing.capture_logs() as logs:
        await bench.run_once()
    assert [line["log_level"] for line in logs if "race" in line["event"]] == ["info"]
    assert not [line for line in logs if line["log_level"] == "error"]


async def test_an_error_in_a_task_group_is_judged_by_what_it_is(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    async def grouped() -> Result:
        async def fail() -> None:
            raise TerminalError("inside")

        async with anyio.create_task_group() as group:
            group.start_soon(fail)
        return Result()

    bench = new_bench(scripted(grouped))
    await bench.run_once()
    assert bench.metric("terminal_reconcile_errors_total") == 1


async def test_a_bug_of_the_reconciler_counts_as_a_panic(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    async def buggy() -> Result:
        results: dict[str, Result] = {}
        return results["missing"]

    bench = new_bench(scripted(buggy))
    await bench.run_once()
    assert bench.metric("reconcile_panics_total") == 1
    assert bench.queue.asked[0][0] == "limited"


async def test_a_forgotten_return_is_an_error_that_says_so(
    new_bench: type[Bench], scripted: type[Scripted]
) -> None:
    async def forgetful() -> Any:
        return None

    bench = new_bench(scripted(forgetful))
    with structlog.testing.capture_logs() as logs:
        await bench.run_once()
    (failure,) = [line for line in logs if line["log_level"] == "error"]
    assert failure["error"] == "TypeError: reconcile returned NoneType, not a Result"


async def test_one_name_that_fails_does_not_disturb_another(new_bench: type[Bench]) -> None:
    class Selective:
        def __init__(self) -> None:
            self.good = 0

        async def reconcile(self, request: Request) -> Result:
            if request == A:
                raise RuntimeError("always")
            self.good += 1
            return Result()

    reconciler = Selective()
    bench = new_bench(reconciler, workers=2)
    for number in range(50):
        bench.queue.add(Request("ns", f"good-{number}"))
    bench.queue.add(A)
    await bench.run_until(lambda: reconciler.good == 50 and len(bench.queue.asked) >= 3)
    assert bench.results()["success"] == 50
