# SPDX-License-Identifier: Apache-2.0
"""When credentials are renewed, and what their users see, against issuers of every mood."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
import structlog
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.client import renewal
from flexinfer.client.renewal import Issued, RenewedCredentials
from flexinfer.client.tls import TlsFiles, Trust
from flexinfer.client.transport import TIMEOUT
from flexinfer.envtest.eventually import eventually
from flexinfer.errors import CredentialError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVER = "https://127.0.0.1:6443"
NOON = 1_000_000.0


class Clock:
    """Be the clock on the wall and the monotonic one; a test moves them together."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


class Someone:
    """Issue token-1, token-2 and so on, or fail with a reason."""

    def __init__(self, clock: Clock, *, life: float | None = None) -> None:
        self.clock = clock
        self.life = life
        self.failure = ""
        self.prefix = "token"
        self.issued = 0
        self.at_once = 0
        self.gate = anyio.Event()
        self.gate.set()

    def __str__(self) -> str:
        return "someone"

    async def issue(self) -> Issued:
        self.issued += 1
        number = self.issued
        self.at_once += 1
        assert self.at_once == 1
        await self.gate.wait()
        await checkpoint()
        self.at_once -= 1
        if self.failure:
            raise CredentialError(self.failure)
        expires = None if self.life is None else self.clock() + self.life
        return Issued(f"{self.prefix}-{number}", expires=expires)


class Case:
    def __init__(self, life: float | None = None) -> None:
        self.clock = Clock()
        self.someone = Someone(self.clock, life=life)
        self.credentials = RenewedCredentials(
            SERVER, self.someone, tls=TlsFiles(Trust()), clock=self.clock, now=self.clock
        )

    async def header(self) -> str:
        return (await self.credentials.authorization()).header

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self.credentials.keep)
            yield
            group.cancel_scope.cancel()


async def test_a_token_without_expiry_is_got_once_and_late() -> None:
    case = Case()
    async with case.kept():
        await checkpoint()
        assert case.someone.issued == 0
        for _ in range(3):
            case.clock.now += 1e6
            assert await case.header() == "Bearer token-1"


async def test_c67_renewed_in_the_background_before_it_expires() -> None:
    case = Case(life=20)
    async with case.kept():
        assert await case.header() == "Bearer token-1"
        case.clock.now += 14.9
        assert await case.header() == "Bearer token-1"
        await checkpoint()
        assert case.someone.issued == 1
        # At 85 % at the latest; and who asks meanwhile does not wait.
        case.someone.gate = anyio.Event()
        case.clock.now += 2.2
        assert await case.header() == "Bearer token-1"
        await eventually(lambda: case.someone.issued == 2, within=5)
        assert await case.header() == "Bearer token-1"
        case.someone.gate.set()
        await eventually(lambda: arrived(case, "token-2"), within=5)
        assert case.someone.issued == 2


def arrived(case: Case, token: str) -> bool:
    return case.credentials._authorization.header == f"Bearer {token}"


async def test_c67_renewed_in_time_even_when_nobody_asks() -> None:
    case = Case(life=0.2)
    async with case.kept():
        await case.header()
        # The clock of the test stands still, so each token is good for as long again.
        await eventually(lambda: case.someone.issued >= 3, within=10)


async def test_who_asks_for_an_expired_one_waits_for_the_next() -> None:
    case = Case(life=20)
    async with case.kept():
        await case.header()
        case.clock.now += 20
        assert await case.header() == "Bearer token-2"


async def test_c67_a_failure_leaves_a_good_token_and_is_tried_again_later() -> None:
    case = Case(life=1000)
    async with case.kept():
        await case.header()
        case.someone.failure = "no network"
        case.clock.now += 900
        assert await case.header() == "Bearer token-1"
        await eventually(lambda: case.someone.issued == 2, within=5)
        for _ in range(10):
            assert await case.header() == "Bearer token-1"
            await checkpoint()
        assert case.someone.issued == 2
        case.someone.failure = ""
        case.clock.now += 1.1
        await case.header()
        await eventually(lambda: arrived(case, "token-3"), within=5)


