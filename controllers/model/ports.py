# SPDX-License-Identifier: Apache-2.0
"""Taking back a port that somebody renumbered, of a Service or of a container. Pure.

Server-side apply knows a port by number and protocol. Once somebody changes the number, the entry
is theirs; an apply would add ours beside it, and two ports of one name are refused for ever. So
that one case is a JSON patch on the entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.meta.envelope import Tree


def reclaim(live: Tree, intent: Tree) -> list[Tree]:
    """Return the patch that puts each port of *intent* in the place of one that took its name.

    Empty when no name is taken. The patch fails when the object is not as *live* any more.
    """
    patch = [step for lists in _lists(live, intent) for step in _steps(*lists)]
    if not patch:
        return []
    return [{"op": "test", "path": "/metadata/uid", "value": live["metadata"]["uid"]}, *patch]


def _lists(live: Tree, intent: Tree) -> Iterator[tuple[str, list[Tree], list[Tree], str]]:
    """Yield for each list of ports its path, the live one, ours, and the field with the number."""
    yield "/spec/ports", _at(live, "spec", "ports"), _at(intent, "spec", "ports"), "port"
    pods = ("spec", "template", "spec", "containers")
    ours = {container["name"]: container for container in _at(intent, *pods)}
    for index, container in enumerate(_at(live, *pods)):
        ports = ours.get(container["name"], {}).get("ports", [])
        path = f"/{'/'.join(pods)}/{index}/ports"
        yield path, container.get("ports", []), ports, "containerPort"


def _at(tree: Tree, *fields: str) -> list[Tree]:
    value: Any = tree
    for field in fields:
        value = value.get(field, {})
    return value or []


def _steps(path: str, live: list[Tree], ours: list[Tree], number: str) -> Iterator[Tree]:
    wanted = {port["name"]: port for port in ours}
    for index, port in enumerate(live):
        mine = wanted.get(port.get("name"))
        if mine is not None and _key(mine, number) != _key(port, number):
            yield {"op": "test", "path": f"{path}/{index}/{number}", "value": port[number]}
            yield {"op": "replace", "path": f"{path}/{index}", "value": mine}


def _key(port: Tree, number: str) -> tuple[int, str]:
    return port[number], port.get("protocol", "TCP")
