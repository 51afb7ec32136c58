# SPDX-License-Identifier: Apache-2.0
"""Choosing objects by their labels, in the syntax of `kubectl -l` and in that of API fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from pydantic import ConfigDict, Field

from flexinfer.errors import ConfigurationError
from flexinfer.meta.object import Model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["LabelSelector", "LabelSelectorRequirement", "Operator", "Requirement", "Selector"]

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_PREFIX = 253
_WORD = r"[^\s=!(),<>]+"
_SET = re.compile(rf"({_WORD})\s+(in|notin)\s*\(([^()]*)\)")
_EQUALITY = re.compile(rf"({_WORD})\s*(==|=|!=)\s*({_WORD})?")
_PRESENCE = re.compile(rf"(!?)\s*({_WORD})")
# A comma inside parentheses separates values, any other separates requirements.
_SEPARATOR = re.compile(r",(?![^()]*\))")


class Operator(StrEnum):
    """Name what a requirement asks of one label, as API fields spell it."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Requirement:
    """Ask something of one label. Raises ConfigurationError when the API server would refuse it.

    `values` are sorted and unique; NotIn is also met by objects without the label.
    """

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(sorted(set(self.values))))
        _check_key(self.key)
        for value in self.values:
            if value and not _NAME.fullmatch(value):
                raise ConfigurationError(
                    f"{value!r} is no label value for {self.key!r}: at most 63 letters, digits, "
                    "'-', '_' and '.', starting and ending with a letter or digit"
                )
        takes_values = self.operator in {Operator.IN, Operator.NOT_IN}
        if takes_values != bool(self.values):
            need = "at least one value" if takes_values else "no values"
            raise ConfigurationError(
                f"the {self.operator} requirement on {self.key!r} takes {need}"
            )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an object with *labels* meets this requirement."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case _:
                return self.key not in labels

    def __str__(self) -> str:
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case _ if len(self.values) == 1:
                return f"{self.key}{'=' if self.operator is Operator.IN else '!='}{self.values[0]}"
            case _:
                return f"{self.key} {self.operator.lower()} ({','.join(self.values)})"


@dataclass(frozen=True, slots=True)
class Selector:
    """Be a conjunction of requirements; none at all matches every object.

    Requirements are sorted and unique, so equal selectors compare equal and `str` is stable.
    """

    requirements: tuple[Requirement, ...] = ()

    def __post_init__(self) -> None:
        unique = sorted(set(self.requirements), key=lambda r: (r.key, r.operator, r.values))
        object.__setattr__(self, "requirements", tuple(unique))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `a=b,c in (x,y),!d`; raise ConfigurationError naming the part that is wrong."""
        if not text.strip():
            return cls()
        return cls(tuple(_requirement(part.strip()) for part in _SEPARATOR.split(text)))

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Self:
        """Select the objects that carry all of *labels*."""
        return cls(tuple(Requirement(k, Operator.IN, (v,)) for k, v in labels.items()))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an object with *labels* is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


class LabelSelectorRequirement(Model):
    """Ask something of one label."""

    key: str = Field(min_length=1, max_length=317)
    """The label's key."""

    operator: Operator
    """How the label relates to the values."""

    values: tuple[str, ...] = Field(default=(), max_length=64)
    """The values of In and NotIn; empty for Exists and DoesNotExist."""


class LabelSelector(Model):
    """Select objects by their labels; an empty selector selects all of them."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})

    match_labels: dict[str, str] = Field(default_factory=dict)
    """Labels that an object must carry with exactly these values."""

    match_expressions: tuple[LabelSelectorRequirement, ...] = Field(default=(), max_length=64)
    """Requirements that an object's labels must all meet."""

    def selector(self) -> Selector:
        """Return what this field selects; raise ConfigurationError when it is malformed."""
        labels = Selector.from_labels(self.match_labels).requirements
        return Selector((*labels, *_from_expressions(self.match_expressions)))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether an object with *labels* is selected; errors as in `selector`."""
        return self.selector().matches(labels)


def _from_expressions(expressions: Iterable[LabelSelectorRequirement]) -> Iterable[Requirement]:
    return (Requirement(e.key, e.operator, e.values) for e in expressions)


def _check_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    good_prefix = not slash or (len(prefix) <= _MAX_PREFIX and _PREFIX.fullmatch(prefix))
    if not good_prefix or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{key!r} is no label key: write an optional DNS prefix and '/', then at most 63 "
            "letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
        )


def _requirement(part: str) -> Requirement:
    if found := _SET.fullmatch(part):
        key, operator, values = found.groups()
        kind = Operator.IN if operator == "in" else Operator.NOT_IN
        return Requirement(key, kind, tuple(v.strip() for v in values.split(",")))
    if found := _EQUALITY.fullmatch(part):
        key, operator, value = found.groups()
        kind = Operator.NOT_IN if operator == "!=" else Operator.IN
        return Requirement(key, kind, (value or "",))
    if found := _PRESENCE.fullmatch(part):
        kind = Operator.DOES_NOT_EXIST if found[1] else Operator.EXISTS
        return Requirement(found[2], kind)
    raise ConfigurationError(
        f"{part!r} is no label requirement: write key=value, key!=value, key in (a,b), "
        "key notin (a,b), key or !key"
    )
