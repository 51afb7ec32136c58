# SPDX-License-Identifier: Apache-2.0
"""The directory that is filled: what is stale goes, what is foreign stays, one fetch at a time."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internal.fetch import marker
from internal.fetch.errors import FetchError, HopelessError
from internal.fetch.marker import MARKER, PLAN, Identity, Record
from internal.fetch.workspace import LOCK, LOCK_WAIT, PARTS, Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CHAT = Identity(source="HF://acme/chat", revision="main")
OTHERS = (
    Identity(source="HF://acme/code", revision="main"),
    Identity(source="HF://acme/chat", revision="v2"),
    Identity(source="HF://acme/chat", revision="main", allow=("*.json",)),
    Identity(source="HF://acme/chat", revision="main", ignore=("*.json",)),
)


def record(identity: Identity, **files: int) -> Record:
    return Record(identity=identity, files=files)


def fill(root: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def names(root: Path) -> set[str]:
    """What lies there, but for the lock."""
    return {path.name for path in root.iterdir()} - {LOCK}


def run(root: Path, identity: Identity, **contents: bytes) -> None:
    """A whole fetch."""
    whole = record(identity, **{name: len(data) for name, data in contents.items()})
    with Workspace.open(root, identity) as workspace:
        workspace.begin(whole)
        for name, data in contents.items():
            part = workspace.part(name, "1")
            part.write_bytes(data)
            workspace.publish(part, name)
        workspace.finish(whole)


def test_a_whole_fetch_leaves_its_files_and_the_marker(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "model"
    run(root, CHAT, a=b"1")
    assert names(root) == {"a", MARKER}
    with Workspace.open(root, CHAT) as workspace:
        assert workspace.done() == record(CHAT, a=1)


@pytest.mark.parametrize("other", OTHERS)
def test_a_marker_of_anything_else_is_no_marker_and_its_files_go(
    tmp_path: Path, other: Identity
) -> None:
    run(tmp_path, other, a=b"1", b=b"2")
    fill(tmp_path, {"foreign/deep": b"x"})
    with Workspace.open(tmp_path, CHAT) as workspace:
        assert workspace.done() is None
        workspace.begin(record(CHAT, a=1))
        assert names(tmp_path) == {PLAN, PARTS}


@pytest.mark.parametrize("other", OTHERS)
def test_what_a_fetch_of_anything_else_left_unfinished_goes(
    tmp_path: Path, other: Identity
) -> None:
    with Workspace.open(tmp_path, other) as workspace:
        workspace.begin(record(other, a=1))
        workspace.part("a", "1").write_bytes(b"1")
        fill(tmp_path, {"a": b"1"})
    with Workspace.open(tmp_path, CHAT) as workspace:
        workspace.begin(record(CHAT, a=1))
        assert names(tmp_path) == {PLAN, PARTS}
        assert not list((tmp_path / PARTS).iterdir())


@pytest.mark.parametrize("name", [MARKER, PLAN])
def test_a_record_that_cannot_be_read_vouches_for_nothing(tmp_path: Path, name: str) -> None:
    fill(tmp_path, {name: b"{", "a": b"1"})
    with Workspace.open(tmp_path, CHAT) as workspace:
        assert workspace.done() is None
        workspace.begin(record(CHAT, a=1))
    assert names(tmp_path) == {PLAN, PARTS}


def test_the_same_fetch_goes_on_with_what_is_there(tmp_path: Path) -> None:
    with Workspace.open(tmp_path, CHAT) as workspace:
        workspace.begin(record(CHAT, a=1, b=1, gone=1))
        workspace.part("b", "1").write_bytes(b"2")
        workspace.part("stale", "1").write_bytes(b"3")
        fill(tmp_path, {"a": b"1", "gone": b"4"})
    with Workspace.open(tmp_path, CHAT) as workspace:
        workspace.begin(record(CHAT, a=1, b=1))
        workspace.keep_parts({workspace.part("b", "1")})
        assert names(tmp_path) == {"a", PLAN, PARTS}
        assert list((tmp_path / PARTS).iterdir()) == [workspace.part("b", "1")]
        assert workspace.part("b", "2") != workspace.part("b", "1")


def test_a_marker_whose_files_are_not_there_becomes_the_plan(tmp_path: Path) -> None:
    run(tmp_path, CHAT, a=b"1", b=b"2")
    (tmp_path / "b").unlink()
    with Workspace.open(tmp_path, CHAT) as workspace:
        assert workspace.done() is None
        workspace.begin(record(CHAT, a=1, b=1))
    assert names(tmp_path) == {"a", PLAN, PARTS}


def test_what_came_before_any_fetch_is_not_the_fetchers_to_remove(tmp_path: Path) -> None:
    fill(tmp_path, {"adapter/weights": b"mine", "lost+found/x": b"ours"})
    run(tmp_path, CHAT, a=b"1")
    assert (tmp_path / "adapter" / "weights").read_bytes() == b"mine"


def test_removal_stays_inside_the_directory(tmp_path: Path) -> None:
    root, outside = tmp_path / "model", tmp_path / "outside"
    fill(outside, {"precious": b"1"})
    run(root, OTHERS[0], a=b"1")
    fill(root, {"lost+found/x": b"1", "sub/file": b"2"})
    for path in (root / "link", root / "sub" / "link"):
        path.symlink_to(outside)
    (root / "to-file").symlink_to(outside / "precious")
    run(root, CHAT, a=b"2")
    assert names(root) == {"a", "lost+found", MARKER}
    assert (outside / "precious").read_bytes() == b"1"


def test_a_link_put_in_a_files_way_does_not_lead_its_removal_outside(tmp_path: Path) -> None:
    root, outside = tmp_path / "model", tmp_path / "outside"
    fill(outside, {"file": b"1"})
    with Workspace.open(root, CHAT) as workspace:
        workspace.begin(Record(identity=CHAT, files={"sub/file": 1}))
    (root / "sub").symlink_to(outside)
    with (
        Workspace.open(root, CHAT) as workspace,
        pytest.raises(FetchError, match="leads out of"),
    ):
        workspace.begin(record(CHAT, a=1))
    assert (outside / "file").exists()


@given(st.integers(0, 5))
def test_wherever_it_is_killed_no_marker_lies_beside_what_it_does_not_name(
    tmp_path_factory: pytest.TempPathFactory, steps: int
) -> None:
    root = tmp_path_factory.mktemp("model")
    run(root, OTHERS[0], a=b"other", b=b"other")
    whole = record(CHAT, a=4, b=4)
    with Workspace.open(root, CHAT) as workspace:
        moves: list[Callable[[], object]] = [
            lambda: workspace.begin(whole),
            lambda: workspace.part("a", "1").write_bytes(b"chat"),
            lambda: workspace.publish(workspace.part("a", "1"), "a"),
            lambda: workspace.part("b", "1").write_bytes(b"chat"),
            lambda: workspace.publish(workspace.part("b", "1"), "b"),
        ]
        for move in moves[:steps]:
            move()
        if steps:
            assert not (root / MARKER).exists()
            assert b"other" not in [path.read_bytes() for path in root.glob("?")]
        if steps == len(moves):
            workspace.finish(whole)
            assert workspace.done() == whole
            assert names(root) == {"a", "b", MARKER}


def test_a_removal_that_was_interrupted_is_ended_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, OTHERS[0], a=b"1", b=b"2")

    def interrupted(_path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, Workspace.open(tmp_path, CHAT) as workspace:
        patch.setattr(Path, "unlink", interrupted)
        with pytest.raises(KeyboardInterrupt):
            workspace.begin(record(CHAT, a=1))
    assert names(tmp_path) == {"a", "b", PLAN}
    with Workspace.open(tmp_path, CHAT) as workspace:
        workspace.begin(record(CHAT, a=1))
    assert names(tmp_path) == {PLAN, PARTS}


@pytest.mark.parametrize("root", [Path("/"), Path("models/m"), Path("/models/../m")])
def test_only_a_directory_below_a_mount_is_filled(root: Path) -> None:
    with (
        pytest.raises(HopelessError, match="name a directory below"),
        Workspace.open(root, CHAT),
    ):
        pass


def test_what_is_no_directory_is_not_filled(tmp_path: Path) -> None:
    fill(tmp_path, {"file": b"1"})
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with (
            pytest.raises(HopelessError, match="is no directory"),
            Workspace.open(tmp_path / name, CHAT),
        ):
            pass


def test_a_second_fetch_waits_and_then_gives_up(tmp_path: Path) -> None:
    slept: list[float] = []
    with (
        Workspace.open(tmp_path, CHAT),
        pytest.raises(FetchError, match="another fetch is at work"),
        Workspace.open(tmp_path, CHAT, sleep=slept.append),
    ):
        pass
    assert sum(slept) == LOCK_WAIT
    with Workspace.open(tmp_path, CHAT, sleep=slept.append):
        assert sum(slept) == LOCK_WAIT


def test_a_volume_without_locks_is_filled_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    run(tmp_path, CHAT, a=b"1")
    assert marker.read(tmp_path / MARKER) == record(CHAT, a=1)
