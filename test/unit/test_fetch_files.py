# SPDX-License-Identifier: Apache-2.0
"""The pure parts of the fetcher: names, patterns, checksums, room, records, and its last words."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import string
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internal.fetch import marker, paths, patterns, report, space, verify
from internal.fetch.environment import DEFAULT_ENDPOINT, hub_settings, quieten
from internal.fetch.errors import FetchError, HopelessError, from_os_error
from internal.fetch.marker import Identity, Record
from internal.fetch.verify import Algorithm, RemoteFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAMES = (
    "README.md",
    "config.json",
    "model-00001-of-00002.safetensors",
    "original/params.json",
    "original/deep/consolidated.pth",
)
PATTERNS = st.text(string.ascii_letters + string.digits + "*?.-_/ ", max_size=12).filter(
    lambda text: ".." not in [part.strip() for part in text.split("/")]
)


@pytest.mark.parametrize(
    ("given_", "normal"),
    [
        ((" *.json ", "/*.json", "*.json"), ("*.json",)),
        (("b", "a"), ("a", "b")),
        (("", "  ", "/"), ()),
        (("//a//b",), ("a//b",)),
        (("a..b", "...", "..a/b.."), ("...", "..a/b..", "a..b")),
    ],
)
def test_patterns_are_normalized(given_: tuple[str, ...], normal: tuple[str, ...]) -> None:
    assert patterns.normalize(given_) == normal


@pytest.mark.parametrize("pattern", ["..", "../*", "a/../b", "/..", " ../x"])
def test_a_pattern_that_leaves_the_source_is_refused(pattern: str) -> None:
    with pytest.raises(HopelessError, match=r"without '\.\.'"):
        patterns.normalize([pattern])


@given(st.lists(PATTERNS))
def test_equal_wishes_have_one_normal_form(wish: list[str]) -> None:
    normal = patterns.normalize(wish)
    assert patterns.normalize(normal) == normal
    assert patterns.normalize([f" /{pattern}" for pattern in reversed(wish)]) == normal


@pytest.mark.parametrize(
    ("allow", "ignore", "chosen"),
    [
        ((), (), NAMES),
        (("*.json",), (), ("config.json", "original/params.json")),
        (("*.json",), ("original/",), ("config.json",)),
        (("original/",), ("*.pth",), ("original/params.json",)),
        ((), ("*",), ()),
        (("readme.md",), (), ()),
        (("model-0000?-of-*",), (), ("model-00001-of-00002.safetensors",)),
    ],
)
def test_patterns_select_as_the_hubs_client_does(
    allow: Sequence[str], ignore: Sequence[str], chosen: tuple[str, ...]
) -> None:
    assert patterns.select(NAMES, allow=allow, ignore=ignore) == chosen


@given(st.lists(PATTERNS), st.lists(PATTERNS))
def test_what_is_selected_is_what_is_there_and_never_ignored(
    allow: list[str], ignore: list[str]
) -> None:
    chosen = patterns.select(NAMES, allow=allow, ignore=ignore)
    assert set(chosen) <= set(NAMES)
    assert patterns.select(chosen, allow=(), ignore=ignore) == chosen


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/../x", "/etc/passwd", "a//b", "a/", "a\\b", "a\nb", "a\0b", "./a"],
)
def test_a_name_that_could_lead_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(HopelessError, match="can be trusted"):
        paths.place(tmp_path / "to", name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [marker.MARKER, marker.PLAN, ".flexinfer_parts/x"])
def test_a_name_of_the_fetchers_own_is_refused(name: str) -> None:
    with pytest.raises(HopelessError, match=r"spec\.cache\.ignorePatterns"):
        paths.check_name(name)


@given(st.text(min_size=1, max_size=30))
def test_every_name_lands_inside_or_is_refused(name: str) -> None:
    root = Path("/models/model")
    try:
        where = root / paths.check_name(name)
    except HopelessError:
        return
    assert Path(os.path.normpath(where)).is_relative_to(root)
    assert where != root


def test_a_symbolic_link_leads_nothing_outside(tmp_path: Path) -> None:
    root, outside = tmp_path / "to", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "sub").symlink_to(outside)
    with pytest.raises(FetchError, match="leads out of"):
        paths.place(root, "sub/deep/file")
    assert not list(outside.iterdir())


def test_only_regular_files_have_a_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"four")
    (tmp_path / "link").symlink_to("file")
    assert paths.regular_size(tmp_path / "file") == 4
    for name in ("link", "none", "file/below"):
        assert paths.regular_size(tmp_path / name) is None
    assert paths.regular_size(tmp_path) is None


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_that_syncs_no_directories_is_borne(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, fails: bool
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    if fails:
        with pytest.raises(OSError, match=os.strerror(number)):
            paths.sync(tmp_path)
    else:
        paths.sync(tmp_path)


def remote(content: bytes, algorithm: Algorithm, checksum: str) -> RemoteFile:
    return RemoteFile(name="file", size=len(content), algorithm=algorithm, checksum=checksum)


@given(st.binary(max_size=200))
def test_checksums_are_those_of_git_and_of_its_large_files(content: bytes) -> None:
    large = remote(content, Algorithm.SHA256, hashlib.sha256(content).hexdigest())
    digest = verify.digest_for(large)
    digest.update(content)
    verify.check(large, digest, len(content))


def test_the_checksum_of_a_small_file_is_gits_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"as git sees it\n" * 100)
    named = subprocess.run(
        ["git", "hash-object", str(path)], capture_output=True, text=True, check=True
    ).stdout.strip()
    small = remote(path.read_bytes(), Algorithm.GIT_BLOB, named)
    digest, seen = verify.digest_for(small), list[int]()
    assert verify.feed(digest, path, advance=seen.append) == small.size == sum(seen)
    verify.check(small, digest, small.size)


@pytest.mark.parametrize(
    ("content", "words"), [(b"shor", "has 4 bytes where"), (b"other", "sha256 checksum")]
)
def test_what_is_not_the_named_file_is_told_by_its_name(content: bytes, words: str) -> None:
    named = remote(b"right", Algorithm.SHA256, hashlib.sha256(b"right").hexdigest())
    digest = verify.digest_for(named)
    digest.update(content)
    with pytest.raises(FetchError, match=rf"^file .*{words}.*next try fetches it anew$"):
        verify.check(named, digest, len(content))


def test_room_is_asked_for_with_both_figures() -> None:
    space.ensure_room(10, Path("/models"), free=lambda _: 10)
    with pytest.raises(FetchError, match=r"11 bytes are still .*/models has 10 bytes free; raise"):
        space.ensure_room(11, Path("/models"), free=lambda _: 10)


def test_room_is_that_of_the_volume(tmp_path: Path) -> None:
    assert space.free_bytes(tmp_path) > 0


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (1 << 40, "1.0 TiB")],
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert space.binary(count) == text


def test_sizes_beyond_all_units_keep_the_largest() -> None:
    assert space.binary(1 << 61) == "2048.0 PiB"


IDENTITY = Identity(source="HF://a/b", revision="main", allow=("*.json",), ignore=("x",))
RECORD = Record(identity=IDENTITY, commit="c0ffee", files={"a": 1, "b/c": 2})


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    marker.write(tmp_path / "record", RECORD)
    assert marker.read(tmp_path / "record") == RECORD
    assert [path.name for path in tmp_path.iterdir()] == ["record"]
    with pytest.raises(FileNotFoundError):
        marker.read(tmp_path / "none")


def test_a_record_holds_while_its_files_have_their_sizes(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_bytes(b"1")
    assert not RECORD.holds(tmp_path)
    (tmp_path / "b" / "c").write_bytes(b"12")
    assert RECORD.holds(tmp_path)
    (tmp_path / "a").write_bytes(b"")
    assert not RECORD.holds(tmp_path)


def broken(**changes: object) -> str:
    whole = {
        "source": "s",
        "revision": "r",
        "commit": "c",
        "allow": [],
        "ignore": [],
        "files": {"a": 1},
    }
    return json.dumps(whole | changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\x00",
        "[" * 100_000,
        "{}",
        broken(source=None),
        broken(allow=[1]),
        broken(files=["a"]),
        broken(files={"a": "1"}),
        broken(files={"../a": 1}),
        broken(files={"/etc/passwd": 1}),
    ],
)
def test_what_is_no_record_is_read_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "record").write_text(text)
    assert marker.read(tmp_path / "record") is None


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "record"
    path.write_bytes(data)
    assert marker.read(path) is None


def test_the_outcome_is_json() -> None:
    assert json.loads(str(report.Outcome.of(RECORD))) == {"bytes": 3, "files": 2}


def test_a_sentence_is_one_line_of_bearable_length() -> None:
    assert report.sentence("a\n b\r\n\tc ") == "a b c"
    assert len(report.sentence("é" * 5000)) == 1024


def test_the_last_line_is_left_where_the_kubelet_looks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    report.leave_behind("a longer line", {report.VARIABLE: str(log)})
    report.leave_behind("line", {report.VARIABLE: str(log)})
    assert log.read_text() == "line"


def test_the_kubelets_own_file_is_never_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(report, "DEFAULT_PATH", str(log))
    report.leave_behind("line", {})
    assert not log.exists()
    log.touch()
    report.leave_behind("line", {})
    assert log.read_text() == "line"


def test_the_environment_names_the_hub_and_who_asks() -> None:
    assert hub_settings({}).endpoint == DEFAULT_ENDPOINT
    settings = hub_settings({"HF_ENDPOINT": " http://user:pw@mirror:81/hf/ ", "HF_TOKEN": "hf_a\n"})
    assert (settings.endpoint, settings.token) == ("http://user:pw@mirror:81/hf", "hf_a")
    assert settings.host == "mirror:81"
    assert "hf_a" not in repr(settings)


@pytest.mark.parametrize(
    "environment",
    [
        {"HF_ENDPOINT": "mirror"},
        {"HF_ENDPOINT": "ftp://mirror"},
        {"HF_ENDPOINT": "http://"},
        {"HF_ENDPOINT": "http://[::1"},
        {"HF_TOKEN": "to ken"},
        {"HF_TOKEN": "to\nken"},
        {"HF_TOKEN": "tökén"},
    ],
)
def test_an_environment_that_cannot_work_is_refused(environment: Mapping[str, str]) -> None:
    with pytest.raises(HopelessError) as refusal:
        hub_settings(environment)
    assert environment.get("HF_TOKEN", "-none-") not in str(refusal.value)


def test_the_hubs_client_is_kept_quiet() -> None:
    environment = {"HF_DEBUG": "1"}
    quieten(environment)
    assert environment["HF_HUB_DISABLE_TELEMETRY"] == environment["HF_HUB_DISABLE_XET"] == "1"
    assert environment["HF_DEBUG"] == "0"


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, r"spec\.cache\.size"),
        (errno.EDQUOT, r"spec\.cache\.size"),
        (errno.EACCES, "right"),
        (errno.EROFS, "right"),
        (errno.EIO, "node"),
    ],
)
def test_what_the_file_system_refuses_has_a_cure(number: int, cure: str) -> None:
    error = from_os_error(OSError(number, os.strerror(number), "/models/x"))
    assert error.exit_code == 1
    assert str(error).startswith(f"/models/x: {os.strerror(number)}; ")
    with pytest.raises(FetchError, match=cure):
        raise error


def test_an_error_without_a_path_still_is_a_sentence() -> None:
    assert str(from_os_error(TimeoutError())).startswith("the volume: TimeoutError; ")
