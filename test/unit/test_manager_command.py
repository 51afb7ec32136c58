# SPDX-License-Identifier: Apache-2.0
"""`flexinfer manager`: what it says to settings that cannot work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from flexinfer.cmd import app
from flexinfer.cmd.manager import Flags, manager

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("restored_logging")


@pytest.fixture
def flags(tmp_path: Path) -> Flags:
    for name in ("token", "namespace"):
        (tmp_path / name).write_text("x")
    return Flags(service_account_dir=tmp_path, server="https://127.0.0.1:1", leader_elect=True)


@pytest.mark.parametrize(
    ("setting", "value", "flag"),
    [
        ("max_concurrent_reconciles", 0, "--max-concurrent-reconciles is 0"),
        ("graceful_shutdown_timeout", -1.0, "--graceful-shutdown-timeout is -1.0"),
        ("cache_sync_timeout", 0.0, "--cache-sync-timeout is 0.0"),
        ("metrics_bind_address", "here", "--metrics-bind-address 'here' is no address"),
        ("health_probe_bind_address", "x:y", "--health-probe-bind-address 'x:y'"),
    ],
)
def test_an_impossible_setting_is_named_as_the_flag_that_was_given(
    flags: Flags, setting: str, value: Any, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert manager(replace(flags, **{setting: value})) == 2
    assert flag in capsys.readouterr().err


def test_flags_are_read_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["manager", "--service-account-dir", str(tmp_path), "--log-format", "json"]
    with pytest.raises(SystemExit) as ended:
        app(words)
    assert ended.value.code == 2
    assert "--service-account-dir and --server go together" in capsys.readouterr().err
