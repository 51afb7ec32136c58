# SPDX-License-Identifier: Apache-2.0
"""The typed keys of `spec.config`: what a backend reads from it, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError
from flexinfer.meta.duration import Duration
from flexinfer.meta.envelope import encode_sorted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# From here on JSON readers that know only doubles, such as Go's, round.
_TOO_MUCH = 10**15
_TRUE, _FALSE = (True, "true", "1"), (False, "false", "0")
# What is nested deeper than a reader can follow would reach the server changed.
_MAX_LEVELS = 32


class Kind(Enum):
    """Name the JSON type that a key takes; the value is the name that messages use."""

    STRING = "a string"
    INTEGER = "an integer"
    DECIMAL = "a number, or a string that holds one"
    BOOLEAN = "true or false"
    OBJECT = "an object"
    DURATION = "a duration string such as 90s or 10m"
    WHOLE = "a whole number, or a string that holds one"
    SWITCH = "true or false, or a string that holds one"

    def admits(self, value: object) -> bool:
        """Tell whether *value* has the type; booleans are no integers."""
        return _CHECKS[self](value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Tie a key of `spec.config` to the flag that the backend's server takes.

    A boolean that is false gives `off` when there is one, else nothing. With `valued` a boolean
    becomes the words on and off after the flag. `variable` is for servers that read their
    settings from the environment, where true and false are 1 and 0. A key with neither is read
    by the backend's own code, never passed on as it is.
    """

    name: str
    kind: Kind
    flag: str = ""
    variable: str = ""
    off: str = ""
    valued: bool = False

    def arguments(self, value: object) -> tuple[str, ...]:
        """Return what *value*, of the right type, adds to the command line."""
        if not self.flag:
            return ()
        if isinstance(value, bool):
            return self._switch(on=value)
        return (self.flag, literal(self.text(value)))

    def setting(self, value: object) -> str:
        """Return what *value*, of the right type, is as the value of `variable`."""
        if self.kind in {Kind.BOOLEAN, Kind.SWITCH}:
            return "1" if value in _TRUE else "0"
        return literal(self.text(value))

    def _switch(self, *, on: bool) -> tuple[str, ...]:
        if self.valued:
            return (self.flag, "on" if on else "off")
        flag = self.flag if on else self.off
        return (flag,) if flag else ()

    def text(self, value: object) -> str:
        """Return *value*, of the right type, as a command line spells it."""
        if isinstance(value, dict):
            return encode_sorted(value).decode()
        if isinstance(value, float) and self.kind in {Kind.INTEGER, Kind.WHOLE}:
            return str(int(value))
        return str(value)


def literal(text: str) -> str:
    """Keep the kubelet from reading `$(NAME)` in *text* as a variable."""
    return text.replace("$(", "$$(")


def misfits(keys: Iterable[Key], config: Mapping[str, object]) -> tuple[str, ...]:
    """Return one sentence for every value of *config* that has the wrong type or is absurd."""
    return tuple(
        f"spec.config.{key.name} {problem}"
        for key in keys
        if key.name in config and (problem := _problem(key.kind, config[key.name]))
    )


def unread(keys: Iterable[Key], config: Mapping[str, object]) -> tuple[str, ...]:
    """Return the keys of *config* that the backend does not know, sorted."""
    return tuple(sorted(set(config) - {key.name for key in keys}))


def arguments(keys: Iterable[Key], config: Mapping[str, object]) -> Sequence[str]:
    """Return the command line that *config*, already checked, asks for."""
    return [a for key in keys if key.name in config for a in key.arguments(config[key.name])]


def variables(keys: Iterable[Key], config: Mapping[str, object]) -> Mapping[str, str]:
    """Return the environment that *config*, already checked, asks for."""
    return {
        key.variable: key.setting(config[key.name])
        for key in keys
        if key.variable and key.name in config
    }


def _problem(kind: Kind, value: object) -> str:
    if not kind.admits(value):
        return f"must be {kind.value}, not {_type_name(value)}"
    if isinstance(value, int | float) and abs(value) >= _TOO_MUCH:
        return "is out of range: give a number of at most 15 digits"
    if isinstance(value, dict) and not _is_within(value, _MAX_LEVELS):
        return f"is nested too deep: give an object of at most {_MAX_LEVELS} levels"
    return ""


def _is_within(value: object, levels: int) -> bool:
    """Tell whether lists and objects in *value* are nested at most *levels* deep."""
    if not isinstance(value, dict | list):
        return True
    items = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_within(item, levels - 1) for item in items)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return _is_number(value) and (not isinstance(value, float) or value.is_integer())


def _is_decimal(value: object) -> bool:
    if isinstance(value, str):
        return value.replace(".", "", 1).isdecimal() and value.isascii()
    return _is_number(value)


def _is_whole(value: object) -> bool:
    if isinstance(value, str):
        return value.isdecimal() and value.isascii()
    return _is_integer(value)


def _is_switch(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value in {*_TRUE, *_FALSE})


def _is_duration(value: object) -> bool:
    try:
        return isinstance(value, str) and Duration.parse(value).seconds > 0
    except ConfigurationError:
        return False


_CHECKS: dict[Kind, Callable[[object], bool]] = {
    Kind.STRING: lambda value: isinstance(value, str),
    Kind.INTEGER: _is_integer,
    Kind.DECIMAL: _is_decimal,
    Kind.BOOLEAN: lambda value: isinstance(value, bool),
    Kind.OBJECT: lambda value: isinstance(value, dict),
    Kind.DURATION: _is_duration,
    Kind.WHOLE: _is_whole,
    Kind.SWITCH: _is_switch,
}

_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a number"),
    (dict, "an object"),
    (list, "a list"),
)


def _type_name(value: object) -> str:
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    return next((name for type_, name in _TYPE_NAMES if isinstance(value, type_)), "null")
