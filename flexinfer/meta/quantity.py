# SPDX-License-Identifier: Apache-2.0
"""Amounts with a unit suffix: `500m` of a CPU, `16Gi` of memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import total_ordering
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field
from pydantic_core import core_schema

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue

__all__ = ["NonNegativeQuantity", "Quantity"]

_AMOUNT = (
    r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
    r"([KMGTPE]i|[numkMGTPE]|[eE][+-]?0*[0-9]{1,2})?$"
)
PATTERN = rf"^[+-]?{_AMOUNT}"
NON_NEGATIVE_PATTERN = rf"^\+?{_AMOUNT}"

_SYNTAX = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]*))?|\.(?P<bare>[0-9]+))"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_BINARY_SUFFIX = {power: suffix for suffix, power in _BINARY.items()}
_NANO = 10**9
# resource.Quantity caps binary amounts at the largest int64.
_BINARY_CAP = (2**63 - 1) * _NANO
# Longer text and larger exponents are no amount of anything, only a way to burn memory.
_MAX_LENGTH = 128
_MAX_EXPONENT = 99
_SHOWN = 40  # characters of what is wrong in a message


class _Format(Enum):
    """Remember which family of suffixes an amount was written with."""

    DECIMAL = "decimal"
    BINARY = "binary"
    EXPONENT = "exponent"


@total_ordering
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Quantity:
    """Be an exact amount, printed in the canonical form of `resource.Quantity`.

    Equality, order and hash are by value: `1Gi` equals `1024Mi`. The finest step is one nano;
    what is finer is rounded away from zero, as the API server does. Pydantic fields of this type
    take a string or an integer and give the canonical string.
    """

    nanos: int = 0
    _format: _Format = _Format.DECIMAL

    @classmethod
    def parse(cls, text: str | int) -> Self:
        """Read `1500m`, `1.5Gi`, `12e6` or a plain number; raise ConfigurationError otherwise."""
        if isinstance(text, int) and not isinstance(text, bool):
            return cls(text * _NANO)
        match = _SYNTAX.fullmatch(text) if isinstance(text, str) else None
        if match is None or len(match.string) > _MAX_LENGTH:
            shown = f"{str(text)[:_SHOWN]!r}"
            raise ConfigurationError(f"{shown} is no quantity: write it like 500m, 2 or 16Gi")
        part = match["bare"] or match["part"] or ""
        digits = int((match["whole"] or "") + part)
        sign = -1 if match["sign"] == "-" else 1
        return cls._scaled(sign, digits, len(part), match["suffix"] or "")

    @classmethod
    def _scaled(cls, sign: int, digits: int, places: int, suffix: str) -> Self:
        if suffix in _BINARY:
            nanos = _divide_up(digits * 1024 ** _BINARY[suffix] * _NANO, 10**places)
            # Below one the binary suffixes would round; the API server turns to decimal too.
            family = _Format.BINARY if nanos >= _NANO else _Format.DECIMAL
            return cls(sign * min(nanos, _BINARY_CAP), family)
        family = _Format.DECIMAL if suffix in _DECIMAL else _Format.EXPONENT
        exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
        if abs(exponent) > _MAX_EXPONENT:
            raise ConfigurationError(
                f"the exponent {exponent} of a quantity is out of range: "
                f"stay within ±{_MAX_EXPONENT}"
            )
        power = exponent + 9 - places
        nanos = digits * 10**power if power >= 0 else _divide_up(digits, 10**-power)
        return cls(sign * nanos, family)

    def __str__(self) -> str:
        if self.nanos == 0:
            return "0"
        if self._format is _Format.BINARY:
            whole, rest = divmod(self.nanos, _NANO)
            if rest == 0 and abs(whole) >= 1024:  # noqa: PLR2004 - 1 Ki
                return _canonical_binary(whole)
        return self._canonical_decimal()

    def _canonical_decimal(self) -> str:
        exponential = self._format is _Format.EXPONENT
        mantissa, exponent = self.nanos, -9
        while mantissa % 1000 == 0 and (exponential or exponent < _DECIMAL["E"]):
            mantissa, exponent = mantissa // 1000, exponent + 3
        if exponential:
            return f"{mantissa}e{exponent}" if exponent else str(mantissa)
        return f"{mantissa}{_DECIMAL_SUFFIX[exponent]}"

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self.nanos < other.nanos if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos + other.nanos, self._or_format_of(other))

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos - other.nanos, self._or_format_of(other))

    def __mul__(self, times: int) -> Quantity:
        return Quantity(self.nanos * times, self._format)

    def _or_format_of(self, other: Quantity) -> _Format:
        """Keep the own suffix family, but let zero take the other's."""
        return self._format if self.nanos else other._format

    def __float__(self) -> float:
        return self.nanos / _NANO

    def __int__(self) -> int:
        """Return the amount rounded up, as the scheduler counts it."""
        return -(-self.nanos // _NANO)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: object, _handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        def validate(value: Any) -> Quantity:
            return value if isinstance(value, Quantity) else cls.parse(value)

        return core_schema.no_info_plain_validator_function(
            validate, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": _MAX_LENGTH,
            "pattern": PATTERN,
            "x-kubernetes-int-or-string": True,
        }


ZERO = Quantity()


def _not_negative(value: Quantity) -> Quantity:
    if value.nanos < 0:
        raise ConfigurationError(f"{value} is negative: write a quantity of zero or more")
    return value


NonNegativeQuantity = Annotated[
    Quantity,
    AfterValidator(_not_negative),
    Field(json_schema_extra={"pattern": NON_NEGATIVE_PATTERN}),
]
"""A Quantity that may be zero but not negative, here and in the schema."""


def _divide_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _canonical_binary(whole: int) -> str:
    power = 0
    while power < _BINARY["Ei"] and whole % 1024 == 0:
        whole, power = whole // 1024, power + 1
    return f"{whole}{_BINARY_SUFFIX[power] if power else ''}"
