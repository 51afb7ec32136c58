# SPDX-License-Identifier: Apache-2.0
"""Events: what controllers tell people about objects, through events.k8s.io/v1.

Imports `client.protocol`, `crd.rbac`, `meta`, `metrics`, `log` and `errors`, and of `apply` the
type of what it reports.

- `recorder`: `EventRecorder.emit`, what a reconciler calls.
- `limits`: what the API server accepts, and how whatever comes is made to fit.
- `series`: which events are one, which are too many; no I/O.
- `broadcaster`: `EventBroadcaster`, the task that sends them.
- `reference`: what an event is about.
- `reverts`: the event about a foreign change that was taken back.

Invariants: recording never waits, never raises and may be done from any thread; everything is
bounded, and what is dropped is counted; the same event is sent once and then counted; nothing is
remembered of what was not seen for six minutes; no event is about an event.
"""

from flexinfer.crd.rbac import Rule
from flexinfer.recorder.broadcaster import EventBroadcaster
from flexinfer.recorder.recorder import EventRecorder, EventType
from flexinfer.recorder.reference import ObjectReference
from flexinfer.recorder.reverts import announce

__all__ = [
    "RULES",
    "EventBroadcaster",
    "EventRecorder",
    "EventType",
    "ObjectReference",
    "announce",
]

RULES = (Rule(groups=("events.k8s.io",), resources=("events",), verbs=("create", "patch")),)
"""The rights that recording needs, in the namespaces of the objects that events are about."""
