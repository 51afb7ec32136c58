# SPDX-License-Identifier: Apache-2.0
"""Lengths of time in Go's syntax, as Kubernetes APIs write them: `300ms`, `1h30m`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field, JsonValue
from pydantic_core import core_schema

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue

__all__ = ["Duration", "NonNegativeDuration"]

_TERM = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
PATTERN = rf"^[+-]?(0|({_TERM})+)$"
NON_NEGATIVE_PATTERN = rf"^\+?(0|({_TERM})+)$"

_SYNTAX = re.compile(PATTERN)
_TERMS = re.compile(_TERM)
_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # U+00B5, micro sign
    "μs": 10**3,  # U+03BC, Greek letter mu: Go reads both
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_SECOND = 10**9
_MIN, _MAX = -(2**63), 2**63 - 1
_MAX_LENGTH = 128


def _rule(pattern: str) -> dict[str, JsonValue]:
    """Say the pattern once more, for a message that people can read."""
    what = "a duration" if pattern == PATTERN else "a duration of zero or more"
    rule: dict[str, JsonValue] = {
        "rule": f"self.matches(r'{pattern}')",
        "message": f"must be {what}, such as 90s, 5m or 1h30m",
    }
    return {"x-kubernetes-validations": [rule]}


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Duration:
    """Be a whole number of nanoseconds within 292 years, printed as Go prints it.

    `90m` prints as `1h30m0s`. Pydantic fields of this type take and give the string form.
    """

    nanoseconds: int = 0

    def __post_init__(self) -> None:
        if not _MIN <= self.nanoseconds <= _MAX:
            raise ConfigurationError("a duration is out of range: stay within 2562047h")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read Go's syntax; raise ConfigurationError when *text* is not in it.

        What is finer than a nanosecond is cut off.
        """
        if len(text) > _MAX_LENGTH or not _SYNTAX.fullmatch(text):
            raise ConfigurationError(f"{text!r} is no duration: write it like 90s, 5m or 1h30m")
        total = 0
        for number, _, unit in _TERMS.findall(text):
            whole, _, part = number.partition(".")
            total += int(whole or "0") * _NANOSECONDS[unit]
            total += int(part or "0") * _NANOSECONDS[unit] // 10 ** len(part)
        return cls(-total if text.startswith("-") else total)

    @classmethod
    def from_seconds(cls, seconds: float) -> Self:
        """Round *seconds* to the nearest nanosecond."""
        return cls(round(seconds * _SECOND))

    @property
    def seconds(self) -> float:
        """Return the length in seconds, as timers take it."""
        return self.nanoseconds / _SECOND

    def __str__(self) -> str:
        sign, rest = ("-" if self.nanoseconds < 0 else ""), abs(self.nanoseconds)
        if rest == 0:
            return "0s"
        for unit, larger in (("ns", "µs"), ("µs", "ms"), ("ms", "s")):
            if rest < _NANOSECONDS[larger]:
                return f"{sign}{_decimal(rest, _NANOSECONDS[unit])}{unit}"
        minutes, rest = divmod(rest, _NANOSECONDS["m"])
        hours, minutes = divmod(minutes, 60)
        head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
        return f"{sign}{head}{_decimal(rest, _SECOND)}s"

    def __repr__(self) -> str:
        return f"Duration({str(self)!r})"

    def __bool__(self) -> bool:
        return self.nanoseconds != 0

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: object, _handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        def validate(value: Any) -> Duration:
            return value if isinstance(value, Duration) else cls.parse(str(value))

        return core_schema.no_info_plain_validator_function(
            validate, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "maxLength": _MAX_LENGTH, "pattern": PATTERN, **_rule(PATTERN)}


def _not_negative(value: Duration) -> Duration:
    if value.nanoseconds < 0:
        raise ConfigurationError(f"{value} is negative: write a duration of zero or more")
    return value


NonNegativeDuration = Annotated[
    Duration,
    AfterValidator(_not_negative),
    Field(json_schema_extra={"pattern": NON_NEGATIVE_PATTERN, **_rule(NON_NEGATIVE_PATTERN)}),
]
"""A Duration that may be zero but not negative, here and in the schema."""


def _decimal(amount: int, unit: int) -> str:
    whole, part = divmod(amount, unit)
    if part == 0:
        return str(whole)
    return f"{whole}.{str(part).zfill(len(str(unit)) - 1).rstrip('0')}"
