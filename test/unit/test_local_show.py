# SPDX-License-Identifier: Apache-2.0
"""What `make run` shows while it watches: changes, and why there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.errors import NotFoundError
from hack.localcluster import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flexinfer.meta.envelope import Tree

MODEL: Tree = {
    "metadata": {"name": "llama"},
    "spec": {"backend": "vllm"},
    "status": {"phase": "Ready"},
}


def watched(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *answers: Sequence[Tree] | Exception,
) -> list[str]:
    """Return the lines that were shown for *answers*, one after another, and then Ctrl-C."""
    left = list(answers)

    def models() -> Sequence[Tree]:
        if not left:
            raise KeyboardInterrupt
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(show, "_EVERY", 0.0)
    with pytest.raises(KeyboardInterrupt):
        show.watch(models, check=lambda: None)
    return capsys.readouterr().out.splitlines()


def test_a_kind_that_is_deleted_and_comes_back_ends_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = NotFoundError("GET /apis/ai.flexinfer/v1alpha2/models: 404 page not found\n")
    changed = MODEL | {"status": {"phase": "Error"}}
    lines = watched(capsys, monkeypatch, [MODEL], gone, gone, [MODEL], [changed])
    assert [line.split()[0] for line in lines] == ["NAME", "llama", "Cannot", "llama"]
    assert lines[2].endswith("404 page not found")
    assert "Error" in lines[3]


def test_on_a_terminal_trouble_takes_one_line_whatever_it_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    long = NotFoundError("first line\n" + "very long " * 20)
    lines = watched(capsys, monkeypatch, [MODEL], long, [MODEL])
    assert max(map(len, lines)) <= 60 + len("\x1b[3F\x1b[J")
    # Each redraw goes up as many lines as there were: two of the table, then three.
    assert [line[2] for line in lines if line.startswith("\x1b[")] == ["2", "3"]
