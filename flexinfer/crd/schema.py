# SPDX-License-Identifier: Apache-2.0
r"""A pydantic model to a structural schema: what `apiextensions.k8s.io/v1` accepts and keeps.

| pydantic says | the schema says |
|---|---|
| a reference | the referred schema in its place, with the description of the field |
| `X \| None = None` | X, optional, without a default |
| `const` | an enum of one |
| an exclusive bound | the bound and a boolean beside it |
| any object | unknown fields are preserved |
| a list without a marker | an atomic list |

An empty string, list or map is what an absent field means and is not written as a default. What
cannot be said raises ConfigurationError with the path of the field and the cure.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from flexinfer.crd.docstrings import below_fields
from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

    from flexinfer.meta.envelope import Tree

_INVALID = "x-invalid"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_LIST_TYPE = "x-kubernetes-list-type"
_MAP_KEYS = "x-kubernetes-list-map-keys"
_RULES = "x-kubernetes-validations"

_SCALARS = {"string", "integer", "number", "boolean"}
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_DROPPED = {"title", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"}
# In the order in which they are written.
_COPIED = (
    "description",
    "type",
    "format",
    "nullable",
    "default",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "anyOf",
    _INT_OR_STRING,
    _PRESERVE,
    _LIST_TYPE,
    _MAP_KEYS,
    "x-kubernetes-map-type",
    _RULES,
)
_RAW = {"$ref", "const", _INVALID}
_CURES = {
    "prefixItems": "a tuple of fixed length: use an object with named fields",
    "uniqueItems": "a set: use a tuple and the marker ListSet",
    "oneOf": "a union of models: give each an optional field and add a Rule that asks for one",
    "propertyNames": "a map with constrained keys: use plain string keys and a Rule",
    "patternProperties": "a map with constrained keys: use plain string keys and a Rule",
    "not": "a negation: use a Rule",
    "allOf": "a combination of schemas: write one type",
}
_FORMAT_CURES = {
    "duration": "timedelta: use flexinfer.meta.duration.Duration",
    "binary": "bytes: use a string and Format('byte')",
    "time": "time of day: use a string with a pattern",
}


class _Generator(GenerateJsonSchema):
    """Generate JSON schema with the differences that are easiest to make at the source."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        properties = made.get("properties", {})  # a RootModel has none
        for name, text in below_fields(schema["cls"]).items():
            if name in properties:
                properties[name]["description"] = text
        return made

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def encode_default(self, dft: Any) -> Any:
        return _encoded(dft)

    def handle_invalid_for_json_schema(self, _schema: object, error_info: str) -> JsonSchemaValue:
        return {_INVALID: error_info}


def structural(model: type[BaseModel], *, leave_out: str = "") -> Tree:
    """Return the structural schema of *model*.

    *leave_out* names a field to ignore: the metadata of a kind, which the API server defines.
    Raises ConfigurationError as the module says.
    """
    raw = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)
    converter = _Converter(raw.pop("$defs", {}))
    root, above = converter.resolve(raw, model.__name__, ())
    fields = {name: raw for name, raw in root["properties"].items() if name != leave_out}
    return converter.convert(root | {"properties": fields}, model.__name__, above)


def unbounded(schema: Tree, path: str = "") -> Iterator[str]:
    """Yield the paths of strings, lists and maps without an upper bound.

    CEL rules below them are charged for the largest value that fits into a request, which soon
    exceeds the API server's budget.
    """
    bound = {"string": "maxLength", "array": "maxItems"}.get(schema.get("type", ""))
    if "additionalProperties" in schema:
        bound = "maxProperties"
    if bound and bound not in schema and not {"enum", "format"} & schema.keys():
        yield path
    for below, child in children(schema):
        yield from unbounded(child, f"{path}{below}")


def children(schema: Tree) -> Iterator[tuple[str, Tree]]:
    """Yield the schemas one level below with their relative paths: `.name`, `[]` or `.<key>`."""
    for name, child in schema.get("properties", {}).items():
        yield f".{name}", child
    if "items" in schema:
        yield "[]", schema["items"]
    if "additionalProperties" in schema:
        yield ".<key>", schema["additionalProperties"]


