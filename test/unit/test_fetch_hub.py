# SPDX-License-Identifier: Apache-2.0
"""The hub's client as the fetcher uses it, and a fetch in this process against the stand-in."""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
from aiohttp import web
from huggingface_hub import close_session

from hack.hub.catalog import LARGE, MAIN, READER_TOKEN, STRANGER_TOKEN, catalog
from hack.hub.server import HubServer
from internal.fetch import download
from internal.fetch.download import fetch_hub, identify
from internal.fetch.environment import HubSettings
from internal.fetch.errors import FetchError, HopelessError, TransientError
from internal.fetch.hub import Hub
from internal.fetch.marker import DEFAULT_REVISION, MARKER
from internal.fetch.retry import Patience
from internal.fetch.workspace import PARTS, Workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from flexinfer.meta.envelope import Tree

FILES = catalog()["acme/tiny-chat"].revisions[MAIN].files
TOTAL = sum(file.size for file in FILES.values())


@pytest.fixture(autouse=True)
def _no_connection_is_left() -> Iterator[None]:
    yield
    close_session()


def settings(url: str, token: str = "") -> HubSettings:
    return HubSettings(endpoint=url, token=token)


def patience() -> Patience:
    """No time passes between tries, and there are at most a few."""
    clock = iter(range(1000))
    return Patience(limit=20, clock=lambda: float(next(clock)), sleep=lambda _: None)


async def fetch(
    server: HubServer, repository: str, to: Path, *, free: Callable[[Path], int] = lambda _: 1 << 40
) -> list[str]:
    """Fetch in a thread, and return the lines that were written."""
    lines: list[str] = []
    work = partial(
        fetch_hub,
        Hub(repository, settings(server.url)),
        identify(f"HF://{repository}"),
        to,
        patience=patience(),
        write=lines.append,
        free=free,
    )
    await anyio.to_thread.run_sync(work)
    return lines


