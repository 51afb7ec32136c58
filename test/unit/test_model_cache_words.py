# SPDX-License-Identifier: Apache-2.0
"""What the pods and Jobs of the weights say, in words, sizes and times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from controllers.model.cache_words import last_words, size_bytes
from controllers.model.pods import moment
from hack.modelcases.weights import FAILED_AT, SIZE, pod

if TYPE_CHECKING:
    from flexinfer.kinds.pod import Pod


def test_an_evicted_pod_is_quoted() -> None:
    evicted = pod("Failed", message="", containerStatuses=[])
    status = evicted.status.model_copy(update={"message": "The node was low on resource"})
    assert last_words([evicted.model_copy(update={"status": status})]) == (
        "The node was low on resource"
    )
    assert last_words([evicted]) == "pod p ended with no word"


def test_a_silent_end_is_told_by_its_exit_code() -> None:
    def ended(**end: object) -> Pod:
        return pod("Failed", containerStatuses=[{"name": "fetch", "state": {"terminated": end}}])

    assert last_words([ended(exitCode=137, reason="OOMKilled")]) == (
        "pod p ended with exit code 137 (OOMKilled)"
    )
    assert last_words([ended(exitCode=1)]) == "pod p ended with exit code 1"
    assert last_words([]) == ""


def test_long_words_are_cut() -> None:
    found = last_words([pod("Failed", "word " * 200)])
    assert len(found) == 600
    assert found.endswith("…")


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (SIZE, 42),
        (f"log line\n{SIZE}\n", 42),
        ('{"bytes": 0}', 0),
        ('{"bytes": -1}', None),
        ('{"bytes": true}', None),
        ('{"bytes": "1"}', None),
        ("{}", None),
        ("", None),
        ("no JSON", None),
        ("[1]", None),
    ],
)
def test_the_size_is_read_from_the_last_line(message: str, size: int | None) -> None:
    assert size_bytes([pod("Succeeded", message)]) == size
    assert size_bytes([pod("Failed", message)]) is None
    running = pod("Succeeded", containerStatuses=[{"name": "fetch"}])
    assert size_bytes([running]) is None


def test_times_are_read_as_the_api_server_writes_them() -> None:
    assert moment(FAILED_AT) == datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    assert moment("2026-01-02T03:04:00") == moment(FAILED_AT)
    assert moment(None) is None
    assert moment("soon") is None
