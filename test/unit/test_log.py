# SPDX-License-Identifier: Apache-2.0
"""Logging: what a line looks like, and what is not written."""

from __future__ import annotations

import contextvars
import io
import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from flexinfer import log, runs
from flexinfer.envtest.clock import ManualClock
from flexinfer.errors import ConfigurationError
from flexinfer.meta.resource import NamespacedName

pytestmark = pytest.mark.usefixtures("restored_logging")


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_its_values_as_keys() -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    log.get_logger("manager").info("serving metrics", port=8080)
    (line,) = lines(stream)
    assert list(line)[:4] == ["ts", "level", "logger", "msg"]
    assert line.pop("ts").endswith("Z")
    assert line == {
        "msg": "serving metrics",
        "level": "info",
        "logger": "manager",
        "port": 8080,
    }


def test_lines_carry_the_context_of_the_reconcile() -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    context = contextvars.copy_context()
    context.run(runs.begin, "model", NamespacedName("a", "b"))
    logger = log.get_logger("x")
    context.run(logger.info, "applied")
    context.run(logger.info, "named", name="mine")
    logger.info("elsewhere")
    first, second, last = lines(stream)
    assert (first["controller"], first["namespace"], first["name"]) == ("model", "a", "b")
    assert first["reconcile_id"] == second["reconcile_id"]
    assert second["name"] == "mine"
    assert "reconcile_id" not in last


def test_a_line_below_the_level_is_not_formatted() -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    stream = io.StringIO()
    log.configure(stream=stream, level="warning")
    log.get_logger("x").info("ignored", value=Unprintable())
    assert stream.getvalue() == ""


def test_an_exception_is_one_line_with_its_traceback() -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    try:
        int("boom")
    except ValueError:
        log.get_logger("x").exception("reconcile failed")
    (line,) = lines(stream)
    assert line["level"] == "error"
    assert line["exception"].endswith("with base 10: 'boom'")


def test_console_lines_are_for_people() -> None:
    stream = io.StringIO()
    log.configure(stream=stream, form=log.LogFormat.CONSOLE)
    log.get_logger("x").info("serving metrics", port=8080)
    assert "serving metrics" in stream.getvalue()
    assert "port=8080" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_auto_is_console_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    log.configure(stream=stream)
    log.get_logger("x").info("hello")
    assert "\x1b[" in stream.getvalue()


def test_library_loggers_write_warnings_in_the_same_form() -> None:
    stream = io.StringIO()
    log.configure(stream=stream, level="debug")
    logging.getLogger("aiohttp.access").info("GET / 200")
    logging.getLogger("aiohttp.server").warning("unclosed %s", "thing")
    (line,) = lines(stream)
    assert (line["msg"], line["level"], line["logger"]) == (
        "unclosed thing",
        "warning",
        "aiohttp.server",
    )


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="log level 'loud' is unknown: use one of debug"):
        log.configure(level="loud")


def test_before_any_setup_a_traceback_shows_no_values() -> None:
    code = """
from flexinfer import log
from flexinfer.envtest.clock import ManualClock
def fail():
    token = "se" + "cret"
    raise RuntimeError("no")
try:
    fail()
except RuntimeError:
    log.get_logger("x").exception("failed")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "RuntimeError: no" in done.stdout
    assert "secret" not in done.stdout


def test_one_of_many_like_lines_is_logged_a_minute() -> None:
    clock = ManualClock()
    burst = log.Burst(clock)
    assert [burst.admit() for _ in range(3)] == [True, False, False]
    clock.now += 60.0
    assert burst.admit()
    assert burst.take_suppressed() == 2
    assert burst.take_suppressed() == 0