@asynccontextmanager
async def answering(handler: Callable[[web.Request], web.StreamResponse]) -> AsyncIterator[Hub]:
    """A hub that answers every request so."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Hub("acme/odd", settings(f"http://127.0.0.1:{runner.addresses[0][1]}"))
    finally:
        await runner.cleanup()


async def listing_fails(hub: Hub, kind: type[FetchError]) -> FetchError:
    with pytest.raises(kind) as failure:
        await anyio.to_thread.run_sync(hub.list, "main")
    return failure.value


def read(hub: Hub, offset: int) -> tuple[int, bytes]:
    with hub.open("c0ffee", "file", offset=offset) as content:
        return content.offset, b"".join(content.chunks)


async def test_the_list_has_sizes_and_checksums() -> None:
    async with HubServer.start() as server:
        hub = Hub("acme/tiny-chat", settings(server.url))
        listing = await anyio.to_thread.run_sync(hub.list, "main")
        assert server.requests[0].agent.startswith("flexinfer")
    assert {file.name: file.size for file in listing.files} == {
        name: file.size for name, file in FILES.items()
    }
    by_name = {file.name: file.checksum for file in listing.files}
    assert by_name[LARGE] == FILES[LARGE].sha256
    assert by_name["config.json"] == FILES["config.json"].blob


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
async def test_a_busy_hub_is_told_from_a_refusing_one(status: int) -> None:
    async with answering(
        lambda _: web.Response(status=status, headers={"Retry-After": "7"})
    ) as hub:
        error = await listing_fails(hub, TransientError)
    assert isinstance(error, TransientError)
    assert error.retry_after == 7
    assert f"answers {status} for the list of files" in str(error)


@pytest.mark.parametrize(
    ("status", "headers", "kind", "words"),
    [
        (401, {}, HopelessError, "refuses the list of files of HF://acme/odd with 401"),
        (403, {}, HopelessError, "refuses the list of files of HF://acme/odd with 403"),
        (404, {}, FetchError, "answers 404"),
        (404, {"X-Error-Code": "RevisionNotFound"}, HopelessError, "has no revision main"),
        (404, {"X-Error-Code": "RepoNotFound"}, HopelessError, "does not exist or is private"),
        (302, {"Location": "/again"}, FetchError, "TooManyRedirects"),
    ],
)
async def test_a_refusal_names_its_cure(
    status: int, headers: dict[str, str], kind: type[FetchError], words: str
) -> None:
    async with answering(lambda _: web.Response(status=status, headers=headers)) as hub:
        assert words in str(await listing_fails(hub, kind))


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "[]",
        "null",
        "{}",
        '{"id": "a/b"}',
        '{"id": "a/b", "sha": "c0ffee", "siblings": [{"rfilename": "a"}]}',
        '{"id": "a/b", "sha": "c0ffee", "siblings": [{"rfilename": "a", "lfs": {}}]}',
        '{"id": "a/b", "sha": "c0ffee", "siblings": [7]}',
    ],
)
async def test_what_is_no_hub_is_told_from_one(body: str) -> None:
    async with answering(lambda _: web.Response(text=body)) as hub:
        assert "make sure that HF_ENDPOINT is a hub" in str(await listing_fails(hub, FetchError))


async def test_nobody_at_home_is_worth_another_try() -> None:
    hub = Hub("acme/odd", settings("http://user:secret@127.0.0.1:1"))
    error = await listing_fails(hub, TransientError)
    assert "127.0.0.1:1 broke off or did not answer" in str(error)
    assert "secret" not in str(error)


async def test_a_refused_token_is_not_repeated() -> None:
    refusal = web.Response(
        status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"}
    )
    async with answering(lambda _: refusal) as anybody:
        hub = Hub("acme/odd", settings(anybody._settings.endpoint, "hf_wrong"))
        error = await listing_fails(hub, HopelessError)
    assert "does not accept the token" in str(error)
    assert "hf_wrong" not in str(error)


async def test_a_file_is_read_from_where_it_is_asked_for() -> None:
    async with HubServer.start() as server:
        hub = Hub("acme/gated", settings(server.url, READER_TOKEN))
        whole = catalog()["acme/gated"].revisions[MAIN]

        def tail(offset: int) -> bytes:
            with hub.open(whole.commit, LARGE, offset=offset) as content:
                assert content.offset == offset
                return b"".join(content.chunks)

        for offset in (0, 5):
            got = await anyio.to_thread.run_sync(tail, offset)
            assert got == whole.files[LARGE].content[offset:]


async def test_a_hub_that_does_not_heed_ranges_sends_from_the_beginning() -> None:
    async with answering(lambda _: web.Response(body=b"whole")) as hub:
        assert await anyio.to_thread.run_sync(read, hub, 2) == (0, b"whole")


async def test_a_part_of_unknown_place_is_refused() -> None:
    async with answering(lambda _: web.Response(status=206, body=b"part")) as hub:
        with pytest.raises(FetchError, match="which part of file"):
            await anyio.to_thread.run_sync(read, hub, 2)


async def test_a_fetch_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    def full(_free: Path) -> int:
        return 0

    async with HubServer.start() as server:
        with pytest.raises(FetchError, match=r"raise spec\.cache\.size"):
            await fetch(server, "acme/tiny-chat", tmp_path, free=full)
        assert (await fetch(server, "acme/tiny-chat", tmp_path))[0] == f"fetched 0 of {TOTAL} bytes"
        before = len(server.requests)
        assert await fetch(server, "acme/tiny-chat", tmp_path) == [f"{tmp_path} is whole already"]
        assert len(server.requests) == before


async def test_room_is_asked_for_what_is_missing_only(tmp_path: Path) -> None:
    asked: list[int] = []

    def exactly(_: Path) -> int:
        missing = TOTAL - FILES[LARGE].size + 100
        asked.append(missing)
        return missing

    async with HubServer.start() as server:
        await fetch(server, "acme/tiny-chat", tmp_path)
        (tmp_path / MARKER).rename(tmp_path / ".flexinfer_fetching")
        for name in FILES:
            if name != LARGE:
                (tmp_path / name).unlink()
        first = await fetch(server, "acme/tiny-chat", tmp_path, free=exactly)
    assert len(asked) == 1
    assert first[0] == f"fetched {FILES[LARGE].size} of {TOTAL} bytes"


async def test_files_of_the_right_size_and_another_content_are_fetched_anew(tmp_path: Path) -> None:
    for name, file in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(file.content if name == LARGE else bytes(file.size))
    async with HubServer.start() as server:
        await fetch(server, "acme/tiny-chat", tmp_path)
        assert not [asked for asked in server.requests if FILES[LARGE].sha256 in asked.path]
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == {
        name: file.content for name, file in FILES.items()
    }


@pytest.mark.parametrize("cut", [0, 1000, -1, None], ids=["nothing", "begun", "whole", "too long"])
async def test_a_part_is_gone_on_with_whatever_its_length(tmp_path: Path, cut: int | None) -> None:
    file = FILES[LARGE]
    async with HubServer.start() as server:
        with pytest.raises(FetchError):
            await fetch(server, "acme/tiny-chat", tmp_path, free=lambda _: 0)
        hub = Hub("acme/tiny-chat", settings(server.url))
        listing = await anyio.to_thread.run_sync(hub.list, DEFAULT_REVISION)
        named = next(found for found in listing.files if found.name == LARGE)
        identity = identify("HF://acme/tiny-chat")
        with Workspace.open(tmp_path, identity) as workspace:
            part = download._part(workspace, named)
        content = file.content + b"more" if cut is None else file.content
        part.write_bytes(content if cut in {None, -1} else content[:cut])
        before = len(server.requests)
        await fetch(server, "acme/tiny-chat", tmp_path)
        begins = [asked.begin for asked in server.requests[before:] if file.sha256 in asked.path]
    assert begins == ([] if cut == -1 else [cut or 0])
    assert (tmp_path / LARGE).read_bytes() == file.content


@pytest.mark.parametrize("fault", ["cut", "cut-whole"])
async def test_a_transfer_that_breaks_is_gone_on_with(tmp_path: Path, fault: str) -> None:
    async with HubServer.start() as server:
        lines = await fetch(server, f"acme/{fault}", tmp_path)
    files = catalog()[f"acme/{fault}"].revisions[MAIN].files
    assert (tmp_path / LARGE).read_bytes() == files[LARGE].content
    total = sum(file.size for file in files.values())
    assert lines[-1] == f"fetched {total} of {total} bytes"


async def test_a_file_that_goes_on_for_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    async with HubServer.start() as server:
        with pytest.raises(FetchError, match=f"^{LARGE} has "):
            await fetch(server, "acme/long", tmp_path)
    assert not list((tmp_path / PARTS).iterdir())


async def test_patterns_that_want_nothing_are_hopeless() -> None:
    async with HubServer.start() as server:
        hub = Hub("acme/cut", settings(server.url))
        listing = await anyio.to_thread.run_sync(hub.list, MAIN)
    with pytest.raises(HopelessError, match=r"\(\*\.bin, not \*\.json\); correct"):
        download._wanted(listing, identify("HF://acme/cut", allow=["*.bin"], ignore=["*.json"]))


@pytest.mark.parametrize(
    ("token", "words"), [("", "name a Secret with your token"), (STRANGER_TOKEN, "has no access")]
)
async def test_a_gate_says_what_opens_it(token: str, words: str) -> None:
    async with HubServer.start() as server:
        hub = Hub("acme/gated", settings(server.url, token))

        def read_config() -> None:
            with hub.open("main", "config.json", offset=0):
                pass

        with pytest.raises(HopelessError, match=words):
            await anyio.to_thread.run_sync(read_config)


async def test_a_part_that_was_wrong_is_not_met_again(tmp_path: Path) -> None:
    async with HubServer.start() as server:
        with pytest.raises(FetchError, match=f"^{LARGE} has "):
            await fetch(server, "acme/short", tmp_path)
    assert not list((tmp_path / PARTS).iterdir())


async def test_a_volume_that_fills_up_meanwhile_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with HubServer.start() as server:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda descriptor: _fail_for_parts(descriptor, full))
            with pytest.raises(OSError, match="No space left"):
                await fetch(server, "acme/tiny-chat", tmp_path)
        assert not (tmp_path / MARKER).exists()
        await fetch(server, "acme/tiny-chat", tmp_path)
    assert (tmp_path / LARGE).read_bytes() == FILES[LARGE].content


def _fail_for_parts(descriptor: int, fail: Callable[[int], None]) -> None:
    if PARTS in Path(f"/proc/self/fd/{descriptor}").readlink().parts:
        fail(descriptor)


async def test_a_hub_that_stays_away_is_given_up(tmp_path: Path) -> None:
    identity = identify("HF://acme/odd")
    hub = Hub("acme/odd", settings("http://127.0.0.1:1"))
    with pytest.raises(FetchError, match=r"given up after .* is kept for the next try"):
        await anyio.to_thread.run_sync(
            partial(
                fetch_hub,
                hub,
                identity,
                tmp_path,
                patience=patience(),
                write=lambda _: None,
            )
        )


async def test_transfers_that_break_again_and_again_are_given_up(tmp_path: Path) -> None:
    def broken(request: web.Request) -> web.StreamResponse:
        if "/resolve/" in request.path:
            return web.Response(status=503)
        return web.json_response(info("file", size=5))

    async with answering(broken) as hub:
        with pytest.raises(FetchError, match="answers 503 for file; given up"):
            await anyio.to_thread.run_sync(
                partial(
                    fetch_hub,
                    hub,
                    identify("HF://acme/odd"),
                    tmp_path,
                    patience=patience(),
                    write=lambda _: None,
                )
            )


def info(name: str, *, size: int) -> Tree:
    """What a hub says of a repository with one file."""
    file = {"rfilename": name, "size": size, "blobId": "0" * 40}
    return {"id": "acme/odd", "sha": "c0ffee", "siblings": [file]}
