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
    gone = NotFoundError("the server could not find the requested resource")
    changed = MODEL | {"status": {"phase": "Error"}}
    lines = watched(capsys, monkeypatch, [MODEL], gone, gone, [changed])
    assert [line.split()[0] for line in lines] == ["NAME", "llama", "Not", "llama"]
    assert "could not find the requested resource" in lines[2]
    assert "Error" in lines[3]
    # What was read last stays in sight: nothing is claimed to be gone.
    assert lines.count(lines[1]) == 1
