# SPDX-License-Identifier: Apache-2.0
"""The table of merge rules says what the API server's own OpenAPI document says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from flexinfer.kinds.structure import ListMap, Merge, Structure, structure_of
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree

# What the table leaves out: references of one field, which are the same whichever way they are
# merged, and what is nobody's intent because the server writes it or refuses it.
UNTOLD = re.compile(r"[sS]ecretRef$|[tT]emplate\.metadata\.|^status\.|^spec\.scheduling\.")


@pytest.mark.parametrize(
    ("document", "schema"),
    [
        ("api/v1", "io.k8s.api.core.v1.PersistentVolumeClaim"),
        ("api/v1", "io.k8s.api.core.v1.Pod"),
        ("api/v1", "io.k8s.api.core.v1.Service"),
        ("apis/apps/v1", "io.k8s.api.apps.v1.DaemonSet"),
        ("apis/apps/v1", "io.k8s.api.apps.v1.Deployment"),
        ("apis/apps/v1", "io.k8s.api.apps.v1.StatefulSet"),
        ("apis/batch/v1", "io.k8s.api.batch.v1.Job"),
        ("apis/policy/v1", "io.k8s.api.policy.v1.PodDisruptionBudget"),
        ("apis/rbac.authorization.k8s.io/v1", "io.k8s.api.rbac.v1.ClusterRoleBinding"),
        ("apis/rbac.authorization.k8s.io/v1", "io.k8s.api.rbac.v1.RoleBinding"),
    ],
)
def test_the_table_agrees_with_the_server(
    control_plane: ControlPlane, document: str, schema: str
) -> None:
    schemas = control_plane.admin.get(f"/openapi/v3/{document}")["components"]["schemas"]
    (gvk,) = schemas[schema]["x-kubernetes-group-version-kind"]
    resource = Resource(GroupVersionKind(gvk["group"], gvk["version"], gvk["kind"]), "unused")
    said = dict(rules(schemas, schemas[schema], ""))
    known = {path: rule for path, rule in structure_of(resource).items() if path in said}
    untold = {path for path in said.keys() - known.keys() if not UNTOLD.search(path)}
    assert untold == set()
    assert known == {path: said[path] for path in known}
    # status.conditions and what lives in metadata are listed for every kind.
    assert structure_of(resource).keys() - said.keys() <= {"status.conditions"}


def rules(schemas: Tree, node: Tree, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and rule of everything that does not merge by the default of its type."""
    node = resolve(schemas, node)
    if node.get("x-kubernetes-map-type") == "atomic":
        yield path, Merge.ATOMIC_MAP
        return
    list_type = node.get("x-kubernetes-list-type")
    if list_type == "set":
        yield path, Merge.SET
    if list_type == "map":
        yield path, ListMap(tuple(node["x-kubernetes-list-map-keys"]))
        for below, rule in rules(schemas, node["items"], path):
            if below != path:  # entries of one field that are atomic besides
                yield below, rule
    for field, child in node.get("properties", {}).items():
        yield from rules(schemas, child, f"{path}.{field}" if path else field)


def resolve(schemas: Tree, node: Tree) -> Tree:
    (reference,) = node.get("allOf") or [node]
    if "$ref" not in reference:
        return node
    target: Structure | Tree = schemas[reference["$ref"].rpartition("/")[2]]
    return {**target, **{k: v for k, v in node.items() if k.startswith("x-")}}
