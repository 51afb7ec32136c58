# SPDX-License-Identifier: Apache-2.0
"""`flexinfer fetch copy` and `check`: from one directory to another, and is anything there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from internal.fetch import copy
from internal.fetch.check import fetch_check
from internal.fetch.copy import fetch_copy
from internal.fetch.errors import FetchError, HopelessError
from internal.fetch.marker import MARKER
from internal.fetch.paths import OWN_PREFIX
from internal.fetch.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "pvc://store/weights"
FILES = {"a.bin": b"first" * 1000, "deep/er/b.bin": b"second", "empty": b""}


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A directory with weights."""
    root = tmp_path / "source" / "weights"
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.fixture
def to(tmp_path: Path) -> Path:
    """Where they go."""
    return tmp_path / "models" / "model"


def copied(origin: Path, to: Path, *, free: int = 1 << 40) -> list[str]:
    lines: list[str] = []
    fetch_copy(SOURCE, origin, to, write=lines.append, free=lambda _: free)
    return lines


def content(to: Path) -> Mapping[str, bytes]:
    return {
        path.relative_to(to).as_posix(): path.read_bytes()
        for path in to.rglob("*")
        if path.is_file() and not path.name.startswith(OWN_PREFIX)
    }


def test_a_directory_is_copied_whole(origin: Path, to: Path) -> None:
    lines: list[str] = []
    outcome = fetch_copy(SOURCE, origin, to, write=lines.append)
    assert outcome == Outcome(size=5006, files=3)
    assert content(to) == FILES
    assert lines == ["copied 0 of 5006 bytes", "copied 5006 of 5006 bytes"]
    marker = json.loads((to / MARKER).read_text())
    assert (marker["source"], marker["bytes"]) == (SOURCE, 5006)
    assert copied(origin, to) == [f"{to} is whole already"]


def test_a_single_file_is_copied_under_its_name(origin: Path, to: Path) -> None:
    copied(origin / "a.bin", to)
    assert content(to) == {"a.bin": FILES["a.bin"]}


def test_files_of_an_earlier_try_are_not_copied_again(
    origin: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", broken)
        with pytest.raises(OSError):  # noqa: PT011 - the one made above
            copied(origin, to)
    assert copied(origin, to)[0] == "copied 0 of 5006 bytes"
    (to / MARKER).rename(to / ".flexinfer_fetching")
    assert copied(origin, to)[0] == "copied 5006 of 5006 bytes"
    (to / MARKER).rename(to / ".flexinfer_fetching")
    (to / "a.bin").write_bytes(b"other" * 1000)
    (to / "empty").unlink()
    (to / "empty").symlink_to("a.bin")
    copied(origin, to)
    assert content(to) == FILES
    assert not (to / "empty").is_symlink()


def test_another_source_leaves_nothing_of_the_first(origin: Path, to: Path) -> None:
    copied(origin, to)
    fetch_copy("pvc://store/other", origin / "deep", to, write=lambda _: None)
    assert content(to) == {"er/b.bin": b"second"}


def test_room_is_asked_for_first(origin: Path, to: Path) -> None:
    with pytest.raises(FetchError, match=r"^5006 bytes are still .* 5005 bytes free; raise"):
        copied(origin, to, free=5005)
    assert content(to) == {}


def test_links_inside_the_source_count_as_their_files(origin: Path, to: Path) -> None:
    (origin / "link").symlink_to("deep/er/b.bin")
    copied(origin, to)
    assert content(to) == {**FILES, "link": b"second"}
    assert not (to / "link").is_symlink()


def test_what_a_file_system_or_a_fetch_keeps_for_itself_is_left_out(origin: Path, to: Path) -> None:
    (origin / "lost+found").mkdir()
    (origin / "lost+found" / "x").write_bytes(b"x")
    (origin / MARKER).write_text("{}")
    (origin / ".flexinfer_parts").mkdir()
    (origin / "deep" / "lost+found").write_bytes(b"kept")
    copied(origin, to)
    assert content(to) == {**FILES, "deep/lost+found": b"kept"}


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("../outside", "symbolic link that leaves"),
        ("/etc/hostname", "symbolic link that leaves"),
        ("nowhere", "symbolic link to nothing"),
        ("deep", "symbolic link to a directory"),
        ("..", "symbolic link to a directory"),
    ],
)
def test_links_that_cannot_be_copied_are_refused(
    origin: Path, to: Path, target: str, words: str
) -> None:
    (origin.parent / "outside").write_bytes(b"secret")
    (origin / "link").symlink_to(target)
    with pytest.raises(HopelessError, match=rf"{origin}/link is a {words}"):
        copied(origin, to)
    assert content(to) == {}


