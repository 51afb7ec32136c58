# SPDX-License-Identifier: Apache-2.0
"""A kind's page names every field, rule, column and reason, and stays a table whatever is said."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from flexinfer.crd.markers import IntOrString, PrintColumn, Rule, resource
from flexinfer.crd.reference import reference_for
from flexinfer.meta.duration import Duration, NonNegativeDuration
from flexinfer.meta.object import Model, Object
from flexinfer.meta.quantity import Quantity


class Part(Model):
    """A part."""

    id: Annotated[str, Rule("self != 'x'", "x is | taken")] = Field(max_length=9, pattern="a|`")
    """A."""

    weight: float = Field(default=0.5, gt=0, lt=9)
    """How heavy.

    In kilograms."""


class Spec(Model):
    mode: Literal["fast", "slow"] = "fast"
    """How | to work."""

    part: tuple[Part, ...] = Field(default=(), max_length=4)
    """What it is made of."""

    labels: dict[str, str] = Field(default_factory=dict, max_length=3)
    """Names of the widget."""

    by_name: dict[str, Part] = Field(default_factory=dict)
    """Parts by name."""

    port: IntOrString
    """Where to listen."""

    config: dict[str, Any] = Field(default_factory=dict)
    """Whatever you like."""

    count: int = Field(default=0, ge=0, le=5)
    """How many."""

    wait: NonNegativeDuration = Field(default="1m", validate_default=True)
    """How long."""

    offset: Duration | None = None
    """From when."""

    sizes: dict[str, Quantity] = Field(default_factory=dict)
    """How large."""

    enabled: bool = True
    """Whether to work."""


@resource(
    group="example.com",
    version="v1",
    plural="widgets",
    short_names=("wd", "wdg"),
    selectable=(".spec.mode",),
    columns=(
        PrintColumn("Mode", ".spec.mode", description="How it works."),
        PrintColumn("Count", ".spec.count", type="integer", priority=1),
    ),
    rules=(Rule("self.spec.mode == 'fast'", "be fast"),),
)
class Widget(Object):
    """Does things."""

    spec: Spec
    """What is wanted."""


@resource(group="example.com", version="v1", plural="bares", status=False, scope="Cluster")
class Bare(Object):
    spec: Part | None = None
    """What is wanted."""


PAGE = reference_for(Widget, reasons={"Ready": {"Fine": "All is well.", "Broken": "It is not."}})


@pytest.mark.parametrize(
    "line",
    [
        "# Widget",
        "Does things.",
        "| apiVersion | `example.com/v1` |",
        "| resource | `widgets.example.com` |",
        "| scope | namespaced |",
        "| short names | `wd`, `wdg` |",
        "| selectable fields | `.spec.mode` |",
        "| `spec` | object | required | What is wanted. |",
        "| `spec.mode` | `fast`, `slow` | `fast` | How \\| to work. |",
        "| `spec.part` | list of object |  | What it is made of. Items: at most 4. |",
        "| `spec.part[].id` | string | required | A. Characters: at most 9. Matches `` a\\|` ``. |",
        "| `spec.part[].weight` | number | `0.5` | How heavy.<br>In kilograms. > 0. < 9. |",
        "| `spec.labels` | map of string |  | Names of the widget. Entries: at most 3. |",
        "| `spec.byName.<key>.weight` | number | `0.5` | How heavy.<br>In kilograms. > 0. < 9. |",
        "| `spec.port` | integer or string | required | Where to listen. |",
        "| `spec.config` | object |  | Whatever you like. |",
        "| `spec.count` | integer (int32) | `0` | How many. ≥ 0. ≤ 5. |",
        "| `spec.wait` | duration, not negative | `1m` | How long. |",
        "| `spec.offset` | duration |  | From when. |",
        "| `spec.sizes` | map of quantity |  | How large. |",
        "| `spec.enabled` | boolean | `true` | Whether to work. |",
        "| `(object)` | be fast | `self.spec.mode == 'fast'` |",
        "| `spec.part[].id` | x is \\| taken | `self != 'x'` |",
        "| Mode | `.spec.mode` | always | How it works. |",
        "| Count | `.spec.count` | with `-o wide` |  |",
        "| `Ready` | `Fine` | All is well. |",
    ],
)
def test_the_page_says(line: str) -> None:
    assert line in PAGE.splitlines()


def test_tables_keep_their_shape() -> None:
    for block in PAGE.split("\n\n"):
        if block.startswith("|"):
            columns = {row.replace("\\|", "").count("|") for row in block.splitlines()}
            assert len(columns) == 1


def test_what_was_not_said_has_no_section() -> None:
    page = reference_for(Bare)
    assert page.endswith(" |\n")
    assert "| scope | cluster |" in page
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# Bare",
        "## spec",
        "## Rules",
    ]
    assert "short names" not in page


def test_equal_input_gives_equal_text() -> None:
    assert reference_for(Widget) == reference_for(Widget)
