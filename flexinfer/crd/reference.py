# SPDX-License-Identifier: Apache-2.0
"""A kind to its page of the API reference, in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.crd.document import HEADER
from flexinfer.crd.generate import schema_for
from flexinfer.crd.markers import custom_resource
from flexinfer.crd.schema import children
from flexinfer.meta import duration, quantity
from flexinfer.meta.envelope import encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from flexinfer.crd.markers import CustomResource
    from flexinfer.meta.envelope import Tree
    from flexinfer.meta.object import Object

__all__ = ["reference_for"]

_LIMITS = (
    ("minimum", "exclusiveMinimum", "≥ {}", "> {}"),
    ("maximum", "exclusiveMaximum", "≤ {}", "< {}"),
)
# Scalars of the API conventions: recognised by their patterns, which say less than their names.
_NAMED = {
    duration.PATTERN: "duration",
    duration.NON_NEGATIVE_PATTERN: "duration, not negative",
    quantity.PATTERN: "quantity",
    quantity.NON_NEGATIVE_PATTERN: "quantity, not negative",
}
_NOTE = (
    "A duration is written like `90s`, `5m` or `1h30m`; a quantity like `500m`, `2` or `16Gi`. "
    "`[]` stands for each item of a list, `<key>` for each key of a map."
)
_SIZES = (
    ("minLength", "Characters: at least {}"),
    ("maxLength", "Characters: at most {}"),
    ("minItems", "Items: at least {}"),
    ("maxItems", "Items: at most {}"),
    ("minProperties", "Entries: at least {}"),
    ("maxProperties", "Entries: at most {}"),
    ("pattern", "Matches {}"),
)


def reference_for(
    kind: type[Object], *, reasons: Mapping[str, Mapping[str, str]] | None = None
) -> str:
    """Return the page of *kind*: names, fields, rules, columns, and the conditions' reasons.

    *reasons* gives for each condition type its reasons and what each means. Errors as in
    `crd_for`.
    """
    info = custom_resource(kind)
    schema = schema_for(kind)
    parts = [
        _head(info, schema),
        _NOTE,
        *_fields(schema),
        _rules(schema),
        _columns(info),
        _reasons(reasons or {}),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(info: CustomResource, schema: Tree) -> str:
    resource = info.resource
    rows = [
        ("apiVersion", f"`{resource.api_version}`"),
        ("kind", f"`{resource.kind}`"),
        ("resource", f"`{resource}`"),
        ("scope", "namespaced" if resource.namespaced else "cluster"),
        ("short names", _codes(info.short_names)),
        ("categories", _codes(info.categories)),
        ("selectable fields", _codes(info.selectable)),
    ]
    table = _table(("", ""), [row for row in rows if row[1]])
    title = f"<!-- {HEADER} -->\n\n# {resource.kind}"
    return "\n\n".join(filter(None, (title, schema.get("description", ""), table)))


def _fields(schema: Tree) -> Iterator[str]:
    """Yield one table for each top field that is the kind's own: spec, status."""
    for name, top in schema["properties"].items():
        if name in {"apiVersion", "kind", "metadata"}:
            continue
        rows = [_row(*entry) for entry in _walk(top, name, required=name in _required(schema))]
        yield f"## {name}\n\n" + _table(("field", "type", "default", "meaning"), rows)


def _walk(schema: Tree, path: str, *, required: bool) -> Iterator[tuple[str, Tree, bool]]:
    """Yield every described field with its path; items of lists lend their path only."""
    if "description" in schema and not path.endswith(("[]", ".<key>")):
        yield path, schema, required
    for below, child in children(schema):
        name = below.removeprefix(".")
        yield from _walk(child, f"{path}{below}", required=name in _required(schema))


def _row(path: str, schema: Tree, required: bool) -> tuple[str, ...]:  # noqa: FBT001 - unpacked
    default = _code(_plain(schema["default"])) if "default" in schema else ""
    return (
        _code(path),
        _type(schema),
        "required" if required else default,
        ". ".join([_cell(schema["description"]).rstrip("."), *_limits(schema)]) + ".",
    )


def _type(schema: Tree) -> str:
    if name := _NAMED.get(schema.get("pattern", "")):
        return name
    if "x-kubernetes-int-or-string" in schema:
        return "integer or string"
    if "enum" in schema:
        return _codes(map(_plain, schema["enum"]))
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    kind: str = schema.get("type", "any")
    return f"{kind} ({schema['format']})" if "format" in schema else kind


def _limits(schema: Tree) -> Iterator[str]:
    for bound, exclusive, at, beyond in _LIMITS:
        if bound in schema:
            yield (beyond if schema.get(exclusive) else at).format(schema[bound])
    if schema.get("pattern") in _NAMED:
        return
    for key, text in _SIZES:
        if key in schema:
            yield text.format(_code(schema[key]) if key == "pattern" else schema[key])


def _rules(schema: Tree) -> str:
    rows = [
        (_code(path), _cell(rule["message"]), _code(rule["rule"]))
        for path, node in _nodes(schema, "")
        for rule in node.get("x-kubernetes-validations", ())
    ]
    return "## Rules\n\n" + _table(("where", "message", "rule"), rows) if rows else ""


def _nodes(schema: Tree, path: str) -> Iterator[tuple[str, Tree]]:
    yield path.removeprefix(".") or "(object)", schema
    for below, child in children(schema):
        yield from _nodes(child, f"{path}{below}")


def _columns(info: CustomResource) -> str:
    rows = [
        (
            column.name,
            _code(column.json_path),
            "with `-o wide`" if column.priority else "always",
            _cell(column.description),
        )
        for column in info.columns
    ]
    return "## Columns\n\n" + _table(("column", "path", "shown", "meaning"), rows) if rows else ""


def _reasons(reasons: Mapping[str, Mapping[str, str]]) -> str:
    rows = [
        (_code(kind), _code(reason), _cell(meaning))
        for kind, meanings in reasons.items()
        for reason, meaning in meanings.items()
    ]
    if not rows:
        return ""
    return "## Conditions\n\n" + _table(("condition", "reason", "meaning"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _required(schema: Tree) -> Sequence[str]:
    names: Sequence[str] = schema.get("required", ())
    return names


def _plain(value: object) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _codes(values: Iterable[str]) -> str:
    return ", ".join(map(_code, values))


def _code(text: str) -> str:
    """Quote *text* as code in a table cell, whatever it holds."""
    return f"`` {_cell(text)} ``" if "`" in text else f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n\n", "<br>").replace("\n", " ")
