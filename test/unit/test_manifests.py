# SPDX-License-Identifier: Apache-2.0
"""Generated files are written once, compared byte for byte, and removed when nothing makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.cmd.manifests import DRIFTED, FRESH, MISUSED, run
from flexinfer.crd.document import render
from flexinfer.crd.drift import check, write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

OUTPUTS = {"crd/a.yaml": render({"a": 1}), "rbac/role.yaml": render({"b": 2})}


def test_what_was_written_is_fresh(tmp_path: Path) -> None:
    assert write(OUTPUTS, tmp_path) == (tmp_path / "crd/a.yaml", tmp_path / "rbac/role.yaml")
    assert check(OUTPUTS, tmp_path) == ()
    assert write(OUTPUTS, tmp_path) == ()


def test_a_missing_and_a_changed_file_are_drift(tmp_path: Path) -> None:
    write(OUTPUTS, tmp_path)
    (tmp_path / "crd/a.yaml").unlink()
    (tmp_path / "rbac/role.yaml").write_text("b: 3\n")
    missing, changed = check(OUTPUTS, tmp_path)
    assert missing.path == tmp_path / "crd/a.yaml"
    assert "+a: 1" in missing.diff
    assert "-b: 3" in changed.diff
    assert "+b: 2" in changed.diff
    assert not (tmp_path / "crd/a.yaml").exists()


def test_the_head_of_a_long_diff_is_enough(tmp_path: Path) -> None:
    (drift,) = check({"long.yaml": "line\n" * 1000}, tmp_path)
    assert len(drift.diff.splitlines()) == 20


def test_a_file_that_nothing_generates_any_more_is_stale(tmp_path: Path) -> None:
    write(OUTPUTS | {"crd/old.yaml": render({"old": 1})}, tmp_path)
    (tmp_path / "crd/kustomization.yaml").write_text("resources: []\n")
    (tmp_path / "crd/patches").mkdir()
    (stale,) = check(OUTPUTS, tmp_path)
    assert stale.path.name == "old.yaml"
    assert "-old: 1" in stale.diff
    assert write(OUTPUTS, tmp_path) == (stale.path,)
    assert not stale.path.exists()
    assert (tmp_path / "crd/kustomization.yaml").exists()


def test_the_command_writes_and_then_finds_all_fresh(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "crd/old.yaml"
    stale.parent.mkdir()
    stale.write_text(render({"old": 1}))
    assert run(OUTPUTS, output=tmp_path) == FRESH
    out = capsys.readouterr().out
    assert f"wrote {tmp_path}/crd/a.yaml" in out
    assert f"removed {stale}" in out
    assert run(OUTPUTS, output=tmp_path, check=True) == FRESH
    assert capsys.readouterr() == ("", "")


def test_the_command_names_each_drifted_file_and_the_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(OUTPUTS, output=tmp_path)
    (tmp_path / "crd/a.yaml").write_text("a: 9\n")
    assert run(OUTPUTS, output=tmp_path, check=True) == DRIFTED
    said = capsys.readouterr().err
    assert "-a: 9" in said
    assert f"{tmp_path}/crd/a.yaml is not what would be generated: run `make manifests`" in said
    assert "role.yaml" not in said


def test_misuse_is_told_apart_from_drift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(OUTPUTS, output=tmp_path / "none", check=True) == MISUSED
    assert "is no folder" in capsys.readouterr().err
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert run(OUTPUTS, output=blocked) == MISUSED
    assert "cannot be used" in capsys.readouterr().err
