# SPDX-License-Identifier: Apache-2.0
"""What pydantic says, in the form the API server accepts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from flexinfer.crd.markers import (
    Format,
    IntOrString,
    ListMap,
    ListSet,
    Nullable,
    PreserveUnknown,
    Rule,
)
from flexinfer.crd.schema import structural, unbounded
from flexinfer.errors import ConfigurationError
from flexinfer.meta.condition import Condition
from flexinfer.meta.duration import Duration, NonNegativeDuration
from flexinfer.meta.object import Model
from flexinfer.meta.quantity import Quantity
from flexinfer.meta.selector import LabelSelector


def schema_of(kind: Any, **field: Any) -> dict[str, Any]:
    """Return the schema of one described field of type *kind*."""

    class Host(Model):
        field_: kind = Field(**{"description": "A text.", "alias": "field"} | field)

    tree = structural(Host)
    result = tree["properties"]["field"]
    assert result.pop("description") == "A text."
    assert result != {}
    return {**result, "required": True} if "required" in tree else dict(result)


def refused(kind: Any, **field: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        schema_of(kind, **field)
    return str(caught.value)


class Colour(StrEnum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Leaf(Model):
    """A leaf."""

    size: int = Field(default=3, ge=0, le=9)
    """How large
    it is.

    In metres.
    """

    colour: Colour | None = None
    """What it looks like."""


class Named(Model):
    name: str
    """The name."""

    value: str = ""
    """The value."""


def test_scalars_carry_their_bounds() -> None:
    assert schema_of(str, max_length=5, min_length=1, pattern="^a$") == {
        "type": "string",
        "pattern": "^a$",
        "minLength": 1,
        "maxLength": 5,
        "required": True,
    }
    assert schema_of(bool, default=False) == {"type": "boolean", "default": False}
    assert schema_of(float, ge=0.5, multiple_of=0.5)["minimum"] == 0.5
    assert schema_of(datetime) == {"type": "string", "format": "date-time", "required": True}


@pytest.mark.parametrize(
    ("bounds", "form"),
    [
        ({}, "int64"),
        ({"ge": 0}, "int64"),
        ({"ge": 0, "le": 2**31 - 1}, "int32"),
        ({"ge": 0, "le": 2**31}, "int64"),
        ({"gt": -1, "lt": 5}, "int32"),
    ],
)
def test_the_format_of_an_integer_follows_its_bounds(bounds: dict[str, int], form: str) -> None:
    assert schema_of(int, **bounds)["format"] == form


def test_a_marker_names_the_format() -> None:
    assert schema_of(Annotated[int, Format("int32")])["format"] == "int32"


def test_exclusive_bounds_are_booleans() -> None:
    open_both = schema_of(float, gt=0, lt=1)
    assert open_both["minimum"] == 0
    assert open_both["exclusiveMinimum"] is True
    assert open_both["maximum"] == 1
    assert open_both["exclusiveMaximum"] is True


def test_the_stricter_of_two_bounds_stays() -> None:
    looser = schema_of(Annotated[float, Field(ge=5)], gt=3)
    assert looser["minimum"] == 5
    assert "exclusiveMinimum" not in looser


def test_optional_is_absent_and_never_null() -> None:
    assert schema_of(str | None, default=None) == {"type": "string"}
    assert schema_of(Leaf | None, default=None)["type"] == "object"


def test_null_is_allowed_by_a_marker_only() -> None:
    assert schema_of(Annotated[str | None, Nullable()], default=None) == {
        "type": "string",
        "nullable": True,
    }


def test_literals_and_enums_are_enums() -> None:
    assert schema_of(Literal["a"]) == {"type": "string", "enum": ["a"], "required": True}
    assert schema_of(Literal["a", "b"])["enum"] == ["a", "b"]
    assert schema_of(Colour, default=Colour.RED) == {
        "type": "string",
        "default": "red",
        "enum": ["red", "blue"],
    }
    assert schema_of(Level)["enum"] == [1, 2]


def test_references_are_inlined_with_the_text_of_the_field() -> None:
    leaf = schema_of(Leaf)
    assert leaf["properties"] == {
        "size": {
            "description": "How large it is.\n\nIn metres.",
            "type": "integer",
            "format": "int32",
            "default": 3,
            "minimum": 0,
            "maximum": 9,
        },
        "colour": {
            "description": "What it looks like.",
            "type": "string",
            "enum": ["red", "blue"],
        },
    }


def test_a_model_may_be_used_twice() -> None:
    class Tree(Model):
        left: Leaf
        """One."""
        right: Leaf
        """The other."""

    tree = structural(Tree)["properties"]
    assert tree["left"]["properties"] == tree["right"]["properties"]
    assert tree["left"]["description"] == "One."


class Branch(Model):
    branches: tuple[Branch, ...] = ()
    """More of them."""


def test_recursion_is_refused_with_its_path() -> None:
    message = refused(Branch)
    assert message == (
        "Host.field.branches[]: the model Branch contains itself: a schema cannot be recursive"
    )
    with pytest.raises(ConfigurationError, match=r"^Branch\.branches\[\]: "):
        structural(Branch)


def test_a_default_model_leaves_the_rest_to_the_server() -> None:
    assert schema_of(Leaf, default=Leaf())["default"] == {}
    assert schema_of(Leaf, default=Leaf(size=5))["default"] == {"size": 5}
    assert schema_of(tuple[Leaf, ...], default=(Leaf(size=1),))["default"] == [{"size": 1}]


@pytest.mark.parametrize(
    ("kind", "value"), [(str, ""), (tuple[str, ...], ()), (dict[str, str], {})]
)
def test_what_absence_means_is_no_default(kind: Any, value: object) -> None:
    assert "default" not in schema_of(kind, default=value)


def test_maps_say_what_they_hold() -> None:
    assert schema_of(dict[str, str], max_length=4) == {
        "type": "object",
        "maxProperties": 4,
        "additionalProperties": {"type": "string"},
        "required": True,
    }


@pytest.mark.parametrize("kind", [dict[str, Any], dict[str, JsonValue], dict])
def test_free_json_is_preserved(kind: Any) -> None:
    assert schema_of(kind, default_factory=dict) == {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }


def test_any_value_needs_a_marker() -> None:
    assert refused(Any) == (
        "Host.field: there is no type: name one, or add the marker PreserveUnknown"
    )
    assert schema_of(Annotated[Any, PreserveUnknown()], default=None) == {
        "x-kubernetes-preserve-unknown-fields": True
    }


def test_extra_fields_are_kept_when_the_model_keeps_them() -> None:
    class Open(Model):
        model_config = ConfigDict(extra="allow")
        a: str
        """A."""

    class Closed(Model):
        model_config = ConfigDict(extra="forbid")
        a: str
        """A."""

    assert schema_of(Open)["x-kubernetes-preserve-unknown-fields"] is True
    assert "additionalProperties" not in schema_of(Open)
    assert schema_of(Closed).keys() == {"type", "properties", "required"}


def test_a_list_is_atomic_unless_marked() -> None:
    assert schema_of(tuple[str, ...], default=())["x-kubernetes-list-type"] == "atomic"
    assert schema_of(Annotated[tuple[str, ...], ListSet()])["x-kubernetes-list-type"] == "set"
    marked = schema_of(Annotated[tuple[Named, ...], ListMap("name")])
    assert marked["x-kubernetes-list-type"] == "map"
    assert marked["x-kubernetes-list-map-keys"] == ["name"]


def test_a_defaulted_field_may_be_a_list_map_key() -> None:
    schema_of(Annotated[tuple[Leaf, ...], ListMap("size")])


def test_a_list_map_needs_keys_that_are_there() -> None:
    missing = refused(Annotated[tuple[Named, ...], ListMap("nme")])
    assert missing == "Host.field: the items have no scalar field 'nme': correct the ListMap"
    absent = refused(Annotated[tuple[Named, ...], ListMap("value")])
    assert absent == "Host.field: the key 'value' of the ListMap may be absent: require it"


def test_markers_of_lists_belong_on_lists() -> None:
    assert "move the marker to one" in refused(Annotated[str, ListSet()])
    assert "use ListMap" in refused(Annotated[tuple[Named, ...], ListSet()])


def test_int_or_string_has_no_type() -> None:
    assert schema_of(IntOrString) == {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "required": True,
    }
    assert schema_of(IntOrString, default="50%")["default"] == "50%"


def test_the_scalars_of_the_api_conventions() -> None:
    quantity = schema_of(Quantity, default=Quantity.parse("1024Mi"))
    assert quantity["x-kubernetes-int-or-string"] is True
    assert quantity["default"] == "1Gi"
    assert "type" not in quantity
    assert schema_of(Duration | None, default=None)["type"] == "string"
    assert schema_of(Duration, default=Duration.parse("90s"))["default"] == "1m30s"
    signed, unsigned = schema_of(Duration)["pattern"], schema_of(NonNegativeDuration)["pattern"]
    assert signed.startswith("^[+-]?")
    assert unsigned.startswith(r"^\+?")


def test_conditions_and_selectors_have_schemas() -> None:
    conditions = schema_of(Annotated[tuple[Condition, ...], ListMap("type")], default=())
    item = conditions["items"]
    assert item["required"] == ["type", "status", "lastTransitionTime", "reason", "message"]
    assert item["properties"]["lastTransitionTime"]["format"] == "date-time"
    assert item["properties"]["status"]["enum"] == ["True", "False", "Unknown"]
    assert "default" not in item["properties"]["observedGeneration"]
    selector = schema_of(LabelSelector)
    assert selector["x-kubernetes-map-type"] == "atomic"


def test_rules_add_up_over_types_and_fields() -> None:
    class Checked(Model):
        model_config = ConfigDict(
            json_schema_extra={"x-kubernetes-validations": [Rule("true", "zeroth").tree()]}
        )
        a: str
        """A."""

    first = Rule("self.a != ''", "first", reason="FieldValueRequired", field_path=".a")
    tree = schema_of(Annotated[Checked, first, Rule("self == oldSelf", "second")])
    assert tree["x-kubernetes-validations"] == [
        {"rule": "true", "message": "zeroth"},
        {
            "rule": "self.a != ''",
            "message": "first",
            "reason": "FieldValueRequired",
            "fieldPath": ".a",
        },
        {"rule": "self == oldSelf", "message": "second"},
    ]


def test_a_rule_on_create_only_lets_be_what_is_stored() -> None:
    rule = Rule("self != 'x'", "x is taken", on_create_only=True)
    assert rule.tree() == {
        "rule": "oldSelf.hasValue() || (self != 'x')",
        "message": "x is taken",
        "optionalOldSelf": True,
    }


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


@pytest.mark.parametrize(
    ("kind", "cure"),
    [
        (tuple[int, str], "use an object with named fields"),
        (set[str], "the marker ListSet"),
        (frozenset[str], "the marker ListSet"),
        (Annotated[Cat | Dog, Field(discriminator="kind")], "add a Rule that asks for one"),
        (int | str, "use one type, or IntOrString"),
        (Decimal, "use one type, or IntOrString"),
        (timedelta, "flexinfer.meta.duration.Duration"),
        (time, "time of day"),
        (bytes, "Format('byte')"),
        (dict[Annotated[str, StringConstraints(pattern="^a")], str], "plain string keys"),
        (dict[Annotated[str, StringConstraints(max_length=3)], str], "plain string keys"),
        (Callable[[], None], "use a plain type"),
        (object, "there is no type"),
        (tuple[()], "name the type of its items"),
        (Literal["a", 1], "there is no type"),
        (Annotated[str, Field(json_schema_extra={"if": {}})], "the API has no if: leave it out"),
    ],
)
def test_what_cannot_be_said_is_refused_with_its_path(kind: Any, cure: str) -> None:
    message = refused(tuple[kind, ...])
    assert message.startswith("Host.field[]: ")
    assert cure in message


def test_a_bare_list_is_refused() -> None:
    assert refused(list).startswith("Host.field[]: there is no type")


def test_every_field_needs_a_text() -> None:
    class Silent(Model):
        quiet_one: str

    assert refused(Silent) == (
        "Host.field.quietOne: there is no description: write a docstring below the field"
    )


def test_the_text_of_a_type_serves_a_field_without_one() -> None:
    class Quiet(Model):
        leaf: Leaf
        same: Leaf
        """A leaf."""

    fields = schema_of(Quiet)["properties"]
    assert fields["leaf"]["description"] == fields["same"]["description"] == "A leaf."


def test_words_for_other_readers_are_dropped() -> None:
    tree = schema_of(str, title="T", examples=["x"], deprecated=True)
    assert tree == {"type": "string", "required": True}


def test_unbounded_values_are_found() -> None:
    class Loose(Model):
        a: str
        """A."""
        b: tuple[Named, ...] = Field(max_length=3)
        """B."""
        c: dict[str, Annotated[str, Field(max_length=1)]]
        """C."""
        d: Colour
        """D."""
        e: tuple[int, ...]
        """E."""
        f: Quantity
        """F."""

    assert list(unbounded(structural(Loose))) == [
        ".a",
        ".b[].name",
        ".b[].value",
        ".c",
        ".e",
    ]
