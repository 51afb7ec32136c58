# SPDX-License-Identifier: Apache-2.0
"""The stand-in of the hub is one to the hub's own client, and the same in every run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from hack.hub.catalog import LARGE, MAIN, READER_TOKEN, STRANGER_TOKEN, Fault, catalog
from hack.hub.server import HubServer

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
FILES = catalog()["acme/tiny-chat"].revisions[MAIN].files

SNAPSHOT = """
import sys
from huggingface_hub import snapshot_download
snapshot_download("acme/tiny-chat", local_dir=sys.argv[1], ignore_patterns=["original/*"])
"""
ASK = """
import json, sys
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url
api = HfApi()
tree = {f.path: f.size for f in api.list_repo_tree("acme/tiny-chat", recursive=True)}
large = get_hf_file_metadata(hf_hub_url("acme/tiny-chat", sys.argv[2]))
newer = hf_hub_download("acme/tiny-chat", "config.json", revision="v2", cache_dir=sys.argv[1])
print(json.dumps({"tree": tree, "etag": large.etag, "size": large.size, "newer": newer}))
"""
REFUSED = """
import sys
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
try:
    hf_hub_download(sys.argv[2], "config.json", revision=sys.argv[3], cache_dir=sys.argv[1])
except HfHubHTTPError as error:
    print(type(error).__name__, error.response.status_code)
"""


async def client(server: HubServer, script: str, folder: Path, *words: str, token: str = "") -> str:
    """Run the hub's own client against the stand-in."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING_FACE"))}
    quiet = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    env = {**kept, **quiet, "HF_ENDPOINT": server.url, "HF_HOME": str(folder / "home")}
    ended = await anyio.run_process(
        [sys.executable, "-c", script, str(folder / "files"), *words],
        env=env | ({"HF_TOKEN": token} if token else {}),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode()


async def test_the_hubs_own_client_takes_a_snapshot(tmp_path: Path) -> None:
    async with HubServer.start() as server:
        await client(server, SNAPSHOT, tmp_path)
    for name, file in FILES.items():
        path = tmp_path / "files" / name
        if name.startswith("original"):
            assert not path.exists()
        else:
            assert path.read_bytes() == file.content


async def test_the_hubs_own_client_reads_tree_metadata_and_revision(tmp_path: Path) -> None:
    async with HubServer.start() as server:
        said = json.loads(await client(server, ASK, tmp_path, LARGE))
    assert said["tree"] == {name: file.size for name, file in FILES.items()}
    assert (said["etag"], said["size"]) == (FILES[LARGE].sha256, FILES[LARGE].size)
    newer = catalog()["acme/tiny-chat"].revisions["v2"].files["config.json"]
    assert Path(said["newer"]).read_bytes() == newer.content  # noqa: ASYNC240 - a small file


@pytest.mark.parametrize(
    ("words", "token", "refusal"),
    [
        (("acme/gated", "main"), "", "GatedRepoError 401"),
        (("acme/gated", "main"), STRANGER_TOKEN, "GatedRepoError 403"),
        (("acme/gated", "main"), READER_TOKEN, ""),
        (("acme/none", "main"), "", "RepositoryNotFoundError 401"),
        (("acme/none", "main"), READER_TOKEN, "RepositoryNotFoundError 404"),
        (("acme/tiny-chat", "v9"), "", "RevisionNotFoundError 404"),
    ],
)
async def test_the_hubs_own_client_meets_its_own_refusals(
    tmp_path: Path, words: Sequence[str], token: str, refusal: str
) -> None:
    async with HubServer.start() as server:
        assert (await client(server, REFUSED, tmp_path, *words, token=token)).strip() == refusal


def test_the_catalog_is_the_same_in_every_run_and_small() -> None:
    assert catalog() == catalog()
    assert {repository.fault for repository in catalog().values()} >= set(Fault)
    for repository in catalog().values():
        assert len({snapshot.commit for snapshot in repository.revisions.values()}) == len(
            repository.revisions
        )
        for snapshot in repository.revisions.values():
            assert sum(len(file.content) for file in snapshot.files.values()) < 5 << 20


def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "hack.hub", "--scenario", "calm"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as hub:
        assert hub.stdout is not None
        try:
            url = hub.stdout.readline().strip()
            fetch = ("fetch", "hub", "--source", "HF://acme/short", "--to", str(tmp_path / "to"))
            log = str(tmp_path / "log")
            ended = subprocess.run(
                [sys.executable, "-m", "flexinfer", *fetch],
                env={**os.environ, "HF_ENDPOINT": url, "FLEXINFER_TERMINATION_LOG": log},
                capture_output=True,
                timeout=60,
                check=False,
            )
        finally:
            hub.send_signal(signal.SIGTERM)
    assert hub.returncode == 0
    assert ended.returncode == 0, ended.stderr
