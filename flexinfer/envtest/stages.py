# SPDX-License-Identifier: Apache-2.0
"""The Stages of kwok, the kubelet of simulated nodes: which status follows which.

Stages are exclusive by their selectors: among several that match, kwok picks one at random.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.envtest import podstatus
from flexinfer.envtest.behaviour import (
    BEHAVIOUR,
    COMPLETE_AFTER,
    LOCAL_IMAGES,
    NOT_READY,
    READY_AFTER,
    Behaviour,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flexinfer.meta.envelope import Tree

RESTART_EVERY_MS = 10_000
"""How often a crash loop crashes: kubelet's first back-off."""
PULL_BACK_OFF_MS = 1_000
"""How long a failed pull stays ErrImagePull."""


@dataclass(frozen=True, slots=True)
class Match:
    """One requirement of a Stage: what the jq *key* yields is, or is not, among *values*.

    Without values it says that the key yields nothing.
    """

    key: str
    values: tuple[str, ...] = ()
    negated: bool = False

    def body(self) -> Tree:
        """Return it as kwok reads it."""
        if not self.values:
            return {"key": self.key, "operator": "Exists" if self.negated else "DoesNotExist"}
        operator = "NotIn" if self.negated else "In"
        return {"key": self.key, "operator": operator, "values": list(self.values)}


def _annotation(name: str) -> str:
    return f'.metadata.annotations["{name}"]'


def _without(match: Match) -> Match:
    return Match(match.key, match.values, negated=not match.negated)


def _behaves(*behaviours: Behaviour) -> Match:
    return Match(_annotation(BEHAVIOUR), behaviours)


_GOING = Match(".metadata.deletionTimestamp", negated=True)
_ALIVE = _without(_GOING)
_OURS = Match(f'.spec.containers[].image | startswith("{LOCAL_IMAGES}")', ("true",), negated=True)
_PENDING = Match(".status.phase", ("Pending",))
_RUNNING = Match(".status.phase", ("Running",))
_OF_A_JOB = Match(".metadata.ownerReferences[]?.kind", ("Job",))
_WELL = _without(_behaves(*Behaviour))
_READY = Match('.status.conditions[]? | select(.type == "Ready") | .status', ("True",))
_WAITING = ".status.containerStatuses[]?.state.waiting.reason"
_BACKING_OFF = Match(_WAITING, ("CrashLoopBackOff",))
_PULL_FAILED = Match(_WAITING, ("ErrImagePull",))
_PULL_WAITS = Match(_WAITING, ("ErrImagePull", "ImagePullBackOff"))
_NODE_BROKEN = Match(f'.metadata.labels["{NOT_READY}"]', ("true",))


def _stage(
    name: str, kind: str, matches: Iterable[Match], then: Tree, *, delay: Tree | None = None
) -> Tree:
    spec: Tree = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": [match.body() for match in matches]},
        "next": then,
    }
    if delay is not None:
        spec["delay"] = delay
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": spec,
    }


def _pod(name: str, matches: Iterable[Match], status: str, *, delay: Tree | None = None) -> Tree:
    return _stage(name, "Pod", (_ALIVE, _OURS, *matches), {"statusTemplate": status}, delay=delay)


def _after(annotation: str) -> Tree:
    return {
        "durationMilliseconds": 0,
        "durationFrom": {"expressionFrom": _annotation(annotation)},
    }


def pod_stages() -> list[Tree]:
    """Return what happens to pods on simulated nodes."""
    starts = _without(_behaves(Behaviour.IMAGE_PULL_FAILURE))
    by_itself = _without(_OF_A_JOB)
    return [
        _pod("pod-start", (_PENDING, starts), podstatus.STARTED),
        _pod(
            "pod-ready",
            (_RUNNING, _WELL, by_itself, _without(_READY)),
            podstatus.READY,
            delay=_after(READY_AFTER),
        ),
        _pod(
            "pod-complete",
            (_RUNNING, _WELL, _OF_A_JOB),
            podstatus.COMPLETED,
            delay=_after(COMPLETE_AFTER),
        ),
        *_failing_pod_stages(),
        _stage("pod-delete", "Pod", (_GOING, _OURS), {"delete": True}),
    ]


def _failing_pod_stages() -> list[Tree]:
    fails = _behaves(Behaviour.FAIL)
    crashes = _behaves(Behaviour.CRASH_LOOP)
    no_pull = _behaves(Behaviour.IMAGE_PULL_FAILURE)
    never_ready = _behaves(Behaviour.NEVER_READY)
    again = {"durationMilliseconds": RESTART_EVERY_MS}
    back_off = {"durationMilliseconds": PULL_BACK_OFF_MS}
    pull_fails = (_PENDING, no_pull, _without(_PULL_WAITS))
    pull_waits = (_PENDING, no_pull, _PULL_FAILED)
    return [
        _pod("pod-fail", (_RUNNING, fails), podstatus.FAILED, delay=_after(COMPLETE_AFTER)),
        _pod("pod-crash", (_RUNNING, crashes, _without(_BACKING_OFF)), podstatus.CRASHED),
        _pod("pod-crash-again", (_RUNNING, crashes, _BACKING_OFF), podstatus.CRASHED, delay=again),
        _pod("pod-unready", (_RUNNING, never_ready, _READY), podstatus.UNREADY),
        _pod("pod-image-pull-fails", pull_fails, podstatus.PULL_FAILED),
        _pod("pod-image-pull-waits", pull_waits, podstatus.PULL_WAITS, delay=back_off),
    ]


_HEARTBEAT = """
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- {type: {{ .type | Quote }}, lastHeartbeatTime: {{ $now | Quote }}}
{{ end }}
"""
_HEALTHY = """
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
"""
_BROKEN = """
{{ $now := Now }}
conditions:
- type: Ready
  status: "False"
  reason: KubeletNotReady
  message: container runtime is down
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
"""


def node_stages() -> list[Tree]:
    """Return what happens to simulated nodes; their leases are kwok's own work."""
    return [
        _stage(
            "node-ready",
            "Node",
            (_without(_NODE_BROKEN), _without(_READY)),
            {"statusTemplate": _HEALTHY},
        ),
        # kubelet reports an unchanged status every five minutes; its lease says it lives.
        _stage(
            "node-heartbeat",
            "Node",
            (_without(_NODE_BROKEN), _READY),
            {"statusTemplate": _HEARTBEAT},
            delay={"durationMilliseconds": 300_000},
        ),
        _stage(
            "node-broken",
            "Node",
            (_NODE_BROKEN, Match(_READY.key, ("False",), negated=True)),
            {"statusTemplate": _BROKEN},
        ),
    ]


def configuration() -> str:
    """Return the file for kwok's `--config`: every Stage, as documents of JSON, which is YAML."""
    stages = [*node_stages(), *pod_stages()]
    return "---\n".join(json.dumps(stage, indent=2) + "\n" for stage in stages)
