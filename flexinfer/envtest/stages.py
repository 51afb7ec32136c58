# SPDX-License-Identifier: Apache-2.0
"""What kwok, the kubelet of simulated nodes, does to nodes and pods.

A pod goes Pending, Running, Ready; a Job's pod goes Pending, Running, Succeeded. Annotations on
the pod (in a Deployment, on its template) change that:

- `BEHAVIOUR`: one of `Behaviour`; taken away later, the pod recovers and becomes Ready.
- `READY_AFTER`, `COMPLETE_AFTER`: a delay as a Go duration, such as `1500ms`; none by default.
- `EXIT_CODE`, `MESSAGE`: what a failing container leaves behind, and the termination message of
  a container that completes.

Pods with an image under `LOCAL_IMAGES` are left to whoever runs them. A node with the label
`NOT_READY` stays NotReady. Stages are exclusive by their selectors: among several that match,
kwok picks one at random. Delays count from the pod's last change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flexinfer.meta.envelope import Tree

PREFIX = "envtest.flexinfer.ai/"
BEHAVIOUR = f"{PREFIX}behaviour"
READY_AFTER = f"{PREFIX}ready-after"
COMPLETE_AFTER = f"{PREFIX}complete-after"
EXIT_CODE = f"{PREFIX}exit-code"
MESSAGE = f"{PREFIX}message"
NOT_READY = f"{PREFIX}not-ready"
LOCAL_IMAGES = "flexinfer.local/"
"""Images of processes that run on this machine."""

RESTART_EVERY_MS = 10_000
"""How often a crash loop crashes: kubelet's first back-off."""


class Behaviour(StrEnum):
    """How a pod misbehaves."""

    FAIL = "fail"
    """Its containers end with an error and are not restarted: phase Failed."""
    CRASH_LOOP = "crash-loop"
    """Its containers end with an error again and again: CrashLoopBackOff."""
    IMAGE_PULL_FAILURE = "image-pull-failure"
    """Its images cannot be pulled: ErrImagePull, then ImagePullBackOff."""
    NEVER_READY = "never-ready"
    """It runs and its readiness probe never succeeds."""


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
_UP = Match(".status.containerStatuses[]?.ready", ("true",))
_WAITING = ".status.containerStatuses[]?.state.waiting.reason"
_BACKING_OFF = Match(_WAITING, ("CrashLoopBackOff",))
_PULL_FAILED = Match(_WAITING, ("ErrImagePull",))
_PULL_WAITS = Match(_WAITING, ("ErrImagePull", "ImagePullBackOff"))
_NODE_READY = '.status.conditions[]? | select(.type == "Ready") | .status'
_NODE_BROKEN = Match(f'.metadata.labels["{NOT_READY}"]', ("true",))

_VARIABLES = (
    f"""
{{{{ $annotations := or .metadata.annotations dict }}}}
{{{{ $message := or (index $annotations "{MESSAGE}") "" }}}}
{{{{ $exitCode := or (index $annotations "{EXIT_CODE}") "1" }}}}
"""
    """
{{ $now := Now }}
{{ $statuses := or .status.containerStatuses list }}
{{ $restarts := 0 }}
{{ range $statuses }}{{ $restarts = .restartCount }}{{ end }}
"""
)

_PLACED = """
{{ if not .status.podIP }}
startTime: {{ $now | Quote }}
{{ with NodeIPsWith .spec.nodeName }}
hostIP: {{ index . 0 | Quote }}
hostIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
{{ $hostNetwork := or .spec.hostNetwork false }}
{{ $meta := .metadata }}
{{ with PodIPsWith .spec.nodeName $hostNetwork $meta.uid $meta.name $meta.namespace }}
podIP: {{ index . 0 | Quote }}
podIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
{{ end }}
"""

_INIT_CONTAINERS = """
{{ with .spec.initContainers }}
initContainerStatuses:
{{ range . }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  restartCount: 0
  {{ if eq (or .restartPolicy "") "Always" }}
  started: true
  state:
    running:
      startedAt: {{ $now | Quote }}
  {{ else }}
  state:
    terminated:
      exitCode: 0
      reason: Completed
      startedAt: {{ $now | Quote }}
      finishedAt: {{ $now | Quote }}
  {{ end }}
{{ end }}
{{ end }}
"""
_RUNNING_STATE = "{running: {startedAt: {{ $now | Quote }}}}"


def _conditions(ready: str) -> str:
    """Write the conditions of a pod whose containers are, or are not, *ready*."""
    reason = "" if ready == "True" else ", reason: ContainersNotReady"
    lines = [
        f'- {{type: {kind}, status: "{status}", lastTransitionTime: {{{{ $now | Quote }}}}{why}}}'
        for kind, status, why in (
            ("Initialized", "True", ""),
            ("Ready", ready, reason),
            ("ContainersReady", ready, reason),
        )
    ]
    gates = """
{{ range .spec.readinessGates }}
- {type: {{ .conditionType | Quote }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
{{ end }}
"""
    return "conditions:\n" + "\n".join(lines) + gates


