# SPDX-License-Identifier: Apache-2.0
"""A program around `set_up`: its flags, its exit codes, and what it says to people."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.errors import ConfigurationError, FlexInferError, TransportError
from flexinfer.program import Flags, execute, run

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.manager import Manager

pytestmark = pytest.mark.usefixtures("restored_logging")


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name in ("token", "namespace"):
        (tmp_path / name).write_text("x")
    authority = CertificateAuthority.create(tmp_path)
    (tmp_path / "ca.crt").write_text(authority.ca_pem.read_text())
    return tmp_path


def arguments(account: Path) -> list[str]:
    off = ["--metrics-bind-address", "0", "--health-probe-bind-address", "0"]
    return ["--service-account-dir", str(account), "--server", "https://127.0.0.1:1", *off]


def test_a_program_reads_its_flags_sets_up_and_exits_0_when_it_is_stopped(account: Path) -> None:
    made: list[Manager] = []

    def set_up(manager: Manager) -> None:
        made.append(manager)
        manager.stop()

    with pytest.raises(SystemExit) as ended:
        run(set_up, argv=[*arguments(account), "--max-concurrent-reconciles", "7"])
    assert ended.value.code == 0
    (manager,) = made
    assert manager.options.controller.workers == 7


def test_help_lists_the_flags_under_the_name_of_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(lambda _: None, name="widgets", argv=["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "Usage: widgets" in said
    assert "--kubeconfig" in said
    assert "--leader-elect" in said


@pytest.mark.parametrize(
    ("given", "said"), [("", f"flexinfer {version('flexinfer')}"), ("2.3.4", "2.3.4")]
)
def test_a_version_says_whose_it_is(
    capsys: pytest.CaptureFixture[str], given: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(lambda _: None, name="widgets", version=given, argv=["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{said}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("workers is 0"), 2),
        (TransportError("away"), 1),
        (FlexInferError("x"), 1),
    ],
)
def test_a_failure_is_one_sentence_and_an_exit_code(
    account: Path, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    def set_up(_manager: Manager) -> None:
        raise error

    flags = Flags(service_account_dir=account, server="https://127.0.0.1:1")
    assert execute("widgets", set_up, flags) == code
    said = str(error).replace("workers", "--max-concurrent-reconciles")
    assert f"widgets: {said}\n" in capsys.readouterr().err


def test_flags_that_contradict_each_other_are_misuse(
    account: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = Flags(service_account_dir=account)
    assert execute("widgets", lambda _: None, flags) == 2
    assert "--service-account-dir and --server go together" in capsys.readouterr().err
