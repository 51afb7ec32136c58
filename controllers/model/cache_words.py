# SPDX-License-Identifier: Apache-2.0
"""What the pods of a cache Job said: why they failed, what they wait for, how much is there. Pure.

The fetcher's last line is its container's termination message: a sentence, or JSON once it is
done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controllers.model.pods import OVER, troubles
from flexinfer.conditions import shorten
from flexinfer.errors import DecodeError
from flexinfer.meta.envelope import decode_tree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flexinfer.kinds.pod import Pod

# Characters of a sentence that a status shows: it ends with the cure, and more is said beside it.
_SHOWN = 600


def last_words(pods: Iterable[Pod]) -> str:
    """Return what the newest pod that failed said last; empty when none did."""
    failed = _newest(pods, "Failed")
    if failed is None:
        return ""
    ends = [s.state.terminated for s in failed.status.container_statuses if s.state.terminated]
    lines = [line for end in ends for line in end.message.splitlines() if line.strip()]
    if lines:
        return _line(lines[-1])
    if failed.status.message:  # the kubelet's, of an evicted pod
        return _line(failed.status.message)
    reasons = [f"exit code {end.exit_code}{f' ({end.reason})' * bool(end.reason)}" for end in ends]
    return f"pod {failed.metadata.name} ended with {', '.join(reasons) or 'no word'}"


def waiting_for(pods: Iterable[Pod]) -> str:
    """Return what keeps pods from running, such as no node or no Secret; empty for nothing."""
    present = [pod for pod in pods if pod.status.phase not in OVER]
    return _line("; ".join(trouble.text for trouble in troubles(present)))


def size_bytes(pods: Iterable[Pod]) -> int | None:
    """Return the size of the weights, as the newest pod that succeeded told it."""
    done = _newest(pods, "Succeeded")
    if done is None:
        return None
    for status in done.status.container_statuses:
        message = status.state.terminated.message if status.state.terminated else ""
        try:
            size = decode_tree(message.strip().rpartition("\n")[2].encode()).get("bytes")
        except DecodeError:
            continue
        if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
            return size
    return None


def _line(text: str) -> str:
    return shorten(" ".join(text.split()), _SHOWN)


def _newest(pods: Iterable[Pod], phase: str) -> Pod | None:
    return max(
        (pod for pod in pods if pod.status.phase == phase),
        key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name),
        default=None,
    )