def _containers(
    state: str, *, ready: str = "false", restarts: str = "$restarts", last: str = ""
) -> str:
    """Write the statuses of all containers, each in *state* (YAML in flow style)."""
    return f"""
containerStatuses:
{{{{ range .spec.containers }}}}
- name: {{{{ .name | Quote }}}}
  image: {{{{ .image | Quote }}}}
  imageID: ""
  ready: {ready}
  started: {ready}
  restartCount: {{{{ {restarts} }}}}
  state: {state}
  {f"lastState: {last}" if last else ""}
{{{{ end }}}}
"""


def _ended(reason: str, code: str) -> str:
    return (
        f"{{terminated: {{exitCode: {code}, reason: {reason}, message: {{{{ $message | Quote }}}},"
        " startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}"
    )


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


def _pod(name: str, *matches: Match, status: str, delay: Tree | None = None) -> Tree:
    then: Tree = {"statusTemplate": _VARIABLES + status}
    return _stage(name, "Pod", (_ALIVE, _OURS, *matches), then, delay=delay)


def _after(annotation: str) -> Tree:
    return {
        "durationMilliseconds": 0,
        "durationFrom": {"expressionFrom": _annotation(annotation)},
    }


def _waits(reason: str, message: str) -> str:
    return f"{{waiting: {{reason: {reason}, message: {message}}}}}"


_CRASHED = _conditions("False") + _containers(
    _waits(
        "CrashLoopBackOff",
        '{{ printf "back-off 10s restarting failed container=%s" .name | Quote }}',
    ),
    restarts="add $restarts 1",
    last=_ended("Error", "{{ $exitCode }}"),
)


def pod_stages() -> list[Tree]:
    """Return what happens to pods on simulated nodes."""
    refused = '{{ printf "failed to pull and unpack image %s: not found" .image | Quote }}'
    backing_off = '{{ printf "Back-off pulling image %s" .image | Quote }}'
    return [
        _pod(
            "pod-start",
            _PENDING,
            _without(_behaves(Behaviour.IMAGE_PULL_FAILURE)),
            status=_conditions("False")
            + _containers(_RUNNING_STATE)
            + _INIT_CONTAINERS
            + _PLACED
            + "phase: Running",
        ),
        _pod(
            "pod-ready",
            _RUNNING,
            _WELL,
            _without(_OF_A_JOB),
            _without(_UP),
            delay=_after(READY_AFTER),
            status=_conditions("True") + _containers(_RUNNING_STATE, ready="true"),
        ),
        _pod(
            "pod-complete",
            _RUNNING,
            _WELL,
            _OF_A_JOB,
            delay=_after(COMPLETE_AFTER),
            status=_conditions("False")
            + _containers(_ended("Completed", "0"))
            + "phase: Succeeded",
        ),
        _pod(
            "pod-fail",
            _RUNNING,
            _behaves(Behaviour.FAIL),
            delay=_after(COMPLETE_AFTER),
            status=_conditions("False")
            + _containers(_ended("Error", "{{ $exitCode }}"))
            + "phase: Failed",
        ),
        _pod(
            "pod-crash",
            _RUNNING,
            _behaves(Behaviour.CRASH_LOOP),
            _without(_BACKING_OFF),
            status=_CRASHED,
        ),
        _pod(
            "pod-crash-again",
            _RUNNING,
            _behaves(Behaviour.CRASH_LOOP),
            _BACKING_OFF,
            delay={"durationMilliseconds": RESTART_EVERY_MS},
            status=_CRASHED,
        ),
        _pod(
            "pod-unready",
            _RUNNING,
            _behaves(Behaviour.NEVER_READY),
            _UP,
            status=_conditions("False") + _containers(_RUNNING_STATE),
        ),
        _pod(
            "pod-image-pull-fails",
            _PENDING,
            _behaves(Behaviour.IMAGE_PULL_FAILURE),
            _without(_PULL_WAITS),
            status=_conditions("False") + _containers(_waits("ErrImagePull", refused)) + _PLACED,
        ),
        _pod(
            "pod-image-pull-waits",
            _PENDING,
            _behaves(Behaviour.IMAGE_PULL_FAILURE),
            _PULL_FAILED,
            delay={"durationMilliseconds": 1000},
            status=_conditions("False") + _containers(_waits("ImagePullBackOff", backing_off)),
        ),
        _stage("pod-delete", "Pod", (_GOING, _OURS), {"delete": True}),
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
    ready = Match(_NODE_READY, ("True",))
    return [
        _stage(
            "node-ready",
            "Node",
            (_without(_NODE_BROKEN), _without(ready)),
            {"statusTemplate": _HEALTHY},
        ),
        # kubelet reports an unchanged status every five minutes; its lease says it lives.
        _stage(
            "node-heartbeat",
            "Node",
            (_without(_NODE_BROKEN), ready),
            {"statusTemplate": _HEARTBEAT},
            delay={"durationMilliseconds": 300_000},
        ),
        _stage(
            "node-broken",
            "Node",
            (_NODE_BROKEN, Match(_NODE_READY, ("False",), negated=True)),
            {"statusTemplate": _BROKEN},
        ),
    ]


def configuration() -> str:
    """Return the file for kwok's `--config`: every Stage, as documents of JSON, which is YAML."""
    stages = [*node_stages(), *pod_stages()]
    return "---\n".join(json.dumps(stage, indent=2) + "\n" for stage in stages)
