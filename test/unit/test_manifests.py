# SPDX-License-Identifier: Apache-2.0
"""Generated files are written once, compared byte for byte, and removed when nothing makes them."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from flexinfer.cmd.manifests import DRIFTED, FRESH, MISUSED, manifests, run
from flexinfer.crd.document import render
from flexinfer.crd.drift import check, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


WIDGETS = """
import flexinfer
from flexinfer.crd.rbac import Rule
from flexinfer.kinds.node import Node
from api.flexinfer.v1alpha2.model_types import Model  # another package's kind

@flexinfer.resource(group="example.com", version="v1", plural="widgets", scope="Cluster")
class Widget(flexinfer.ConditionedObject):
    "Be a widget."

class Derived(Widget):
    "Be no kind of its own."

RULES = (Rule.on(Node, "list", "watch"),)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder with a module of an author's own, and the module's name."""
    name = f"widgets_{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(WIDGETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)


def test_an_authors_module_becomes_a_crd_and_a_role(project: str, tmp_path: Path) -> None:
    output = tmp_path / "config"
    assert manifests(module=[project], output=output) == FRESH
    found = {str(p.relative_to(output)) for p in output.rglob("*") if p.is_file()}
    assert found == {"crd/example.com_widgets.yaml", "rbac/role.yaml"}
    role = yaml.safe_load((output / "rbac/role.yaml").read_text())
    assert role["metadata"]["name"] == project.replace("_", "-")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
    ]
    assert manifests(module=[project], output=output, check=True) == FRESH
    assert manifests(module=[project], output=output, role="mine") == FRESH
    role = yaml.safe_load((output / "rbac/role.yaml").read_text())
    assert role["metadata"]["name"] == "mine"


def test_drift_of_an_authors_module_names_its_own_cure(
    project: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests(module=[project], output=tmp_path)
    (tmp_path / "rbac/role.yaml").write_text("a: 9\n")
    assert manifests(module=[project], output=tmp_path, check=True) == DRIFTED
    said = capsys.readouterr().err
    assert "run the same command without --check" in said
    assert "make manifests" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no class is decorated with @resource, and there are no RULES"),
        ("RULES = ('all',)", "RULES holds 'all': make it a tuple of Rule"),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
    ],
)
def test_a_module_that_gives_nothing_is_misuse(
    project: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / f"{project}.py").write_text(text)
    assert manifests(module=[project], output=tmp_path / "config") == MISUSED
    assert said in capsys.readouterr().err
    assert not (tmp_path / "config").exists()


def test_what_is_no_checkout_is_told_of_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert manifests(output=tmp_path) == MISUSED
    assert "your modules with --module" in capsys.readouterr().err
