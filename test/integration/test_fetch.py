# SPDX-License-Identifier: Apache-2.0
"""`flexinfer fetch hub` as its Jobs run it: a process against the stand-in of the hub."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import anyio
import pytest

from flexinfer.envtest.eventually import eventually
from hack.hub.catalog import LARGE, MAIN, READER_TOKEN, STRANGER_TOKEN, catalog
from hack.hub.server import HubServer
from internal.fetch.marker import MARKER
from internal.fetch.paths import OWN_PREFIX
from internal.fetch.workspace import PARTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from anyio.abc import Process

SIZES = {
    name: {path: file.size for path, file in repository.revisions[MAIN].files.items()}
    for name, repository in catalog().items()
}


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    out: str
    err: str
    left: str

    @property
    def last(self) -> str:
        """The last line that tells of a failure."""
        return self.err.splitlines()[-1]


def command(repository: str, to: Path, *options: str) -> list[str]:
    source = repository if "://" in repository else f"HF://{repository}"
    words = ["fetch", "hub", "--source", source, "--to", str(to), *options]
    return [sys.executable, "-m", "flexinfer", *words]


def environment(hub: HubServer, to: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING_FACE"))}
    log = str(to.with_name("termination-log"))
    return {**kept, "HF_ENDPOINT": hub.url, "FLEXINFER_TERMINATION_LOG": log, **more}


async def fetch(
    hub: HubServer, repository: str, to: Path, *options: str, env: Mapping[str, str] | None = None
) -> Ended:
    ended = await anyio.run_process(
        command(repository, to, *options),
        env=environment(hub, to, **(env or {})),
        check=False,
        stdin=subprocess.DEVNULL,
    )
    left = to.with_name("termination-log")
    return Ended(
        ended.returncode, ended.stdout.decode(), ended.stderr.decode(), left.read_text("utf-8")
    )


@asynccontextmanager
async def fetching(hub: HubServer, repository: str, to: Path) -> AsyncIterator[Process]:
    """A process that is at work; killed at the end if it still is."""
    async with await anyio.open_process(
        command(repository, to), env=environment(hub, to), stdin=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


def content(to: Path) -> dict[str, bytes]:
    """What a server would find, without the fetcher's own files."""
    return {
        path.relative_to(to).as_posix(): path.read_bytes()
        for path in to.rglob("*")
        if path.is_file() and OWN_PREFIX not in path.as_posix()
    }


def expected(repository: str, revision: str = MAIN) -> dict[str, bytes]:
    files = catalog()[repository].revisions[revision].files
    return {name: file.content for name, file in files.items()}


def begins(hub: HubServer, repository: str) -> list[int]:
    """Where each transfer of the repository's large file began."""
    checksum = catalog()[repository].revisions[MAIN].files[LARGE].sha256
    return [asked.begin for asked in hub.requests if asked.path == f"/{checksum}"]


async def half_of_large(to: Path) -> int:
    """Wait until half of the large file is on the disk, and return its bytes."""

    def grown() -> int:
        size = max((path.stat().st_size for path in to.glob(f"{PARTS}/*")), default=0)
        assert size >= (3 << 20) // 2
        return size

    return await eventually(grown)


async def test_a_repository_arrives_whole_and_says_so(tmp_path: Path) -> None:
    to = tmp_path / "models" / "chat"
    async with HubServer.start() as hub:
        ended = await fetch(hub, "acme/tiny-chat", to)
    assert (ended.code, ended.err) == (0, "")
    assert content(to) == expected("acme/tiny-chat")
    sizes = SIZES["acme/tiny-chat"]
    outcome = {"bytes": sum(sizes.values()), "files": len(sizes)}
    *lines, last = ended.out.splitlines()
    assert json.loads(last) == json.loads(ended.left) == outcome
    assert lines[-1] == f"fetched {outcome['bytes']} of {outcome['bytes']} bytes"
    marker = json.loads((to / MARKER).read_text())
    assert marker == {
        "source": "HF://acme/tiny-chat",
        "revision": "main",
        "commit": catalog()["acme/tiny-chat"].revisions[MAIN].commit,
        "allow": [],
        "ignore": [],
        "bytes": outcome["bytes"],
        "files": sizes,
    }


async def test_what_is_whole_is_left_alone_and_the_hub_is_not_asked(tmp_path: Path) -> None:
    to = tmp_path / "chat"
    async with HubServer.start() as hub:
        first = await fetch(hub, "acme/tiny-chat", to, "--allow", "*.json", "--allow", "/*.md")
        asked = len(hub.requests)
        second = await fetch(hub, "acme/tiny-chat", to, "--allow", "*.md", "--allow", " *.json")
        assert len(hub.requests) == asked
    assert first.out.splitlines()[-1] == second.out.splitlines()[-1]
    assert second.code == 0


