# SPDX-License-Identifier: Apache-2.0
"""Probe endpoints: the answers and the texts that Kubernetes' readers expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import pytest

from flexinfer.errors import ConfigurationError
from flexinfer.healthz import Checks
from flexinfer.server import Address, serve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flexinfer.healthz import Check

LOOPBACK = Address("127.0.0.1", 0, "probe_address")


def checks(**reasons: str | None) -> Checks:
    made = Checks("readyz")
    for name, reason in reasons.items():
        made.add(name, lambda reason=reason: reason)  # type: ignore[misc] # bound early on purpose
    return made


async def answers(made: Checks, *paths: str) -> list[tuple[int, str]]:
    async with (
        serve(LOOPBACK, made.routes()) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        return [(r.status, await r.text()) for r in [await session.get(path) for path in paths]]


async def test_healthy_is_a_plain_ok() -> None:
    assert await answers(checks(ping=None), "/readyz") == [(200, "ok")]
    assert await answers(Checks("readyz"), "/readyz") == [(200, "ok")]


async def test_verbose_lists_every_check() -> None:
    (answer,) = await answers(checks(ping=None, disk=None), "/readyz?verbose")
    assert answer == (200, "[+]ping ok\n[+]disk ok\nreadyz check passed\n")


async def test_a_failure_is_a_500_that_says_why() -> None:
    made = checks(ping=None, disk="full:\n  /var")
    (answer,) = await answers(made, "/readyz")
    assert answer == (500, "[+]ping ok\n[-]disk failed: full: /var\nreadyz check failed\n")


async def test_excluded_checks_are_not_run() -> None:
    def never() -> str | None:
        raise AssertionError("run")

    made = checks(ping=None, disk="full")
    made.add("never", never)
    plain, verbose, unknown = await answers(
        made,
        "/readyz?exclude=disk&exclude=never",
        "/readyz?verbose&exclude=disk&exclude=never",
        "/readyz?verbose&exclude=disk&exclude=never&exclude=nothing",
    )
    assert plain == (200, "ok")
    assert verbose[1].splitlines() == [
        "[+]ping ok",
        "[+]disk excluded: ok",
        "[+]never excluded: ok",
        "readyz check passed",
    ]
    assert 'warn: some checks cannot be excluded: no matches for "nothing"' in unknown[1]
    assert unknown[0] == 200


async def test_a_single_check_has_its_own_path() -> None:
    good, bad, none = await answers(
        checks(ping=None, disk="full"), "/readyz/ping", "/readyz/disk", "/readyz/other"
    )
    assert good == (200, "ok")
    assert bad == (500, "[-]disk failed: full\n")
    assert none == (404, "/readyz has no check other\n")


async def test_a_check_that_raises_has_failed() -> None:
    def broken() -> str | None:
        raise ValueError("boom")

    made = Checks("readyz")
    made.add("broken", broken)
    (answer,) = await answers(made, "/readyz/broken")
    assert answer == (500, "[-]broken failed: the check itself failed: ValueError: boom\n")


async def test_checks_come_and_go_with_their_group() -> None:
    present: dict[str, str | None] = {}

    def group() -> Iterable[tuple[str, Check]]:
        return [(name, lambda name=name: present[name]) for name in present]  # type: ignore[misc] # bound early on purpose

    made = checks(ping=None)
    made.add_group(group)
    assert made.report().text == "[+]ping ok\nreadyz check passed\n"
    present["informer-pods"] = "forbidden"
    assert "[-]informer-pods failed: forbidden\n" in made.report().text
    assert made.reason("informer-pods") == "forbidden"


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a?b", "a\nb"])
def test_a_name_that_is_no_path_segment_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot stand in a path"):
        Checks("readyz").add(name, lambda: None)


def test_a_taken_name_is_refused() -> None:
    made = checks(ping=None)
    with pytest.raises(ConfigurationError, match="/readyz has a check 'ping' already"):
        made.add("ping", lambda: None)
