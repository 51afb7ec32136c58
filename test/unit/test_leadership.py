# SPDX-License-Identifier: Apache-2.0
"""Leadership without a server: the hand-over of a term, a thread that fails, misuse, settings."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.transport import Transport
from flexinfer.cmd.manager import Flags
from flexinfer.envtest.clock import ManualClock
from flexinfer.envtest.eventually import eventually
from flexinfer.errors import ConfigurationError, FlexInferError, NotLeadingError
from flexinfer.leaderelection import FencingToken, LeaderElectionOptions, Leadership
from flexinfer.leaderelection.elector import Elector
from flexinfer.leaderelection.term import Term, call_soon
from flexinfer.program import election

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOKEN = FencingToken("u", 1)


@asynccontextmanager
async def nowhere() -> AsyncIterator[Transport]:
    async with Transport(StaticCredentials("https://127.0.0.1:1")) as transport:
        yield transport


@asynccontextmanager
async def broken() -> AsyncIterator[Transport]:
    raise ConfigurationError("no credentials: give some")
    yield


@asynccontextmanager
async def faulty() -> AsyncIterator[Transport]:
    raise ZeroDivisionError
    yield


def leadership(connect: object = nowhere) -> Leadership:
    options = LeaderElectionOptions(
        name="lock", namespace="ns", lease_duration=1, renew_deadline=0.5, retry_period=0.1
    )
    return Leadership(options, connect, registry=CollectorRegistry())  # type: ignore[arg-type] # of that shape


async def never() -> None:
    raise AssertionError("nobody was elected")


async def test_a_term_that_was_lost_before_it_began_never_begins() -> None:
    term = Term(TOKEN)
    assert not term.lose()
    with anyio.CancelScope() as scope:
        assert not term.begin(scope)
        await anyio.lowlevel.checkpoint()
    assert not scope.cancel_called


async def test_a_loss_cancels_the_work_and_waits_for_its_end() -> None:
    term = Term(TOKEN)
    with anyio.fail_after(5):
        with anyio.CancelScope() as scope:
            assert term.begin(scope)
            assert not term.is_lost
            assert term.lose()
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        term.end()
        await term.over()
    assert term.is_lost


async def test_a_loss_after_the_end_cancels_nothing() -> None:
    term = Term(TOKEN)
    with anyio.CancelScope() as scope:
        assert term.begin(scope)
        await anyio.lowlevel.checkpoint()
    term.end()
    with anyio.fail_after(5):
        assert term.lose()
        await term.over()
        await anyio.lowlevel.checkpoint()
    assert not scope.cancel_called


async def test_a_loss_and_a_beginning_at_once_agree() -> None:
    """Whoever is first decides: the work was cancelled if and only if it began."""
    for _ in range(200):
        term, gate = Term(TOKEN), threading.Barrier(2)
        answers: list[bool] = []

        def lose(
            term: Term = term, gate: threading.Barrier = gate, to: list[bool] = answers
        ) -> None:
            gate.wait(5)
            to.append(term.lose())

        thread = threading.Thread(target=lose)
        thread.start()
        with anyio.CancelScope() as scope:
            gate.wait(5)
            began = term.begin(scope)
            thread.join(5)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
        term.end()
        assert answers == [began]
        assert scope.cancel_called == began


def test_a_loop_that_has_ended_is_told_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    call_soon(loop, never)


async def test_c50_a_write_after_a_pause_is_held_back_until_it_is_known_who_leads() -> None:
    options = LeaderElectionOptions(
        name="lock", namespace="ns", lease_duration=1, renew_deadline=0.5, retry_period=0.1
    )
    made = Leadership(options, nowhere, registry=CollectorRegistry())
    made.check_write()  # who does not lead may write what needs no leader
    async with made, Transport(StaticCredentials("https://127.0.0.1:1")) as transport:
        clock = ManualClock()
        elector = Elector(transport, options, clock=clock)
        campaign = made._campaign
        assert campaign is not None
        campaign.elector = elector  # as after an election
        made._term = term = Term(TOKEN)
        made.check_write()
        await clock.sleep(0.4)
        made.check_write()
        await clock.sleep(0.1)  # as for a process that was stopped
        with pytest.raises(NotLeadingError, match=r"ns/lock was not renewed for 0\.5 s"):
            made.check_write()
        elector.well_at = clock()
        made.check_write()
        term.lose()
        with pytest.raises(NotLeadingError):
            made.check_write()


async def test_a_standby_that_resigns_returns() -> None:
    made = leadership()
    with anyio.fail_after(10):
        async with made, anyio.create_task_group() as group:
            group.start_soon(made.lead, never)
            await anyio.wait_all_tasks_blocked()
            made.resign()
    assert "leader-election" not in {thread.name for thread in threading.enumerate()}


async def test_who_resigned_before_is_never_elected() -> None:
    made = leadership()
    made.resign()
    with anyio.fail_after(10):
        async with made:
            await made.lead(never)


async def test_c74_a_standby_that_cannot_reach_the_lease_is_not_ready() -> None:
    made = leadership()
    with anyio.fail_after(20):
        async with made, anyio.create_task_group() as group:
            assert made.check_ready() is None
            group.start_soon(made.lead, never)
            await eventually(lambda: made.check_ready() is not None)
            reason = made.check_ready() or ""
            assert made.check_alive() is None
            made.resign()
    assert "lease ns/lock was neither renewed nor seen to be held for" in reason
    assert "cannot connect to https://127.0.0.1:1" in reason


async def test_the_error_of_the_thread_leaves_lead() -> None:
    made = leadership(broken)
    with anyio.fail_after(10), pytest.raises(ConfigurationError, match="no credentials: give"):
        async with made:
            await made.lead(never)
    made = leadership(faulty)
    with anyio.fail_after(10), pytest.raises(FlexInferError, match="ZeroDivisionError"):
        async with made:
            await made.lead(never)


async def test_misuse_is_refused() -> None:
    made = leadership()
    with pytest.raises(ConfigurationError, match="use it as a context"):
        await made.lead(never)
    async with made:
        pass
    with pytest.raises(ConfigurationError, match="entered once"):
        async with made:
            pass


def test_the_flags_say_where_the_lease_is(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = StaticCredentials("https://127.0.0.1:1")
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    assert election("program", Flags(), outside) is None
    with pytest.raises(ConfigurationError, match="give --leader-election-namespace"):
        election("program", Flags(leader_elect=True), outside)
    monkeypatch.setenv("POD_NAMESPACE", "of-the-pod")
    chosen = election("program", Flags(leader_elect=True), outside)
    assert chosen is not None
    assert (chosen.namespace, chosen.name) == ("of-the-pod", "flexinfer-manager")
    flags = Flags(
        leader_elect=True,
        leader_election_id="other",
        leader_election_namespace="given",
        leader_elect_lease_duration=30,
    )
    chosen = election("program", flags, outside)
    assert chosen is not None
    assert (chosen.namespace, chosen.name, chosen.lease_duration) == ("given", "other", 30)