@pytest.mark.parametrize("change", [b"", None], ids=["cut short", "gone"])
async def test_a_file_that_the_marker_counts_and_is_not_right_is_fetched_again(
    tmp_path: Path, change: bytes | None
) -> None:
    to = tmp_path / "chat"
    async with HubServer.start() as hub:
        await fetch(hub, "acme/tiny-chat", to)
        if change is None:
            (to / "config.json").unlink()
        else:
            (to / "config.json").write_bytes(change)
        before = len(hub.requests)
        assert (await fetch(hub, "acme/tiny-chat", to)).code == 0
        asked = [asked.path.rpartition("/")[2] for asked in hub.requests[before:]]
    assert asked == ["main", "config.json"]
    assert content(to) == expected("acme/tiny-chat")


async def test_another_revision_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    to = tmp_path / "chat"
    async with HubServer.start() as hub:
        await fetch(hub, "acme/tiny-chat", to)
        (to / "left-behind.safetensors").write_bytes(b"old")
        assert (await fetch(hub, "acme/tiny-chat", to, "--revision", "v2")).code == 0
    assert content(to) == expected("acme/tiny-chat", "v2")


async def test_another_source_never_meets_an_old_marker(tmp_path: Path) -> None:
    to = tmp_path / "chat"
    async with HubServer.start() as hub:
        await fetch(hub, "acme/tiny-gguf", to)
        assert (await fetch(hub, "acme/short", to)).code == 1
        assert not (to / MARKER).exists()
        assert not list(to.glob("*.gguf"))
        assert (await fetch(hub, "acme/tiny-chat", to)).code == 0
    assert content(to) == expected("acme/tiny-chat")


async def test_what_an_interrupted_fetch_of_another_source_brought_goes_too(tmp_path: Path) -> None:
    to = tmp_path / "chat"
    async with HubServer.start() as hub:
        assert (await fetch(hub, "acme/short", to)).code == 1
        assert content(to)
        assert (await fetch(hub, "acme/tiny-gguf", to)).code == 0
    assert content(to) == expected("acme/tiny-gguf")


async def test_patterns_choose_the_files(tmp_path: Path) -> None:
    to = tmp_path / "chat"
    async with HubServer.start() as hub:
        options = ("--allow", "*.json", "--allow", "README.md", "--ignore=original/")
        await fetch(hub, "acme/tiny-chat", to, *options)
    assert sorted(content(to)) == [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer/vocab.json",
    ]


async def test_a_gated_repository_opens_for_the_token_that_may(tmp_path: Path) -> None:
    to = tmp_path / "gated"
    async with HubServer.start() as hub:
        stranger = await fetch(hub, "acme/gated", to)
        refused = await fetch(hub, "acme/gated", to, env={"HF_TOKEN": STRANGER_TOKEN})
        invalid = await fetch(hub, "acme/gated", to, env={"HF_TOKEN": "hf_unheard_of"})
        reader = await fetch(hub, "acme/gated", to, env={"HF_TOKEN": f"{READER_TOKEN}\n"})
        taken = {asked.token for asked in hub.requests if "/" not in asked.path[1:]}
    assert [stranger.code, refused.code, invalid.code, reader.code] == [2, 2, 2, 0]
    assert "spec.cache.tokenSecretRef" in stranger.last
    assert "accept its terms with the account of that token" in refused.last
    assert "does not accept the token" in invalid.last
    assert taken == {""}, "the token went to where large files are kept"
    assert content(to) == expected("acme/gated")
    said = [text for end in (refused, invalid, reader) for text in (end.out, end.err, end.left)]
    written = "".join(said) + (to / MARKER).read_text()
    assert not [token for token in (READER_TOKEN, STRANGER_TOKEN, "unheard") if token in written]


@pytest.mark.parametrize("fault", ["cut", "cut-whole"])
async def test_a_cut_transfer_is_gone_on_with(tmp_path: Path, fault: str) -> None:
    to = tmp_path / "cut"
    async with HubServer.start() as hub:
        ended = await fetch(hub, f"acme/{fault}", to)
        first, second = begins(hub, f"acme/{fault}")
    assert (ended.code, ended.err) == (0, "")
    assert first == 0
    assert second > 0
    assert content(to) == expected(f"acme/{fault}")


