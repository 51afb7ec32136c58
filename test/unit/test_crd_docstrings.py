# SPDX-License-Identifier: Apache-2.0
"""Docstrings below fields, found when they are asked for."""

from __future__ import annotations

from pydantic import Field, RootModel, create_model

from flexinfer.crd.docstrings import below_fields
from flexinfer.crd.schema import structural
from flexinfer.meta.object import Model


class Base(Model):
    host_name: str = ""
    """Where."""
    size: int = 0
    """How many."""


class Derived(Base):
    size: int = 1
    """How many here.

    And below that.
    """
    color: str = Field(default="", description="its own")
    """Not this."""
    bare: str = ""

    def method(self) -> None:
        """Do nothing."""


def test_they_are_found_by_the_name_on_the_wire_and_inherited() -> None:
    assert below_fields(Base) == {"hostName": "Where.", "size": "How many."}
    assert below_fields(Derived) == {
        "hostName": "Where.",
        "size": "How many here.\n\nAnd below that.",
    }


def test_a_class_inside_a_function_has_its_own() -> None:
    class Base(Model):
        size: int = 0
        """In here."""

    assert below_fields(Base) == {"size": "In here."}


def test_a_string_that_reaches_the_margin_is_no_obstacle() -> None:
    class Script(Model):
        text: str = """
echo
"""
        """What is run.

        And how.
        """

    assert below_fields(Script) == {"text": "What is run.\n\nAnd how."}


def test_a_root_model_has_no_properties_to_describe() -> None:
    class Names(RootModel[list[str]]):
        root: list[str]
        """All of them."""

    class Holder(Model):
        names: Names
        """Who."""

    assert structural(Holder)["properties"]["names"]["description"] == "Who."


def test_a_class_without_a_source_has_none() -> None:
    assert below_fields(create_model("Made", __base__=Model, size=(int, 0))) == {}


def test_the_class_itself_holds_none() -> None:
    """So no source is read when a process only starts."""
    assert Base.model_fields["size"].description is None
