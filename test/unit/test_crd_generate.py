# SPDX-License-Identifier: Apache-2.0
"""A decorated kind becomes a CustomResourceDefinition, as text that every reader reads alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from flexinfer.crd.document import HEADER, render
from flexinfer.crd.generate import crd_for
from flexinfer.crd.markers import (
    ListMap,
    PrintColumn,
    Rule,
    Scale,
    custom_resource,
    resource,
)
from flexinfer.errors import ConfigurationError
from flexinfer.meta.condition import Condition
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from collections.abc import Callable


class Spec(Model):
    """What is wanted."""

    size: int = Field(default=1, ge=0, le=9)
    """How many."""

    selector: dict[str, str] = Field(default_factory=dict)
    """Where."""


class Status(Model):
    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = ()
    """What was observed."""

    size: int = 0
    """How many there are."""


@resource(
    group="example.com",
    version="v1alpha1",
    plural="widgets",
    short_names=("wd",),
    categories=("all",),
    columns=(
        PrintColumn("Ready", ".status.conditions[?(@.type=='Ready')].status"),
        PrintColumn("Zone", ".spec.selector.zone", priority=1, description="Where."),
        PrintColumn("Age", ".metadata.creationTimestamp", type="date"),
    ),
    rules=(Rule("size(self.metadata.name) < 49", "the name is too long"),),
    scale=Scale(".spec.size", ".status.size"),
    selectable=(".spec.size",),
)
class Widget(Object):
    """A widget."""

    spec: Spec
    """What is wanted of the widget."""

    status: Status | None = None
    """What is seen of the widget."""


def plain(**options: Any) -> Callable[[type[Object]], type[Object]]:
    return resource(**{"group": "example.com", "version": "v1", "plural": "things"} | options)


def thing(**options: Any) -> type[Object]:
    class Thing(Object):
        spec: Spec = Spec()
        """What is wanted."""

    return plain(**options)(Thing)


def test_the_decorator_tells_clients_where_the_kind_lives() -> None:
    expected = Resource(GroupVersionKind("example.com", "v1alpha1", "Widget"), "widgets")
    assert Widget.resource == expected
    assert custom_resource(Widget).resource == expected
    assert not thing(scope="Cluster").resource.namespaced


def test_the_definition_says_all_of_it() -> None:
    crd = crd_for(Widget)
    assert crd["metadata"] == {"name": "widgets.example.com"}
    assert crd["spec"]["scope"] == "Namespaced"
    assert crd["spec"]["names"] == {
        "kind": "Widget",
        "listKind": "WidgetList",
        "plural": "widgets",
        "singular": "widget",
        "shortNames": ["wd"],
        "categories": ["all"],
    }
    (version,) = crd["spec"]["versions"]
    assert version["subresources"] == {
        "status": {},
        "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"},
    }
    assert version["selectableFields"] == [{"jsonPath": ".spec.size"}]
    assert version["additionalPrinterColumns"][1] == {
        "name": "Zone",
        "type": "string",
        "jsonPath": ".spec.selector.zone",
        "description": "Where.",
        "priority": 1,
    }
    schema = version["schema"]["openAPIV3Schema"]
    assert schema["description"] == "A widget."
    assert list(schema["properties"]) == ["apiVersion", "kind", "metadata", "spec", "status"]
    assert schema["properties"]["metadata"] == {"type": "object"}
    assert schema["required"] == ["spec"]
    assert schema["x-kubernetes-validations"][0]["message"] == "the name is too long"


def test_what_was_not_said_is_left_out() -> None:
    crd = crd_for(thing(status=False, scope="Cluster"))
    assert crd["spec"]["scope"] == "Cluster"
    assert crd["spec"]["names"].keys() == {"kind", "listKind", "plural", "singular"}
    (version,) = crd["spec"]["versions"]
    assert version.keys() == {"name", "served", "storage", "schema"}
    schema = version["schema"]["openAPIV3Schema"]
    assert schema.keys() == {"type", "properties"}
    assert schema["properties"]["spec"]["default"] == {}


def test_a_label_selector_path_belongs_to_scale() -> None:
    scale = Scale(".spec.size", ".spec.size", ".spec.selector")
    (version,) = crd_for(thing(scale=scale))["spec"]["versions"]
    assert version["subresources"]["scale"]["labelSelectorPath"] == ".spec.selector"


@pytest.mark.parametrize(
    "path",
    [".spec.sise", ".spec.size.more", ".spec[0]", ".spec.", ".speck", ".spec.selector['zone'].x"],
)
def test_a_path_that_names_no_field_is_refused(path: str) -> None:
    kind = thing(columns=(PrintColumn("Size", path),))
    with pytest.raises(ConfigurationError, match=r"the column 'Size': the path .* names no field"):
        crd_for(kind)
    with pytest.raises(ConfigurationError, match="selectable: the path"):
        crd_for(thing(selectable=(path,)))
    with pytest.raises(ConfigurationError, match="scale: the path"):
        crd_for(thing(scale=Scale(".spec.size", path)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: thing(scope="Global"), "the scope 'Global' is unknown"),
        (lambda: thing(group="example"), "the group 'example' of Thing"),
        (lambda: thing(group="Example.com"), "the group 'Example.com'"),
        (lambda: thing(group=""), "the group '' of Thing is no DNS name with a dot"),
        (
            lambda: thing(group="networking.k8s.io"),
            "the group 'networking.k8s.io' of Thing belongs",
        ),
        (lambda: thing(group="kubernetes.io"), "the group 'kubernetes.io' of Thing belongs"),
        (lambda: thing(version="1"), "the version '1' of Thing"),
        (lambda: thing(version="v1gamma1"), "write v1, v1beta1 or v1alpha1"),
        (lambda: thing(plural="Things"), "the name 'Things' of Thing"),
        (lambda: thing(short_names=("",)), "the name '' of Thing"),
        (lambda: thing(selectable=(".spec.size",) * 9), "over 8 selectable fields"),
        (lambda: thing(selectable=("spec.size",)), "must start with a dot"),
        (lambda: PrintColumn("A", "spec"), "'spec' of the column 'A' must start with a dot"),
        (lambda: PrintColumn("A", ".spec", type="text"), "use one of boolean, date"),
        (lambda: Scale("spec", ".status"), "'spec' of scale must start with a dot"),
        (lambda: Rule(" ", "m"), "write a CEL expression"),
        (lambda: Rule("true", ""), "is not one line"),
        (lambda: Rule("true", "a\nb"), "is not one line"),
        (lambda: Rule("true", "m", reason="Bad"), "use one of FieldValueDuplicate"),
        (lambda: Rule("true", "m", field_path="a"), "start it with a dot"),
        (ListMap, "a ListMap has no keys"),
    ],
)
def test_impossible_settings_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build()
    assert message in str(caught.value)


@pytest.mark.parametrize("group", ["", "apps", "networking.k8s.io"])
def test_a_built_in_kind_is_told_how_it_is_declared(group: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        thing(group=group, plural="things", scope="Cluster")
    expression = str(caught.value).partition("ClassVar[Resource] = ")[2]
    names = {"Resource": Resource, "GroupVersionKind": GroupVersionKind}
    declared = eval(expression, names)  # noqa: S307 - what we tell authors to write
    assert declared == Resource(GroupVersionKind(group, "v1", "Thing"), "things", namespaced=False)


@pytest.mark.parametrize("group", ["gateway.x-k8s.io", "k8s.io.example.com", "myk8s.io"])
def test_a_group_that_only_looks_like_one_of_kubernetes_is_fine(group: str) -> None:
    assert thing(group=group).resource.gvk.group == group


def test_an_undecorated_kind_is_refused() -> None:
    class Heir(Widget):
        pass

    with pytest.raises(ConfigurationError, match="Heir is no custom resource: decorate it"):
        crd_for(Heir)


def test_equal_input_gives_equal_text() -> None:
    text = render(crd_for(Widget))
    assert text == render(crd_for(Widget))
    assert text.startswith(f"# {HEADER}\napiVersion: ")
    assert text.endswith("\n")
    assert "&id" not in text
    assert yaml.safe_load(text) == crd_for(Widget)


def test_several_trees_are_several_documents() -> None:
    assert list(yaml.safe_load_all(render({"a": 1}, {"b": 2}))) == [{"a": 1}, {"b": 2}]


def test_long_texts_are_readable() -> None:
    prose = "A word and another. " * 20
    text = render(
        {
            "description": prose.strip(),
            "paragraphs": f"{prose.strip()}\n\nMore.",
            "short": "One.\nTwo.",
        }
    )
    assert "description: >-\n" in text
    assert "paragraphs: >-\n" in text
    assert "short: |-\n  One.\n  Two.\n" in text
    assert all(len(line) <= 100 for line in text.splitlines())


# Numbers and booleans in YAML 1.1 or 1.2, and in Go's reader.
@pytest.mark.parametrize(
    "word",
    [
        "1e3",
        "1E5",
        "12e6",
        "+1",
        "1.",
        ".5",
        "0o7",
        "017",
        "0x1F",
        "1_0",
        "1:30",
        "y",
        "N",
        "on",
        "yes",
        "True",
        "null",
        "~",
        "",
        "-",
        "=",
        "<<",
        "2026-01-31",
        ".inf",
        "5",
    ],
)
def test_text_that_looks_like_something_else_is_quoted(word: str) -> None:
    line = render({"value": word}).splitlines()[1]
    assert line == f"value: '{word}'"


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=300)
lines = st.lists(st.one_of(texts, st.sampled_from(["", " ", "a b ", "# x", "- y"]))).map("\n".join)


@given(st.one_of(texts, lines, st.text("ab \n", max_size=400)))
def test_any_text_survives(text: str) -> None:
    assert yaml.safe_load(render({"a": {"b": [text]}})) == {"a": {"b": [text]}}
