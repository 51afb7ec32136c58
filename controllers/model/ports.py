# SPDX-License-Identifier: Apache-2.0
"""Taking back a Service's port that somebody renumbered. Pure.

Server-side apply knows a port by number and protocol. Once somebody changes the number, the entry
is theirs; an apply would add ours beside it, and two ports of one name are refused for ever. So
that one case is a JSON patch on the entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree


def reclaim(live: Tree, intent: Tree) -> list[Tree]:
    """Return the patch that puts each port of *intent* in the place of one that took its name.

    Empty when no name is taken. The patch fails when the Service is not as *live* any more.
    """
    wanted = {port["name"]: port for port in intent["spec"]["ports"]}
    patch: list[Tree] = []
    for index, port in enumerate(live.get("spec", {}).get("ports", ())):
        ours = wanted.get(port.get("name"))
        if ours is not None and _key(ours) != _key(port):
            path = f"/spec/ports/{index}"
            patch.append({"op": "test", "path": f"{path}/port", "value": port["port"]})
            patch.append({"op": "replace", "path": path, "value": ours})
    if not patch:
        return []
    return [{"op": "test", "path": "/metadata/uid", "value": live["metadata"]["uid"]}, *patch]


def _key(port: Tree) -> tuple[int, str]:
    return port["port"], port.get("protocol", "TCP")
