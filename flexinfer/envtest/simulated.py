# SPDX-License-Identifier: Apache-2.0
"""One kind of an API server in memory, with real list and watch bytes and faults on request.

For tests of what reads by list and watch: it stands in for the transport, keeps a log of every
change by resourceVersion as etcd does, and can be told to cut, close, expire, hold back, compact
or lose its memory. What the wire itself does wrong is for `scripted`.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from flexinfer.envtest.history import Change, labels_of
from flexinfer.errors import (
    AlreadyExistsError,
    ConflictError,
    ExpiredError,
    NotFoundError,
    TransportError,
)
from flexinfer.meta.envelope import decode_object, decode_tree, encode
from flexinfer.meta.resource import NamespacedName
from flexinfer.meta.selector import Selector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from flexinfer.meta.envelope import StoredObject, Tree
    from flexinfer.meta.resource import Resource


class Asked(NamedTuple):
    """Be one request: `LIST`, `WATCH`, or the method; the path and its query."""

    verb: str
    path: str
    params: Mapping[str, str]


@dataclass(slots=True)
class SimulatedWatch:
    """Be one open watch: what was sent on it and not read yet, and how it ends."""

    selector: Selector
    idle_timeout: float
    lines: list[bytes] = field(default_factory=list)
    end: TransportError | None = None
    is_closed: bool = False
    _news: anyio.Event = field(default_factory=anyio.Event)

    def wake(self) -> None:
        """Let the reader look again."""
        self._news.set()
        self._news = anyio.Event()

    async def batch(self) -> Sequence[bytes]:
        """Return what was sent, waiting for it; empty at the end, raising if it was cut."""
        while not self.lines:
            if self.end is not None:
                raise self.end
            if self.is_closed:
                return ()
            await self._news.wait()
        lines, self.lines = self.lines, []
        return lines


class SimulatedApi:
    """Hold objects of one kind and answer list, watch, get, create, patch and delete.

    `faults` are raised in turn by the next lists and watches, one each. While `is_holding`,
    watches get nothing new. `page_faults` are raised by continued pages only.
    """

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.objects: dict[NamespacedName, Tree] = {}
        self.revision = 100
        self.asked: list[Asked] = []
        self.faults: deque[Exception | None] = deque()
        self.page_faults: deque[Exception | None] = deque()
        self.watches: list[SimulatedWatch] = []
        self.is_holding = False
        self.closes_at_once = False
        self.expires_as_event = False
        self._log: list[Change] = []
        self._sent = 0
        self._oldest = 0
        self._uids = 0
        self._pages: dict[str, tuple[int, list[Tree]]] = {}

    # What other clients do

    def put(
        self,
        name: str,
        *,
        namespace: str = "default",
        labels: Mapping[str, str] | None = None,
        **spec: object,
    ) -> StoredObject:
        """Create an object or replace its labels and spec."""
        key = NamespacedName(namespace, name)
        before = self.objects.get(key)
        metadata = {"name": name, "namespace": namespace, "uid": self._uid(before)}
        after = {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": {**metadata, "labels": dict(labels or {})},
            "spec": spec,
        }
        return self._change("MODIFIED" if before else "ADDED", key, after)

    def delete(self, name: str, *, namespace: str = "default") -> None:
        """Remove an object."""
        key = NamespacedName(namespace, name)
        self._change("DELETED", key, self.objects[key])

    def _uid(self, before: Tree | None) -> str:
        if before is not None:
            return str(before["metadata"]["uid"])
        self._uids += 1
        return f"uid-{self._uids}"

    def _change(self, kind: str, key: NamespacedName, after: Tree) -> StoredObject:
        self.revision += 1
        before = self.objects.get(key)
        after = {**after, "metadata": {**after["metadata"], "resourceVersion": str(self.revision)}}
        if kind == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = after
        self._log.append(Change(self.revision, kind, key, before, after))
        if not self.is_holding:
            self.send()
        return decode_object(encode(after))

    # What goes wrong

    def send(self) -> None:
        """Send what was held back to the open watches."""
        for change in self._log[self._sent :]:
            for watch in self.watches:
                watch.lines += change.lines(watch.selector)
        self._sent = len(self._log)
        self._wake()

    def bookmark(self) -> None:
        """Send every open watch the current resourceVersion, after all changes."""
        self.send()
        self.inject({"type": "BOOKMARK", "object": self._head(self.revision)})

    def inject(self, *lines: bytes | Tree) -> None:
        """Send lines of any content on every open watch."""
        data = [line if isinstance(line, bytes) else encode(line) for line in lines]
        for watch in self.watches:
            watch.lines += data
        self._wake()

    def close(self) -> None:
        """End every open watch as a server does at its timeout."""
        for watch in self.watches:
            watch.is_closed = True
        self._wake()

    def cut(self, error: TransportError | None = None) -> None:
        """End every open watch as a lost connection does; what was not read is lost."""
        for watch in self.watches:
            watch.lines.clear()
            watch.end = error or TransportError("cut")
        self._wake()

    def compact(self) -> None:
        """Forget the past: older watches and continued lists expire."""
        self._oldest = self.revision
        self._pages.clear()

    def restore(self, objects: Mapping[NamespacedName, Tree], revision: int) -> None:
        """Go back to an earlier state, as after a restore from a backup."""
        self.objects, self.revision = dict(objects), revision
        self._log, self._sent, self._oldest = [], 0, 0

    def _wake(self) -> None:
        for watch in self.watches:
            watch.wake()

    # The transport

    async def request(  # noqa: PLR0913 - the transport's
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float = math.inf,  # noqa: ASYNC109 - the transport's
        before_send: Callable[[], None] | None = None,
    ) -> bytes:
        """Answer one request as the API server does."""
        del content_type, timeout
        await checkpoint()
        if before_send is not None:
            before_send()
        params = dict(params or {})
        key = self._key(path)
        self.asked.append(
            Asked("LIST" if method == "GET" and key is None else method, path, params)
        )
        if key is None and method == "GET":
            return self._list(params)
        sent = decode_tree(body) if body else {}
        if key is None:
            return self._create(sent)
        if key not in self.objects and (method != "PATCH" or "force" not in params):
            raise NotFoundError(f"{self.resource} {key} not found", reason="NotFound")
        if method == "PATCH":
            return self._patch(key, sent)
        if method == "DELETE":
            return self._delete(key, sent)
        return encode(self.objects[key])

    def _key(self, path: str) -> NamespacedName | None:
        """Return what a path names, without its subresource; None for a collection."""
        parts = path.partition(f"/{self.resource.api_version}/")[2].split("/")
        namespace = parts[1] if parts[0] == "namespaces" else ""
        rest = parts[3:] if namespace else parts[1:]
        return NamespacedName(namespace, rest[0]) if rest else None

    def _create(self, sent: Tree) -> bytes:
        metadata = dict(sent["metadata"])
        self._uids += 1
        metadata |= {"uid": f"uid-{self._uids}"}
        metadata["name"] = metadata.get("name") or f"{metadata['generateName']}{self._uids}"
        key = NamespacedName(metadata.get("namespace", ""), metadata["name"])
        if key in self.objects:
            raise AlreadyExistsError(f"{key} exists", reason="AlreadyExists")
        self._change("ADDED", key, {**sent, "metadata": metadata})
        return encode(self.objects[key])

    def _patch(self, key: NamespacedName, sent: Tree) -> bytes:
        old = self.objects.get(key)
        if old is None:
            return self._create(sent)
        metadata = {**old["metadata"], **sent.get("metadata", {})}
        for name, said in (("uid", "is another object"), ("resourceVersion", "was modified")):
            if metadata[name] != old["metadata"][name]:
                raise ConflictError(f"{key} {said}", reason="Conflict")
        new = {**old, **sent, "metadata": metadata}
        if new != old:
            gone = "deletionTimestamp" in metadata and not metadata.get("finalizers")
            self._change("DELETED" if gone else "MODIFIED", key, new)
        return encode(self.objects.get(key, new))

    def _delete(self, key: NamespacedName, options: Tree) -> bytes:
        old = self.objects[key]
        uid = options.get("preconditions", {}).get("uid", old["metadata"]["uid"])
        if uid != old["metadata"]["uid"]:
            raise ConflictError(f"{key} is another object", reason="Conflict")
        if not old["metadata"].get("finalizers"):
            self._change("DELETED", key, old)
            return encode({"kind": "Status", "status": "Success", "details": {"uid": uid}})
        metadata = {**old["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        self._change("MODIFIED", key, {**old, "metadata": metadata})
        return encode(self.objects[key])

    def _list(self, params: Mapping[str, str]) -> bytes:
        token = params.get("continue", "")
        faults = self.page_faults if token else self.faults
        if faults and (fault := faults.popleft()) is not None:
            raise fault
        if token:
            if token not in self._pages:
                raise ExpiredError("the continue token is too old", reason="Expired")
            revision, items = self._pages.pop(token)
        else:
            selector = Selector.parse(params.get("labelSelector", ""))
            revision = self.revision
            items = [o for o in self.objects.values() if selector.matches(labels_of(o))]
        limit = int(params.get("limit", "0")) or len(items)
        page, rest = items[:limit], items[limit:]
        metadata = {"resourceVersion": str(revision), "continue": ""}
        if rest:
            metadata["continue"] = f"page-{len(self.asked)}"
            self._pages[metadata["continue"]] = (revision, rest)
        return encode({"kind": f"{self.resource.kind}List", "metadata": metadata, "items": page})

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        idle_timeout: float,
        open_timeout: float = math.inf,
    ) -> AsyncIterator[SimulatedWatch]:
        """Open a watch from its resourceVersion."""
        del open_timeout
        await checkpoint()
        params = dict(params or {})
        self.asked.append(Asked("WATCH", path, params))
        if self.faults and (fault := self.faults.popleft()) is not None:
            raise fault
        watch = SimulatedWatch(Selector.parse(params.get("labelSelector", "")), idle_timeout)
        watch.is_closed = self.closes_at_once
        self._begin(watch, int(params["resourceVersion"]))
        self.watches.append(watch)
        try:
            yield watch
        finally:
            self.watches.remove(watch)

    def _begin(self, watch: SimulatedWatch, revision: int) -> None:
        if revision < self._oldest:
            if not self.expires_as_event:
                raise ExpiredError("too old resource version", reason="Expired")
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            watch.lines.append(encode({"type": "ERROR", "object": status}))
            return
        for change in self._log[: self._sent]:
            if change.revision > revision:
                watch.lines += change.lines(watch.selector)

    def _head(self, revision: int) -> Tree:
        return {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": {"resourceVersion": str(revision)},
        }