class _Converter:
    """Turn JSON schema into structural schema, with every reference replaced by its target."""

    def __init__(self, definitions: Mapping[str, Tree]) -> None:
        self._definitions = definitions

    def convert(self, raw: Tree, path: str, above: tuple[str, ...]) -> Tree:
        """Return the structural form of *raw*; *above* are the models that contain it."""
        node, above = self.resolve(raw, path, above)
        _refuse(node, path)
        node = _scalar(node)
        if "properties" in node:
            self._object(node, path, above)
        elif node.get("type") == "object" or "additionalProperties" in node:
            self._map(node, path, above)
        elif node.get("type") == "array":
            self._list(node, path, above)
        _check_type(node, path)
        return {key: node[key] for key in _COPIED if key in node}

    def resolve(self, raw: Tree, path: str, above: tuple[str, ...]) -> tuple[Tree, tuple[str, ...]]:
        """Replace a reference by its target, what stands beside the reference winning."""
        if "$ref" not in raw:
            return dict(raw), above
        name = raw["$ref"].rpartition("/")[2]
        if name in above:
            raise _error(path, f"the model {name} contains itself: a schema cannot be recursive")
        target, above = self.resolve(self._definitions[name], path, (*above, name))
        beside = {key: value for key, value in raw.items() if key != "$ref"}
        if rules := [*target.get(_RULES, ()), *beside.get(_RULES, ())]:
            beside[_RULES] = rules
        return target | beside, above

    def _object(self, node: Tree, path: str, above: tuple[str, ...]) -> None:
        if node.pop("additionalProperties", False) is not False:
            node[_PRESERVE] = True
        properties = {}
        for name, raw in node["properties"].items():
            where = f"{path}.{name}"
            child = properties[name] = self.convert(raw, where, above)
            if not child.get("description"):
                raise _error(where, "there is no description: write a docstring below the field")
        node["properties"] = properties

    def _map(self, node: Tree, path: str, above: tuple[str, ...]) -> None:
        values = node.pop("additionalProperties", True)
        node["type"] = "object"
        if isinstance(values, bool) or not self.resolve(values, path, above)[0]:
            node[_PRESERVE] = True
        else:
            node["additionalProperties"] = self.convert(values, f"{path}.<key>", above)

    def _list(self, node: Tree, path: str, above: tuple[str, ...]) -> None:
        if "items" not in node:
            raise _error(path, "the list does not say what it holds: name the type of its items")
        items = node["items"] = self.convert(node["items"], f"{path}[]", above)
        kind = node.setdefault(_LIST_TYPE, "atomic")
        if kind == "map":
            _check_map_keys(node[_MAP_KEYS], items, path)
        elif kind == "set" and items.get("type") not in _SCALARS:
            raise _error(path, "the items of a ListSet are no scalars: use ListMap with their keys")


def _refuse(node: Tree, path: str) -> None:
    """Raise for what a structural schema cannot say."""
    if _INVALID in node:
        raise _error(path, f"pydantic has no schema for {node[_INVALID]}: use a plain type")
    for word, cure in _CURES.items():
        if word in node:
            raise _error(path, f"the API has no {cure}")
    if "anyOf" in node and _INT_OR_STRING not in node:
        raise _error(path, "the API has no unions: use one type, or IntOrString")
    if node.get("format") in _FORMAT_CURES:
        raise _error(path, f"the API has no {_FORMAT_CURES[node['format']]}")
    if unknown := sorted(node.keys() - _DROPPED - set(_COPIED) - _RAW):
        raise _error(path, f"the API has no {unknown[0]}: leave it out")


def _scalar(node: Tree) -> Tree:
    """Return *node* with the keywords of scalars in the API's own form."""
    node = dict(node)
    if "description" in node:
        node["description"] = _prose(node["description"])
    if node.get("default") in (None, "", []) or _is_empty_map(node):
        node.pop("default", None)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if node.get(_INT_OR_STRING):
        node["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        node.pop("type", None)
    _bound(node, "minimum", "exclusiveMinimum", max)
    _bound(node, "maximum", "exclusiveMaximum", min)
    if node.get("type") == "integer" and "format" not in node:
        low, high = node.get("minimum", _INT32_MIN - 1), node.get("maximum", _INT32_MAX + 1)
        node["format"] = "int32" if low >= _INT32_MIN and high <= _INT32_MAX else "int64"
    return node


def _is_empty_map(node: Tree) -> bool:
    """Tell an empty map from a model whose defaults the API server shall fill in."""
    return node.get("default") == {} and "properties" not in node


def _bound(node: Tree, inclusive: str, exclusive: str, stricter: Any) -> None:
    """Join both bounds into one, with a boolean that excludes it."""
    if isinstance(limit := node.pop(exclusive, None), int | float):
        other = node.get(inclusive, limit)
        node[inclusive] = stricter(limit, other)
        if node[inclusive] == limit:
            node[exclusive] = True


def _check_type(node: Tree, path: str) -> None:
    if _LIST_TYPE in node and node.get("type") != "array":
        raise _error(path, "ListMap and ListSet mark lists: move the marker to one")
    if "type" not in node and not node.get(_INT_OR_STRING) and not node.get(_PRESERVE):
        raise _error(path, "there is no type: name one, or add the marker PreserveUnknown")


def _check_map_keys(keys: list[str], items: Tree, path: str) -> None:
    properties = items.get("properties", {})
    for key in keys:
        if properties.get(key, {}).get("type") not in _SCALARS:
            raise _error(path, f"the items have no scalar field {key!r}: correct the ListMap")
        if key not in items.get("required", ()) and "default" not in properties[key]:
            raise _error(path, f"the key {key!r} of the ListMap may be absent: require it")


def _encoded(value: Any) -> Any:
    """Write a default as the API server shall store it: without what its own schema fills in."""
    if isinstance(value, BaseModel):
        return value.model_dump(
            by_alias=True, exclude_defaults=True, exclude_none=True, mode="json"
        )
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    return TypeAdapter(type(value)).dump_python(value, mode="json")


def _prose(text: str) -> str:
    """Join the lines of each paragraph: the source's line breaks mean nothing to a reader."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _error(path: str, text: str) -> ConfigurationError:
    return ConfigurationError(f"{path}: {text}")
