# SPDX-License-Identifier: Apache-2.0
"""Lines of a watch that cannot be read, are too long, or tell of an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.cache.trouble import error_of
from flexinfer.client.lines import OversizedLine
from flexinfer.errors import ApiError, ExpiredError, ServerError, ThrottledError
from flexinfer.meta.wire import Status

if TYPE_CHECKING:
    from test.unit.reflector.conftest import Rig


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"MODIFIED","object":{"meta',
        b"<html>502</html>",
        b'"text"',
        b"{}",
        b'{"type":"ADDED","object":{}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"x"}}}',
        b'{"type":"NOVEL","object":{"metadata":{"name":"x","resourceVersion":"1"}}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":"1","labels":{"a":1}}}}',
        b'{"type":"BOOKMARK","object":{"metadata":{}}}',
    ],
)
async def test_c25_c26_a_line_that_cannot_be_read_is_skipped_and_counted(
    rig: Rig, line: bytes
) -> None:
    async with rig.running():
        await rig.watching()
        rig.api.inject(line)
        rig.api.put("a")
        await rig.equal()
        assert rig.count("WATCH") == 1
    assert rig.heard() == ["+a"]
    assert rig.metric("unreadable_lines_total") == 1


async def test_a_hole_is_filled_by_a_list_when_the_watch_ends(rig: Rig) -> None:
    rig.api.put("a")
    async with rig.running():
        await rig.watching()
        rig.api.is_holding = True
        rig.api.delete("a")
        rig.api._sent = len(rig.api._log)  # The server thinks it told; the line was garbage.
        rig.api.is_holding = False
        rig.api.inject(b"garbage")
        rig.api.put("b")
        await rig.until(lambda: "+b" in rig.heard())
        assert "default/a" in rig.content()
        rig.api.close()
        await rig.equal()
    assert rig.heard() == ["=a", "+b", "?a"]
    assert rig.metric("relists_total", reason="unreadable") == 1


async def test_garbage_from_a_server_that_closes_at_once_is_no_storm(rig: Rig) -> None:
    rig.api.closes_at_once = True
    begin = rig.api._begin

    def begin_with_garbage(watch: object, revision: int) -> None:
        begin(watch, revision)  # type: ignore[arg-type]  # passes through what it was given
        watch.lines.append(b"garbage")  # type: ignore[attr-defined]  # a SimulatedWatch

    rig.api._begin = begin_with_garbage  # type: ignore[method-assign]  # one fault, for one test
    async with rig.running():
        await rig.until(lambda: rig.clock.now >= 1030.0)
    assert rig.count("WATCH") <= 15
    assert rig.count("LIST") <= 15


async def test_c24_an_oversized_line_is_skipped_counted_and_healed(rig: Rig) -> None:
    async with rig.running():
        await rig.watching()
        for watch in rig.api.watches:
            watch.lines.append(OversizedLine(20_000_000, b"{"))  # type: ignore[arg-type]  # as the transport gives it
        rig.api.put("a")
        await rig.equal()
        rig.api.close()
        await rig.watching(2)
    assert rig.metric("unreadable_lines_total") == 1
    assert rig.count("LIST") == 2


async def test_c25_an_error_event_without_a_word_is_a_server_error_and_no_relist(rig: Rig) -> None:
    async with rig.running():
        await rig.watching()
        rig.api.inject({"type": "ERROR", "object": {}})
        await rig.watching(2)
        rig.api.inject({"type": "ERROR", "object": {"code": 500, "message": "etcd"}})
        await rig.watching(3)
        rig.api.put("a")
        await rig.equal()
    assert rig.count("LIST") == 1
    assert rig.clock.now - 1000.0 == pytest.approx(0.8 + 1.6)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, ServerError),
        (Status(), ServerError),
        (Status(code=410), ExpiredError),
        (Status(reason="Expired"), ExpiredError),
        (Status(reason="Gone"), ExpiredError),
        (Status(code=429), ThrottledError),
        (Status(code=500, reason="InternalError", message="boom"), ServerError),
    ],
)
def test_error_events_become_the_error_they_would_be_as_an_answer(
    status: Status | None, expected: type[ApiError]
) -> None:
    error = error_of(status)
    assert type(error) is expected
    assert str(error)