async def test_c67_without_a_good_token_the_reason_is_raised_until_it_heals() -> None:
    case = Case(life=1000)
    case.someone.failure = "no network"
    async with case.kept():
        for _ in range(10):
            with pytest.raises(CredentialError, match=r"^no network$"):
                await case.header()
        assert case.someone.issued == 1
        case.someone.failure = ""
        case.clock.now += 1.1
        assert await case.header() == "Bearer token-2"


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30))
async def test_the_wait_after_failures_grows_and_is_bounded(failures: int) -> None:
    case = Case()
    case.someone.failure = "no network"
    async with case.kept():
        for number in range(failures):
            with pytest.raises(CredentialError):
                await case.header()
            assert case.someone.issued == number + 1
            wait = case.credentials._not_before - case.clock()
            ceiling = min(2.0**number, 30)
            assert ceiling / 2 <= wait <= ceiling
            case.clock.now += wait


async def test_c67_fifty_refusals_are_one_renewal() -> None:
    case = Case()
    async with case.kept():
        rejected = await case.credentials.authorization()
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(case.credentials.invalidate, rejected)
        assert await case.header() == "Bearer token-2"
        await case.credentials.invalidate(rejected)
        assert case.someone.issued == 2


async def test_a_server_that_refuses_everybody_is_renewed_for_every_ten_seconds() -> None:
    case = Case()
    async with case.kept():
        for _ in range(100):
            await case.credentials.invalidate(await case.credentials.authorization())
        assert case.someone.issued == 2
        case.clock.now += 10
        await case.credentials.invalidate(await case.credentials.authorization())
        assert case.someone.issued == 3


async def test_a_refused_credential_that_cannot_be_renewed_tells_why() -> None:
    case = Case()
    async with case.kept():
        rejected = await case.credentials.authorization()
        case.someone.failure = "log in again"
        with pytest.raises(CredentialError, match="log in again"):
            await case.credentials.invalidate(rejected)
        with pytest.raises(CredentialError, match="log in again"):
            await case.header()
        assert case.someone.issued == 2


async def test_one_that_is_past_its_expiry_by_our_clock_is_used_until_it_is_refused() -> None:
    case = Case(life=-3600)
    async with case.kept():
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                assert await case.header() == "Bearer token-1"
        assert "credential is past its expiry by our clock" in {e["event"] for e in logs}
        await case.credentials.invalidate(await case.credentials.authorization())
        assert await case.header() == "Bearer token-2"


async def test_a_token_that_would_break_the_header_is_refused_and_not_shown() -> None:
    case = Case()
    case.someone.prefix = "top\r\nsecret"
    async with case.kept():
        with pytest.raises(CredentialError, match="the token of someone holds") as caught:
            await case.header()
    assert "secret" not in str(caught.value)


async def test_an_issuer_that_does_not_answer_is_named_before_the_deadline_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert renewal._LONGEST_WAIT < TIMEOUT
    monkeypatch.setattr(renewal, "_LONGEST_WAIT", 0.1)
    case = Case()
    case.someone.gate = anyio.Event()
    async with case.kept():
        with pytest.raises(CredentialError, match=r"someone gave no answer within 0\.1 s"):
            await case.header()
        case.someone.gate.set()
        assert await case.header() == "Bearer token-1"


async def test_two_transports_may_share_them_and_the_second_goes_on_when_the_first_ends() -> None:
    case = Case(life=20)
    async with case.kept():
        async with case.kept():
            assert await case.header() == "Bearer token-1"
        case.clock.now += 20
        assert await case.header() == "Bearer token-2"
    async with case.kept():
        case.clock.now += 20
        assert await case.header() == "Bearer token-3"


async def test_tokens_are_not_logged() -> None:
    case = Case()
    with structlog.testing.capture_logs() as logs:
        async with case.kept():
            await case.header()
    assert [entry["event"] for entry in logs] == ["credential renewed"]
    assert "token-1" not in str(logs)
