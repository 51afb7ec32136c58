# SPDX-License-Identifier: Apache-2.0
"""A kind to its CustomResourceDefinition."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flexinfer.crd.markers import CustomResource, custom_resource
from flexinfer.crd.schema import structural
from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from flexinfer.crd.markers import PrintColumn
    from flexinfer.meta.envelope import Tree
    from flexinfer.meta.object import Object

__all__ = ["crd_for", "schema_for"]

_STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\[[^\]]*\]")
_HEAD = {
    "apiVersion": {
        "description": "The group and version of the schema that this object is written in.",
        "type": "string",
    },
    "kind": {"description": "The kind of this object, in CamelCase.", "type": "string"},
    "metadata": {"type": "object"},
}


def crd_for(kind: type[Object]) -> Tree:
    """Return the CustomResourceDefinition of *kind*, which `resource` decorates.

    Raises ConfigurationError for what the API server would refuse or silently change, and for a
    column or another JSON path that names no field of the schema.
    """
    info = custom_resource(kind)
    schema = schema_for(kind)
    _check_paths(info, schema)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": str(info.resource)},
        "spec": {
            "group": info.resource.gvk.group,
            "names": _names(info),
            "scope": "Namespaced" if info.resource.namespaced else "Cluster",
            "versions": [_version(info, schema)],
        },
    }


def schema_for(kind: type[Object]) -> Tree:
    """Return the schema of whole objects of *kind*; errors as in `crd_for`."""
    info = custom_resource(kind)
    schema = structural(kind, leave_out="metadata")
    root: Tree = {}
    if description := schema.get("description"):
        root["description"] = description
    # As people write objects: a base class may have the status, and so have it first.
    fields = dict(sorted(schema["properties"].items(), key=lambda field: field[0] == "status"))
    root |= {"type": "object", "properties": _HEAD | fields}
    if required := schema.get("required"):
        root["required"] = required
    if info.rules:
        root["x-kubernetes-validations"] = [rule.tree() for rule in info.rules]
    return root


def _names(info: CustomResource) -> Tree:
    kind = info.resource.kind
    names: Tree = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": info.resource.plural,
        "singular": kind.lower(),
    }
    if info.short_names:
        names["shortNames"] = list(info.short_names)
    if info.categories:
        names["categories"] = list(info.categories)
    return names


def _version(info: CustomResource, schema: Tree) -> Tree:
    version: Tree = {"name": info.resource.gvk.version, "served": True, "storage": True}
    if info.columns:
        version["additionalPrinterColumns"] = [_column(column) for column in info.columns]
    if info.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in info.selectable]
    if subresources := _subresources(info):
        version["subresources"] = subresources
    return version | {"schema": {"openAPIV3Schema": schema}}


def _column(column: PrintColumn) -> Tree:
    tree: Tree = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
    if column.description:
        tree["description"] = column.description
    if column.priority:
        tree["priority"] = column.priority
    return tree


def _subresources(info: CustomResource) -> Tree:
    tree: Tree = {"status": {}} if info.status else {}
    if scale := info.scale:
        tree["scale"] = {
            "specReplicasPath": scale.spec_replicas,
            "statusReplicasPath": scale.status_replicas,
        }
        if scale.label_selector is not None:
            tree["scale"]["labelSelectorPath"] = scale.label_selector
    return tree


def _check_paths(info: CustomResource, schema: Tree) -> None:
    for column in info.columns:
        _check_path(f"the column {column.name!r}", column.json_path, schema)
    for path in info.selectable:
        _check_path("selectable", path, schema)
    if scale := info.scale:
        for path in filter(
            None, (scale.spec_replicas, scale.status_replicas, scale.label_selector)
        ):
            _check_path("scale", path, schema)


def _check_path(owner: str, path: str, schema: Tree) -> None:
    """Follow the plain steps of *path*; a filter or an index steps into a list's items."""
    if path.startswith(".metadata."):
        return
    node, position = schema, 0
    while position < len(path):
        step = _STEP.match(path, position)
        below = None
        if step and step[1]:
            below = node.get("properties", {}).get(step[1], node.get("additionalProperties"))
        elif step:
            below = node.get("items", node.get("additionalProperties"))
        if step is None or below is None:
            raise ConfigurationError(f"{owner}: the path {path!r} names no field: correct it")
        node, position = below, step.end()
