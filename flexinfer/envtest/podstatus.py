# SPDX-License-Identifier: Apache-2.0
"""What a kubelet writes to a pod's status, as Go templates that yield YAML.

kwok renders them against the pod; a list in a status is replaced whole.
"""

from __future__ import annotations

from flexinfer.envtest.behaviour import EXIT_CODE, MESSAGE

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
_RUNNING = "{running: {startedAt: {{ $now | Quote }}}}"


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


def _waits(reason: str, text: str, name: str) -> str:
    message = f'{{{{ printf "{text}" {name} | Quote }}}}'
    return f"{{waiting: {{reason: {reason}, message: {message}}}}}"


def _status(ready: str, containers: str, *rest: str) -> str:
    return "\n".join((_VARIABLES, _conditions(ready), containers, *rest))


STARTED = _status("False", _containers(_RUNNING), _INIT_CONTAINERS, _PLACED, "phase: Running")
READY = _status("True", _containers(_RUNNING, ready="true"))
UNREADY = _status("False", _containers(_RUNNING))
COMPLETED = _status("False", _containers(_ended("Completed", "0")), "phase: Succeeded")
FAILED = _status("False", _containers(_ended("Error", "{{ $exitCode }}")), "phase: Failed")
CRASHED = _status(
    "False",
    _containers(
        _waits("CrashLoopBackOff", "back-off 10s restarting failed container=%s", ".name"),
        restarts="add $restarts 1",
        last=_ended("Error", "{{ $exitCode }}"),
    ),
)
PULL_FAILED = _status(
    "False",
    _containers(_waits("ErrImagePull", "failed to pull and unpack image %s: not found", ".image")),
    _PLACED,
)
PULL_WAITS = _status(
    "False", _containers(_waits("ImagePullBackOff", "Back-off pulling image %s", ".image"))
)