async def test_a_fetch_that_was_killed_is_gone_on_with_by_the_next_try(tmp_path: Path) -> None:
    to = tmp_path / "silent"
    async with HubServer.start() as hub:
        async with fetching(hub, "acme/silent", to) as process:
            half = await half_of_large(to)
            process.kill()
            await process.wait()
        assert not (to / LARGE).exists()
        assert not (to / MARKER).exists()
        ended = await fetch(hub, "acme/silent", to)
        assert begins(hub, "acme/silent") == [0, half]
    assert ended.code == 0
    assert content(to) == expected("acme/silent")


async def test_a_fetch_that_is_told_to_stop_says_that_it_may_be_tried_again(tmp_path: Path) -> None:
    to = tmp_path / "silent"
    async with HubServer.start() as hub, fetching(hub, "acme/silent", to) as process:
        await half_of_large(to)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 1
    assert "kept for the next try" in to.with_name("termination-log").read_text()


async def test_a_second_fetch_waits_until_the_first_is_gone(tmp_path: Path) -> None:
    to = tmp_path / "silent"
    async with HubServer.start() as hub, fetching(hub, "acme/silent", to) as first:
        await half_of_large(to)
        async with fetching(hub, "acme/silent", to) as second:
            with anyio.move_on_after(1.5):
                await second.wait()
            assert second.returncode is None
            first.kill()
            assert await second.wait() == 0
    assert content(to) == expected("acme/silent")


@pytest.mark.parametrize("fault", ["throttled", "failing"])
async def test_a_busy_hub_is_asked_again(tmp_path: Path, fault: str) -> None:
    to = tmp_path / fault
    async with HubServer.start() as hub:
        ended = await fetch(hub, f"acme/{fault}", to)
    assert (ended.code, ended.err) == (0, "")
    assert content(to) == expected(f"acme/{fault}")


@pytest.mark.parametrize(
    ("fault", "wrong"), [("short", "bytes"), ("long", "bytes"), ("swapped", "sha256 checksum")]
)
async def test_a_file_that_is_not_the_named_one_is_dropped(
    tmp_path: Path, fault: str, wrong: str
) -> None:
    to = tmp_path / fault
    async with HubServer.start() as hub:
        ended = await fetch(hub, f"acme/{fault}", to)
        assert ended.code == 1
        assert LARGE in ended.last
        assert wrong in ended.last
        assert ended.left == ended.last
        assert LARGE not in content(to)
        assert not (to / MARKER).exists()
        if fault == "swapped":
            assert (await fetch(hub, "acme/swapped", to)).code == 0
            assert begins(hub, "acme/swapped") == [0, 0]
            assert content(to) == expected("acme/swapped")


@pytest.mark.parametrize(
    ("repository", "options", "code", "words"),
    [
        ("acme/huge", (), 1, ("PiB are still to be fetched", "free", "spec.cache.size")),
        ("acme/outside", (), 2, ("'../../outside.json'", "use a source that can be trusted")),
        ("acme/unsized", (), 1, ("no size or checksum of README.md", "HF_ENDPOINT")),
        ("acme/none", (), 2, ("does not exist or is private", "spec.source")),
        ("acme/tiny-chat", ("--revision", "v9"), 2, ("no revision v9", "spec.cache.revision")),
        ("acme/tiny-chat", ("--allow", "*.bin"), 2, ("*.bin", "spec.cache.allowPatterns")),
        ("acme/tiny-chat", ("--allow", "../*"), 2, ("'../*'", "without '..'")),
    ],
)
async def test_what_cannot_be_fetched_is_one_sentence_with_a_cure(
    tmp_path: Path, repository: str, options: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    to = tmp_path / "models" / "model"
    to.parent.mkdir()
    async with HubServer.start() as hub:
        ended = await fetch(hub, repository, to, *options)
    assert ended.code == code
    assert [word for word in words if word not in ended.last] == []
    assert ended.left == ended.last
    assert content(to) == {} if to.exists() else True
    assert not (tmp_path / "outside.json").exists()


@pytest.mark.parametrize(
    ("env", "source", "words"),
    [
        (
            {"HF_ENDPOINT": "ftp://hub.example"},
            "HF://acme/cut",
            "HF_ENDPOINT is 'ftp://hub.example'",
        ),
        ({"HF_TOKEN": "two words"}, "HF://acme/cut", "HF_TOKEN holds something that is no token"),
        ({}, "ollama://tiny", "is not of the form HF://"),
        ({}, "hub://nonsense", "has no known scheme"),
    ],
)
async def test_misuse_is_told_apart_from_bad_luck(
    tmp_path: Path, env: Mapping[str, str], source: str, words: str
) -> None:
    async with HubServer.start() as hub:
        ended = await fetch(hub, source, tmp_path / "chat", env=env)
        assert hub.requests == []
    assert ended.code == 2
    assert words in ended.last
    assert "two words" not in ended.err
