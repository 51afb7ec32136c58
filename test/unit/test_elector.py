# SPDX-License-Identifier: Apache-2.0
"""The elector against a server that hangs, refuses, races and cuts watches short."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import pytest

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.script import (
    Action,
    Answer,
    Close,
    Delay,
    Hang,
    Lines,
    Reset,
    Step,
    Until,
    status_answer,
)
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.leaderelection.elector import Elector
from flexinfer.leaderelection.lease import FencingToken
from flexinfer.leaderelection.options import LeaderElectionOptions
from flexinfer.meta.envelope import decode_tree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.envtest.scripted import Received
    from flexinfer.meta.envelope import Tree

NOON = "2026-03-01T12:00:00.000000Z"
COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
PATH = f"{COLLECTION}/lock"
MISSING = status_answer(404, "NotFound", 'leases "lock" not found')
CONFLICT = status_answer(409, "Conflict", "the object has been modified")
FORBIDDEN = status_answer(403, "Forbidden", 'leases "lock" is forbidden')


def record(holder: str, version: int = 1, *, transitions: int = 0, renewed: str = NOON) -> Tree:
    """Return a Lease object as the server has it; that of `me` is what the elector writes."""
    return {
        "kind": "Lease",
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": {
            "name": "lock",
            "namespace": "ns",
            "uid": "u",
            "resourceVersion": str(version),
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 3 if holder else 1,
            "acquireTime": NOON,
            "renewTime": renewed,
            "leaseTransitions": transitions,
        },
    }


def says(holder: str, version: int = 1, *, transitions: int = 0) -> Answer:
    return Answer(body=record(holder, version, transitions=transitions))


def event(kind: str, holder: str, version: int) -> Tree:
    return {"type": kind, "object": record(holder, version, renewed=f"{version}")}


class Bench:
    """Be an elector and the server it speaks to."""

    def __init__(self, server: ScriptedServer, elector: Elector) -> None:
        self.server = server
        self.elector = elector

    def script(self, method: str, *actions: Action) -> None:
        self.server.script(method, COLLECTION if method == "POST" else PATH, *actions)

    def script_watch(self, *actions: Action) -> None:
        self.server.script("GET", COLLECTION, *actions)

    def sent(self) -> Sequence[str]:
        """Return what was asked, in order; `WATCH` for a watch."""
        return [
            "WATCH" if r.path == COLLECTION and r.method == "GET" else r.method
            for r in self.server.requests
        ]

    def specs(self) -> list[Tree]:
        return [decode_tree(r.body)["spec"] for r in self.server.requests if r.body]

    async def puts(self, count: int) -> Sequence[Received]:
        return await self.server.received(count, method="PUT", within=15)


@asynccontextmanager
async def electing(authority: CertificateAuthority) -> AsyncIterator[Bench]:
    options = LeaderElectionOptions(
        name="lock",
        namespace="ns",
        identity="me",
        lease_duration=3,
        renew_deadline=2,
        retry_period=0.2,
    )
    async with ScriptedServer.start(authority) as server:
        credentials = StaticCredentials(
            server.url, token="token", context=client_context(server.ca_pem)
        )
        async with Transport(credentials) as transport:
            wall = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
            elector = Elector(transport, options, wall=lambda: wall, jitter=lambda: 0.0)
            with anyio.fail_after(30):
                yield Bench(server, elector)
        assert server.unscripted == []


@asynccontextmanager
async def holding(bench: Bench) -> AsyncIterator[None]:
    """Hold the Lease during the body; it must not be lost."""

    async def hold() -> None:
        raise AssertionError(f"lost: {await bench.elector.hold()}")

    async with anyio.create_task_group() as group:
        group.start_soon(hold)
        yield
        group.cancel_scope.cancel()


async def lead(bench: Bench) -> None:
    bench.script("GET", MISSING)
    bench.script("POST", Answer(201, body=record("me")))
    assert await bench.elector.acquire() == FencingToken("u", 0)


async def test_the_first_creates_renews_and_releases(authority: CertificateAuthority) -> None:
    async with electing(authority) as bench:
        await lead(bench)
        bench.script("PUT", says("me", 2))
        async with holding(bench):
            await bench.puts(3)
        bench.script("PUT", says("", 3))
        await bench.elector.release()
        assert bench.sent() == ["GET", "POST", *["PUT"] * len(bench.specs()[1:])]
        assert {spec["holderIdentity"] for spec in bench.specs()[:-1]} == {"me"}
        released = bench.specs()[-1]
        assert released["holderIdentity"] == ""
        assert released["leaseDurationSeconds"] == 1
        assert bench.server.requests[1].query == {"fieldManager": "flexinfer-leader-election"}


@pytest.mark.parametrize("fault", [Hang(), Close(), Reset()], ids=["hang", "close", "reset"])
async def test_one_renewal_without_an_answer_does_not_lose_the_lease(
    authority: CertificateAuthority, fault: Action
) -> None:
    async with electing(authority) as bench:
        await lead(bench)
        bench.script("PUT", says("me", 2), fault, says("me", 3))
        async with holding(bench):
            await bench.puts(4)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_server_is_asked_again_and_not_too_late(
    authority: CertificateAuthority, status: int
) -> None:
    async with electing(authority) as bench:
        await lead(bench)
        busy = status_answer(status, "", "later", headers={"Retry-After": "30"})
        bench.script("PUT", busy, says("me", 2))
        async with holding(bench):
            await bench.puts(3)


async def test_a_conflict_of_our_own_lost_answer_is_read_and_written_again(
    authority: CertificateAuthority,
) -> None:
    async with electing(authority) as bench:
        await lead(bench)
        bench.script("GET", says("me", 7))
        bench.script("PUT", CONFLICT, says("me", 8))
        async with holding(bench):
            second = (await bench.puts(2))[1]
        assert decode_tree(second.body)["metadata"]["resourceVersion"] == "7"


async def test_c46_who_may_read_but_not_write_gives_up_at_the_renew_deadline(
    authority: CertificateAuthority,
) -> None:
    async with electing(authority) as bench:
        await lead(bench)
        bench.script("PUT", FORBIDDEN)
        began = time.monotonic()
        reason = await bench.elector.hold()
        assert time.monotonic() - began < 2 * 5
        assert "it was not renewed for 2 s" in reason
        assert "forbidden" in reason
        assert len(await bench.puts(2)) <= 10 * 5


@pytest.mark.parametrize(
    ("found", "reason"), [(says("other", 9), "held by other"), (MISSING, "deleted")]
)
async def test_a_leader_that_finds_another_record_has_lost(
    authority: CertificateAuthority, found: Answer, reason: str
) -> None:
    async with electing(authority) as bench:
        await lead(bench)
        bench.script("PUT", CONFLICT)
        bench.script("GET", found)
        assert reason in await bench.elector.hold()


async def test_a_release_is_seen_by_the_watch_and_claimed_without_a_read(
    authority: CertificateAuthority,
) -> None:
    async with electing(authority) as bench:
        bench.script("GET", says("other", 5))
        lines: list[Step] = [Lines(event("MODIFIED", "other", 6)), Until("go")]
        lines.append(Lines(event("MODIFIED", "", 7)))
        bench.script_watch(Answer(body=lines, then=Hang()))
        bench.script("PUT", says("me", 8, transitions=1))
        async with anyio.create_task_group() as group:
            group.start_soon(bench.elector.acquire)
            await bench.server.received(1, path=COLLECTION)
            bench.server.release("go")
        assert bench.sent() == ["GET", "WATCH", "PUT"]
        watch = bench.server.requests[1].query
        assert watch["fieldSelector"] == "metadata.name=lock"
        assert watch["resourceVersion"] == "5"
        claim = decode_tree(bench.server.requests[2].body)
        assert claim["metadata"]["resourceVersion"] == "7"
        assert claim["spec"]["leaseTransitions"] == 1


async def test_a_dead_leader_is_followed_after_what_its_record_says(
    authority: CertificateAuthority,
) -> None:
    async with electing(authority) as bench:
        bench.script("GET", says("other", 5))
        bench.script_watch(Answer(body=[Delay(0)], then=Hang()))
        bench.script("PUT", says("me", 8, transitions=1))
        began = time.monotonic()
        await bench.elector.acquire()
        assert time.monotonic() - began >= 3
        # One more read and one more watch, because the first one was silent.
        assert bench.sent() == ["GET", "WATCH", "GET", "WATCH", "PUT"]


@pytest.mark.parametrize(
    "refusal",
    [
        FORBIDDEN,
        Close(),
        Answer(body=[Lines(b"not json")]),
        Answer(body=[Lines({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}})]),
        Answer(body=b""),
    ],
    ids=["forbidden", "closed", "garbage", "expired", "empty"],
)
async def test_without_a_watch_the_lease_is_polled(
    authority: CertificateAuthority, refusal: Action
) -> None:
    async with electing(authority) as bench:
        bench.script("GET", *[says("other", 5)] * 4, says("", 7))
        bench.script_watch(refusal)
        bench.script("PUT", says("me", 8, transitions=1))
        await bench.elector.acquire()
        # The HTTP library sends a GET twice when its connection is closed at once.
        assert bench.sent().count("WATCH") <= 2
        assert bench.sent().count("GET") == 5


async def test_a_lost_race_is_no_failure(authority: CertificateAuthority) -> None:
    async with electing(authority) as bench:
        bench.script("GET", MISSING, says("other", 5), says("", 6))
        bench.script("POST", status_answer(409, "AlreadyExists", "leases already exists"))
        bench.script_watch(FORBIDDEN)
        bench.script("PUT", says("me", 8, transitions=1))
        await bench.elector.acquire()
        assert bench.sent() == ["GET", "POST", "GET", "WATCH", "GET", "PUT"]


async def test_c50_what_cannot_be_read_is_waited_for_and_never_a_crash(
    authority: CertificateAuthority,
) -> None:
    async with electing(authority) as bench:
        odd = record("other", 5)
        odd["spec"] |= {"renewTime": "rubbish", "acquireTime": 7, "leaseTransitions": "many"}
        bench.script("GET", Answer(body=b"<html>"), Answer(body=odd), says("", 6))
        bench.script_watch(FORBIDDEN)
        bench.script("PUT", says("me", 8, transitions=1))
        await bench.elector.acquire()
        assert bench.sent() == ["GET", "GET", "WATCH", "GET", "PUT"]


async def test_a_missing_namespace_is_named_until_it_is_there(
    authority: CertificateAuthority,
) -> None:
    async with electing(authority) as bench:
        bench.script("GET", MISSING)
        missing = status_answer(404, "NotFound", 'namespaces "ns" not found')
        bench.script("POST", missing, missing, Answer(201, body=record("me")))
        await bench.elector.acquire()
        assert bench.sent() == ["GET", "POST"] * 3


async def test_c51_a_stop_during_a_claim_waits_for_its_answer_and_releases(
    authority: CertificateAuthority,
) -> None:
    async with electing(authority) as bench:
        bench.script("GET", MISSING)
        answer: list[Step] = [Until("go"), Lines(record("me"))]
        bench.script("POST", Answer(201, body=answer))
        async with anyio.create_task_group() as group:
            group.start_soon(bench.elector.acquire)
            await bench.server.received(1, method="POST")
            group.cancel_scope.cancel()
            bench.server.release("go")
        bench.script("PUT", says("", 3))
        await bench.elector.release()
        assert bench.specs()[-1]["holderIdentity"] == ""


async def test_c51_a_claim_without_an_answer_is_looked_up_and_released(
    authority: CertificateAuthority,
) -> None:
    async with electing(authority) as bench:
        bench.script("GET", MISSING, says("me", 4))
        bench.script("POST", Hang())
        async with anyio.create_task_group() as group:
            group.start_soon(bench.elector.acquire)
            await bench.server.received(1, method="POST")
            group.cancel_scope.cancel()
        bench.script("PUT", CONFLICT, says("", 5))
        await bench.elector.release()
        assert bench.sent() == ["GET", "POST", "GET", "PUT", "GET", "PUT"]


async def test_c51_a_release_that_cannot_be_done_ends_with_the_renew_deadline(
    authority: CertificateAuthority,
) -> None:
    async with electing(authority) as bench:
        await lead(bench)
        bench.script("PUT", Hang())
        began = time.monotonic()
        await bench.elector.release()
        assert time.monotonic() - began < 2 * 5


async def test_nothing_is_asked_when_there_is_nothing_to_release(
    authority: CertificateAuthority,
) -> None:
    async with electing(authority) as bench:
        await bench.elector.release()
        assert bench.sent() == []


async def test_health_says_why_the_lease_was_not_seen(authority: CertificateAuthority) -> None:
    now = 0.0
    async with electing(authority) as bench:
        bench.elector._clock = lambda: now
        bench.elector._election._clock = lambda: now
        bench.elector.well_at = bench.elector._election._next_try = now
        bench.script("GET", FORBIDDEN)
        with anyio.move_on_after(0.3):
            await bench.elector.acquire()
        assert bench.elector.health() is None
        now = 4.1
        health = bench.elector.health()
        assert health is not None
        assert "lease ns/lock was neither renewed nor seen to be held for 4 s" in health
        assert 'leases "lock" is forbidden' in health
