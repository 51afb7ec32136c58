# SPDX-License-Identifier: Apache-2.0
"""The HTTP API of the hub, as far as its client library reads by it.

Large files are served from another port, as the hub serves them from another host: a client must
not take its token there. Everything that was asked is kept in `requests`.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import anyio
from aiohttp import web

from hack.hub.catalog import (
    READER_TOKEN,
    STRANGER_TOKEN,
    Fault,
    File,
    Repository,
    Snapshot,
    catalog,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aiohttp.typedefs import Handler

    from flexinfer.meta.envelope import Tree

HOST = "127.0.0.1"
RETRY_AFTER = 1
"""Seconds after which who was throttled may come back."""

_REPOSITORY = "{repository:[^/]+/[^/]+}"
_CHUNK = 1 << 16
_RANGE = re.compile(r"bytes=(\d+)-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Be a request as it came; `begin` is where its range begins, `token` what it brought."""

    method: str
    path: str
    begin: int
    token: str
    agent: str


class HubServer:
    """Serve the catalog on loopback; make one with `start`."""

    def __init__(self, repositories: Mapping[str, Repository]) -> None:
        self.url = ""
        self.requests: list[Asked] = []
        self._repositories = repositories
        self._elsewhere = ""
        self._seen: Counter[tuple[str, str]] = Counter()
        self._large = {
            file.sha256: (name, file)
            for name, repository in repositories.items()
            for snapshot in repository.revisions.values()
            for file in snapshot.files.values()
            if file.large
        }

    @classmethod
    @asynccontextmanager
    async def start(cls, *, port: int = 0, calm: bool = False) -> AsyncIterator[Self]:
        """Serve until the block ends, on a free port unless one is given.

        A *calm* hub has no faults; its gate stays.
        """
        repositories = catalog()
        if calm:
            repositories = {
                name: Repository(repository.revisions, gated=repository.gated)
                for name, repository in repositories.items()
            }
        server = cls(repositories)
        async with (
            _serving(server._hub(), port) as server.url,
            _serving(server._storage(), 0) as server._elsewhere,
        ):
            yield server

    def _hub(self) -> web.Application:
        app = web.Application(middlewares=[self._record])
        app.router.add_get(f"/api/models/{_REPOSITORY}", self._info)
        app.router.add_get(f"/api/models/{_REPOSITORY}/revision/{{revision}}", self._info)
        app.router.add_get(f"/api/models/{_REPOSITORY}/tree/{{revision}}", self._tree)
        app.router.add_get(f"/{_REPOSITORY}/resolve/{{revision}}/{{file:.+}}", self._resolve)
        return app

    def _storage(self) -> web.Application:
        app = web.Application(middlewares=[self._record])
        app.router.add_get("/{checksum:[0-9a-f]{64}}", self._stored)
        return app

    @web.middleware
    async def _record(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests.append(
            Asked(
                method=request.method,
                path=request.path,
                begin=_begin(request),
                token=_token(request),
                agent=request.headers.get("User-Agent", ""),
            )
        )
        return await handler(request)

    async def _info(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["repository"]
        repository, snapshot = self._find(request)
        self._stumble(name, repository, "list")
        wants_blobs = request.query.get("blobs", "").lower() == "true"
        with_blobs = wants_blobs and repository.fault is not Fault.UNSIZED
        return web.json_response(
            {
                "_id": snapshot.commit[:24],
                "id": name,
                "modelId": name,
                "sha": snapshot.commit,
                "private": False,
                "disabled": False,
                "gated": "manual" if repository.gated else False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [
                    {"rfilename": path, **(_blob(file) if with_blobs else {})}
                    for path, file in snapshot.files.items()
                ],
            }
        )

    async def _tree(self, request: web.Request) -> web.StreamResponse:
        _, snapshot = self._find(request)
        return web.json_response([_entry(path, file) for path, file in snapshot.files.items()])

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        name, path = request.match_info["repository"], request.match_info["file"]
        repository, snapshot = self._find(request)
        self._pass_gate(request, repository)
        self._stumble(name, repository, "file")
        file = snapshot.files.get(path)
        if file is None:
            raise _refusal(web.HTTPNotFound, "EntryNotFound", f"{path} does not exist")
        headers = {
            "X-Repo-Commit": snapshot.commit,
            "Accept-Ranges": "bytes",
            "ETag": f'"{file.blob}"',
        }
        if not file.large:
            return await self._send(request, repository, file.content, headers)
        headers["X-Linked-Size"] = str(file.size)
        headers["X-Linked-ETag"] = f'"{file.sha256}"'
        headers["Location"] = f"{self._elsewhere}/{file.sha256}?signature=secret"
        return web.Response(status=302, headers=headers)

    async def _stored(self, request: web.Request) -> web.StreamResponse:
        name, file = self._large[request.match_info["checksum"]]
        repository = self._repositories[name]
        headers = {"ETag": f'"{file.sha256}"'}
        content = file.content
        # The first is the one that the catalog calls its large file.
        if repository.fault is None or file is not _largest(repository):
            return await self._send(request, repository, content, headers)
        is_first = self._is_first(name, "transfer")
        match repository.fault:
            case Fault.SHORT:
                content = content[:-100]
            case Fault.LONG:
                content += b"more"
            case Fault.SWAPPED if is_first:
                content = bytes(len(content))
            case Fault.CUT | Fault.CUT_WHOLE | Fault.SILENT if is_first:
                return await self._break(request, repository.fault, content)
        return await self._send(request, repository, content, headers)

    async def _send(
        self,
        request: web.Request,
        repository: Repository,
        content: bytes,
        headers: Mapping[str, str],
    ) -> web.StreamResponse:
        begin = 0 if repository.fault is Fault.CUT_WHOLE else _begin(request)
        if begin == 0:
            return web.Response(body=content, headers=headers)
        if begin >= len(content):
            unsatisfied = {**headers, "Content-Range": f"bytes */{len(content)}"}
            return web.Response(status=416, headers=unsatisfied)
        where = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        return web.Response(
            status=206, body=content[begin:], headers={**headers, "Content-Range": where}
        )

    async def _break(
        self, request: web.Request, fault: Fault, content: bytes
    ) -> web.StreamResponse:
        """Send half of the content, then nothing more, or the end of the connection."""
        answer = web.StreamResponse()
        answer.content_length = len(content)
        await answer.prepare(request)
        for at in range(0, len(content) // 2, _CHUNK):
            await answer.write(content[at : at + _CHUNK])
        if fault is Fault.SILENT:
            await anyio.sleep_forever()  # until the client goes, or the server ends
        if request.transport is not None:
            request.transport.close()
        return answer

    def _find(self, request: web.Request) -> tuple[Repository, Snapshot]:
        token = _token(request)
        if token not in {"", READER_TOKEN, STRANGER_TOKEN}:
            message = "Invalid credentials in Authorization header"
            raise _refusal(web.HTTPUnauthorized, "", message)
        name = request.match_info["repository"]
        repository = self._repositories.get(name)
        if repository is None and not token:
            # The hub does not tell strangers a private repository from none.
            raise _refusal(web.HTTPUnauthorized, "RepoNotFound", "Invalid username or password.")
        if repository is None:
            raise _refusal(web.HTTPNotFound, "RepoNotFound", "Repository not found")
        revision = request.match_info.get("revision", "main")
        snapshot = repository.find(revision)
        if snapshot is None:
            raise _refusal(web.HTTPNotFound, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repository, snapshot

    def _pass_gate(self, request: web.Request, repository: Repository) -> None:
        """Let anybody see what a gated repository holds, and those with access read it."""
        token = _token(request)
        if not repository.gated or token == READER_TOKEN:
            return
        refusal = web.HTTPForbidden if token else web.HTTPUnauthorized
        raise _refusal(refusal, "GatedRepo", "Access to this model is restricted.")

    def _stumble(self, name: str, repository: Repository, kind: str) -> None:
        if repository.fault is Fault.THROTTLED and self._is_first(name, kind):
            raise web.HTTPTooManyRequests(headers={"Retry-After": str(RETRY_AFTER)})
        if repository.fault is Fault.FAILING and self._is_first(name, kind):
            raise web.HTTPServiceUnavailable

    def _is_first(self, name: str, kind: str) -> bool:
        self._seen[name, kind] += 1
        return self._seen[name, kind] == 1


@asynccontextmanager
async def _serving(app: web.Application, port: int) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _begin(request: web.Request) -> int:
    found = _RANGE.fullmatch(request.headers.get("Range", ""))
    return int(found[1]) if found else 0


def _token(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


def _largest(repository: Repository) -> File:
    files = [f for snapshot in repository.revisions.values() for f in snapshot.files.values()]
    return max(files, key=lambda file: file.size)


def _blob(file: File) -> Tree:
    blob: Tree = {"blobId": file.blob, "size": file.size}
    if file.large:
        blob["lfs"] = {
            "sha256": file.sha256,
            "size": file.size,
            "pointerSize": file.pointer_size,
        }
    return blob


def _entry(path: str, file: File) -> Tree:
    entry: Tree = {"type": "file", "path": path, "oid": file.blob, "size": file.size}
    if file.large:
        entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": file.pointer_size}
    return entry


def _refusal(kind: type[web.HTTPError], code: str, message: str) -> web.HTTPError:
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return kind(headers=headers, text=message)
