# SPDX-License-Identifier: Apache-2.0
"""Structured logs: constant messages, values as keys, one line of JSON each in a cluster.

The level is checked before anything else, so a line that is not written costs a function call.
Inside a reconcile every line carries `controller`, `namespace`, `name` and `reconcile_id`. The
standard library's loggers, asyncio's among them, are written at WARNING and above in the same
form. Bodies and tokens are never logged.
"""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, TextIO, cast

from flexinfer import runs
from flexinfer.errors import ConfigurationError

# structlog takes rich where that is installed, which the command line brings along: 4 MiB and
# 60 ms, for tracebacks that would show the values of variables, tokens among them.
_rich = sys.modules.get("rich")
if _rich is None:
    sys.modules["rich"] = None  # type: ignore[assignment] # how Python spells "not to be found"
try:
    import structlog
finally:
    if _rich is None:
        del sys.modules["rich"]

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import EventDict, FilteringBoundLogger, Processor

__all__ = ["Burst", "LogFormat", "configure", "get_logger", "merge_run"]


_HEAD = ("ts", "level", "logger", "msg")


class LogFormat(StrEnum):
    """Say how a line looks; `AUTO` is console on a terminal and JSON elsewhere."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class Burst:
    """Let one of many like lines through per minute, and count the others.

    *clock* is monotonic, in seconds, as is *seconds*, the length of that minute.
    """

    def __init__(self, clock: Callable[[], float], *, seconds: float = 60.0) -> None:
        self._clock = clock
        self._seconds = seconds
        self._until = float("-inf")
        self._suppressed = 0

    def admit(self) -> bool:
        """Say whether to log now; if so, `take_suppressed` tells what was left out before."""
        now = self._clock()
        if now < self._until:
            self._suppressed += 1
            return False
        self._until = now + self._seconds
        return True

    def take_suppressed(self) -> int:
        """Return how many lines were left out since the last one, and start counting anew."""
        count, self._suppressed = self._suppressed, 0
        return count


def get_logger(name: str) -> FilteringBoundLogger:
    """Return the logger of a module; *name* becomes the key `logger`.

    Until `configure` is called, or the program configures structlog itself, lines go to the
    console without the values of variables in tracebacks, among which structlog would show
    tokens.
    """
    if not structlog.is_configured():
        structlog.configure(processors=[*_shared(), *_console(sys.stdout)])
    return cast("FilteringBoundLogger", structlog.get_logger(logger_name=name))


def configure(
    *, level: str = "info", form: LogFormat = LogFormat.AUTO, stream: TextIO | None = None
) -> None:
    """Set up logging for the process; call it once, before the first line is written.

    Lines go to *stream*, by default standard error. Raises ConfigurationError for a level that
    is none of debug, info, warning, error and critical.
    """
    stream = sys.stderr if stream is None else stream
    threshold = _level(level)
    shared = _shared()
    console = form is LogFormat.CONSOLE or (form is LogFormat.AUTO and stream.isatty())
    rendering = _console(stream) if console else _json()
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(threshold, logging.WARNING), force=True)


def _level(name: str) -> int:
    levels = ("debug", "info", "warning", "error", "critical")
    if name.lower() not in levels:
        raise ConfigurationError(f"log level {name!r} is unknown: use one of {', '.join(levels)}")
    return logging.getLevelNamesMapping()[name.upper()]


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        merge_run,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        _name_logger,
    ]


def merge_run(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Say which reconcile a line is of, as a processor of structlog; what the line says wins.

    For whoever configures structlog himself: in the place of, or after, `merge_contextvars`.
    """
    run = runs.current()
    return event if run is None else {**run.fields(), **event}


def _json() -> list[Processor]:
    return [
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("msg"),
        _head_first,
        structlog.processors.JSONRenderer(default=str),
    ]


def _head_first(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Begin each line alike, for the eyes of whoever reads many."""
    return {key: event.pop(key) for key in _HEAD if key in event} | dict(event)


def _console(stream: TextIO) -> list[Processor]:
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)]


def _name_logger(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Write the name under `logger`, a key that structlog does not let a caller bind."""
    record = event.get("_record")
    event["logger"] = event.pop("logger_name", "") if record is None else record.name
    return event
