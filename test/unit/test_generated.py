# SPDX-License-Identifier: Apache-2.0
"""What is generated from the types is committed, and fits the API server's budget for rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_types import Model
from flexinfer.cmd.manifests import DRIFTED, FRESH, MISUSED, generated, manifests
from flexinfer.crd.drift import check
from flexinfer.crd.schema import structural, unbounded

if TYPE_CHECKING:
    from flexinfer.meta.object import Object

ROOT = Path(__file__).parents[2]


def test_the_committed_files_are_fresh() -> None:
    assert check(generated(), ROOT) == ()


def test_the_command_writes_finds_all_fresh_and_notices_drift(tmp_path: Path) -> None:
    for check_only in (True, False):
        assert manifests(output=tmp_path / "none", check=check_only) == MISUSED
    (tmp_path / "config").mkdir()
    assert manifests(output=tmp_path) == FRESH
    assert manifests(output=tmp_path, check=True) == FRESH
    (tmp_path / "docs/reference/model.md").write_text("changed by hand\n")
    assert manifests(output=tmp_path, check=True) == DRIFTED


@pytest.mark.parametrize("kind", [Model])
def test_everything_a_user_may_fill_has_a_bound(kind: type[Object]) -> None:
    assert list(unbounded(structural(kind, leave_out="metadata"))) == []