def test_what_is_no_file_is_refused(origin: Path, to: Path) -> None:
    os.mkfifo(origin / "pipe")
    with pytest.raises(HopelessError, match="pipe is neither a file nor a directory"):
        copied(origin, to)


def test_a_source_that_is_missing_or_empty_is_hopeless(tmp_path: Path, to: Path) -> None:
    with pytest.raises(HopelessError, match="does not exist"):
        copied(tmp_path / "none", to)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "file").touch()
    with pytest.raises(HopelessError, match="is empty"):
        copied(tmp_path / "empty", to)


def test_a_directory_is_not_copied_into_itself(origin: Path) -> None:
    with pytest.raises(HopelessError, match="lies inside"):
        copied(origin, origin / "deep" / "model")


def test_a_directory_that_cannot_be_listed_is_an_error(
    origin: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def locked(path: str) -> object:
        if Path(path).name == "er":
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(PermissionError):
        copied(origin, to)


def test_a_file_that_changes_meanwhile_is_dropped(
    origin: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = copy.source_files

    def then_changed(source: Path, target: Path) -> object:
        found = listed(source, target)
        (origin / "a.bin").write_bytes(b"longer" * 1000)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(copy, "source_files", then_changed)
        with pytest.raises(FetchError, match=r"a\.bin had 5000 bytes and 6000 were copied"):
            copied(origin, to)
    assert not (to / MARKER).exists()
    copied(origin, to)
    assert content(to)["a.bin"] == b"longer" * 1000


def test_check_counts_files_with_content(origin: Path) -> None:
    assert fetch_check(SOURCE, origin) == Outcome(size=5006, files=2)
    assert fetch_check(SOURCE, origin / "a.bin") == Outcome(size=5000, files=1)


def test_check_finds_nothing_where_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(HopelessError, match=rf"{SOURCE}: the claim has nothing at"):
        fetch_check(SOURCE, tmp_path / "none")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for path in (tmp_path, tmp_path / "sub" / "file"):
        with pytest.raises(HopelessError, match="no file with content"):
            fetch_check(SOURCE, path)


def run(log: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flexinfer", "fetch", *words],
        env={**os.environ, "FLEXINFER_TERMINATION_LOG": str(log)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_commands_end_as_jobs_understand_it(origin: Path, to: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    into = ("--to", str(to))
    ended = run(log, "copy", "--source", SOURCE, "--from", str(origin), *into)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout.splitlines()[-1]) == {"bytes": 5006, "files": 3}
    assert log.read_text() == ended.stdout.splitlines()[-1]
    assert content(to) == FILES
    ended = run(log, "check", "--source", SOURCE, "--path", str(origin))
    assert (ended.returncode, ended.stdout) == (0, '{"bytes": 5006, "files": 2}\n')


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("check", "--source", SOURCE, "--path", "/none"), 2, "the claim has nothing at /none"),
        (("check", "--source", "HF://a/b", "--path", "/"), 2, "is not of the form pvc://"),
        (("copy", "--source", SOURCE, "--from", "/none", "--to", "/proc/x"), 1, "/proc/x: "),
        (("check", "--source", SOURCE), 2, "--path"),
        ((), 0, ""),
    ],
)
def test_failures_end_as_jobs_understand_it(
    tmp_path: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    ended = run(tmp_path / "log", *words)
    assert ended.returncode == code
    assert sentence in ended.stderr
