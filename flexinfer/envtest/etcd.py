# SPDX-License-Identifier: Apache-2.0
"""What only etcd itself can be asked: its revision, and to forget the past."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING

from flexinfer.envtest.ports import LOOPBACK
from flexinfer.errors import FlexInferError

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

__all__ = ["compact", "revision"]

_TIMEOUT = 30.0


def revision(port: int) -> int:
    """Return the revision of the etcd at *port*: the resourceVersion of the last write."""
    return int(_ask(port, "/v3/kv/range", {"key": "AA=="})["header"]["revision"])


def compact(port: int, before: int) -> None:
    """Make the etcd at *port* forget what was *before* a revision, but for what is the newest."""
    _ask(port, "/v3/kv/compaction", {"revision": str(before), "physical": True})


def _ask(port: int, path: str, body: Tree) -> Tree:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_TIMEOUT)
    try:
        connection.request("POST", path, body=json.dumps(body))
        response = connection.getresponse()
        answer: Tree = json.loads(response.read())
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise FlexInferError(f"etcd {path}: {response.status} {answer.get('message', answer)}")
    return answer
