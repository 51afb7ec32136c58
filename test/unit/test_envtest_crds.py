# SPDX-License-Identifier: Apache-2.0
"""CustomResourceDefinitions are found in files and folders, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.crds import read_crds
from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

CRD = "kind: CustomResourceDefinition\nmetadata: {name: %s}\n"


def test_crds_are_read_from_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "crd/bases").mkdir(parents=True)
    (tmp_path / "crd/bases/b.yaml").write_text(CRD % "b" + "---\n" + CRD % "c")
    (tmp_path / "crd/kustomization.yaml").write_text("resources: []\n")
    (tmp_path / "role.yaml").write_text("kind: ClusterRole\n---\n" + CRD % "a")
    found = read_crds([tmp_path / "role.yaml", str(tmp_path / "crd")])
    assert [crd["metadata"]["name"] for crd in found] == ["a", "b", "c"]


def test_a_place_without_any_is_refused(tmp_path: Path) -> None:
    (tmp_path / "role.yaml").write_text("kind: ClusterRole\n")
    with pytest.raises(ConfigurationError, match=r"no CustomResourceDefinition in .*role\.yaml"):
        read_crds([tmp_path / "role.yaml"])
    with pytest.raises(FileNotFoundError):
        read_crds([tmp_path / "none.yaml"])
