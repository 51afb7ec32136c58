# SPDX-License-Identifier: Apache-2.0
"""What a Model's pods say: what keeps them from serving, and what the newest is at. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.reasons import LoadingSubstage, Reason
from flexinfer.kinds.condition import find, is_true

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flexinfer.kinds.pod import ContainerStatus, ContainerTerminated, Pod

_PULL_FAILURES = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
}
_CRASH_LOOP = "CrashLoopBackOff"
_PREPARING = {"", "ContainerCreating", "PodInitializing"}
# Characters of what a container said last.
_LAST_WORDS = 300
# The kubelet's words for what a container's environment is to be read from.
_MISSING = re.compile(r'\b(?P<kind>secret|configmap) "(?P<name>[^"]+)" not found', re.IGNORECASE)
_WITHOUT_KEY = re.compile(r"find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) (?P<name>\S+)")
_KINDS = {"secret": "Secret", "configmap": "ConfigMap"}
# A container that ended badly this often is looping, also while its next try still runs.
_TRIES = 2
OVER = frozenset({"Failed", "Succeeded"})
"""The phases of pods that run no more."""

# What a person has to look at first comes first.
_SEVERITY = (
    Reason.CRASH_LOOP,
    Reason.IMAGE_PULL_FAILED,
    Reason.UNSCHEDULABLE,
    Reason.STARTING_BACKEND,
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Be one thing that keeps a pod from serving; `reason` is that of Ready."""

    reason: Reason
    text: str


def moment(text: str | None) -> datetime | None:
    """Read a time as the API server writes it; None for anything else."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def living(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods that count, newest first: not those that are being deleted.

    Pods that have ended count only when there is no other.
    """
    present = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
    running = [pod for pod in present if pod.status.phase not in OVER]
    return sorted(
        running or present,
        key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name),
        reverse=True,
    )


def troubles(pods: Iterable[Pod]) -> list[Trouble]:
    """Return what is wrong with the pods, the gravest first; what several say is said once."""
    names: dict[Trouble, list[str]] = defaultdict(list)
    for pod in pods:
        for trouble in _troubles_of(pod):
            names[trouble].append(pod.metadata.name)
    ordered = sorted(names, key=lambda t: (_SEVERITY.index(t.reason), min(names[t]), t.text))
    return [Trouble(t.reason, f"{_who(names[t])}: {t.text}") for t in ordered]


def substage(pods: Sequence[Pod]) -> LoadingSubstage | None:
    """Say what the newest pod that was placed is at, or None when none was or it is ready."""
    placed = next((pod for pod in pods if pod.spec.node_name), None)
    if placed is None or is_true(placed.status.conditions, "Ready"):
        return None
    states = [status.state for status in placed.status.container_statuses]
    if any(state.waiting and state.waiting.reason in _PULL_FAILURES for state in states):
        return LoadingSubstage.IMAGE_PULLING
    if states and all(state.running for state in states):
        return LoadingSubstage.HEALTH_CHECK_PENDING
    return LoadingSubstage.INITIALIZING


def _who(names: Sequence[str]) -> str:
    others = len(names) - 1
    return f"pod {min(names)}{f' and {others} more' if others else ''}"


def _troubles_of(pod: Pod) -> Iterator[Trouble]:
    if is_true(pod.status.conditions, "Ready"):
        return
    scheduled = find(pod.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        yield Trouble(Reason.UNSCHEDULABLE, scheduled.message or "cannot be scheduled")
    if pod.status.phase in OVER:
        yield Trouble(Reason.STARTING_BACKEND, _ended_pod(pod))
        return
    images = {c.name: c.image for c in (*pod.spec.init_containers, *pod.spec.containers)}
    namespace = pod.metadata.namespace
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        yield from _container_trouble(status, images.get(status.name, ""), namespace)


def _ended_pod(pod: Pod) -> str:
    ends = (
        f"container {status.name} {_ended(status.state.terminated)}"
        for status in pod.status.container_statuses
        if status.state.terminated
    )
    words = (pod.status.reason, pod.status.message, *ends)
    return f"ended with phase {pod.status.phase}: {'; '.join(filter(None, words))}".rstrip(": ")


def _container_trouble(status: ContainerStatus, image: str, namespace: str) -> Iterator[Trouble]:
    waiting = status.state.waiting
    reason = waiting.reason if waiting else ""
    if waiting and reason in _PULL_FAILURES:
        text = f"image {image} cannot be pulled: {waiting.message or reason}"
        yield Trouble(Reason.IMAGE_PULL_FAILED, text)
    elif _loops(status):
        last = status.state.terminated or status.last_state.terminated
        how = f", the last time it {_ended(last)}" if last else ""
        yield Trouble(Reason.CRASH_LOOP, f"container {status.name} ends again and again{how}")
    elif waiting and reason not in _PREPARING:
        text = f"container {status.name} does not start: {reason}: {waiting.message}".rstrip(": ")
        yield Trouble(Reason.STARTING_BACKEND, text + _cure(waiting.message, namespace))
    elif status.state.terminated and status.state.terminated.exit_code:
        text = f"container {status.name} {_ended(status.state.terminated)}"
        yield Trouble(Reason.STARTING_BACKEND, text)


def _cure(message: str, namespace: str) -> str:
    """Return what to make for a container that the kubelet cannot configure, after a semicolon."""
    if found := _MISSING.search(message):
        kind = _KINDS[found["kind"].lower()]
        return f"; create {kind} {found['name']} in namespace {namespace}"
    if found := _WITHOUT_KEY.search(message):
        return f"; add the key {found['key']} to {found['kind']} {found['name']}"
    return ""


def _loops(status: ContainerStatus) -> bool:
    if status.state.waiting and status.state.waiting.reason == _CRASH_LOOP:
        return True
    last = status.state.terminated or status.last_state.terminated
    return bool(
        not status.ready and status.restart_count >= _TRIES and last is not None and last.exit_code
    )


def _ended(terminated: ContainerTerminated) -> str:
    reason = f" ({terminated.reason})" if terminated.reason else ""
    message = " ".join(terminated.message.split())
    said = f": {_last_of(message)}" if message else ""
    return f"ended with exit code {terminated.exit_code}{reason}{said}"


def _last_of(message: str) -> str:
    """Return the end of a long message, from the beginning of a word."""
    if len(message) <= _LAST_WORDS:
        return message
    end = message[1 - _LAST_WORDS :]
    return f"…{end.partition(' ')[2] or end}"
