# SPDX-License-Identifier: Apache-2.0
"""FlexInfer's controller framework: the names that an author of a reconciler needs.

An event's way through the package, and so the order to read it in:

`client` (bytes to and from the API server) → `cache` (the local copy) → `event` → `predicate` →
`handler` → `workqueue` → `controller` → `reconcile` (the author's code) → `apply` (children and
status) → `client`. `builder` and `manager` put it together, `objectreconciler` does what nearly
every reconciler does, `program` makes a process of it; `envtest` runs a real control plane.

Beside the way:

- `meta`, `kinds`, `crd`: objects and their metadata; models of foreign kinds; what is generated.
- `conditions`, `finalizers`, `recorder`: what reconcilers say, hold back, and tell people.
- `source` ties `cache` to `workqueue`; `runs` knows which reconcile a task is part of, `hotloop`
  which object is reconciled without end.
- `leaderelection`, `healthz`: who works, and how the process is.
- `server`, `httpserver`, `routing`: probes and metrics over HTTP.
- `metrics`, `tally`, `log`, `errors`: shared by all.
- `loop`, `looplag`: how the process runs, and what holds it up.
- `cmd`: the command line, which alone knows FlexInfer's own controllers.

Names are imported on first use, so that `import flexinfer` loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flexinfer.apply import Applied as Applied
    from flexinfer.apply import AppliedChildren as AppliedChildren
    from flexinfer.apply import Applier as Applier
    from flexinfer.apply import Outcome as Outcome
    from flexinfer.apply import StatusWriter as StatusWriter
    from flexinfer.apply import apply_children as apply_children
    from flexinfer.builder import controller_for as controller_for
    from flexinfer.client.protocol import Client as Client
    from flexinfer.client.transport import Transport as Transport
    from flexinfer.controller import Controller as Controller
    from flexinfer.controller import ControllerOptions as ControllerOptions
    from flexinfer.crd.conditioned import ConditionedObject as ConditionedObject
    from flexinfer.crd.conditioned import ConditionedStatus as ConditionedStatus
    from flexinfer.crd.markers import PrintColumn as PrintColumn
    from flexinfer.crd.markers import resource as resource
    from flexinfer.errors import FlexInferError as FlexInferError
    from flexinfer.errors import NotOursError as NotOursError
    from flexinfer.errors import TerminalError as TerminalError
    from flexinfer.manager import Manager as Manager
    from flexinfer.manager import ManagerOptions as ManagerOptions
    from flexinfer.meta.condition import Condition as Condition
    from flexinfer.meta.object import Model as Model
    from flexinfer.meta.object import Object as Object
    from flexinfer.meta.resource import Resource as Resource
    from flexinfer.meta.selector import LabelSelector as LabelSelector
    from flexinfer.metrics import REGISTRY as REGISTRY
    from flexinfer.objectreconciler import ObjectReconciler as ObjectReconciler
    from flexinfer.objectreconciler import Verdict as Verdict
    from flexinfer.objectreconciler import rules_for as rules_for
    from flexinfer.program import run as run
    from flexinfer.program import running as running
    from flexinfer.reconcile import Reconciler as Reconciler
    from flexinfer.reconcile import Request as Request
    from flexinfer.reconcile import Result as Result
    from flexinfer.recorder import EventRecorder as EventRecorder
    from flexinfer.recorder import EventType as EventType

_HOME = {
    "Applied": "flexinfer.apply",
    "AppliedChildren": "flexinfer.apply",
    "Applier": "flexinfer.apply",
    "Client": "flexinfer.client.protocol",
    "Condition": "flexinfer.meta.condition",
    "ConditionedObject": "flexinfer.crd.conditioned",
    "ConditionedStatus": "flexinfer.crd.conditioned",
    "Controller": "flexinfer.controller",
    "ControllerOptions": "flexinfer.controller",
    "EventRecorder": "flexinfer.recorder",
    "EventType": "flexinfer.recorder",
    "FlexInferError": "flexinfer.errors",
    "LabelSelector": "flexinfer.meta.selector",
    "Manager": "flexinfer.manager",
    "ManagerOptions": "flexinfer.manager",
    "Model": "flexinfer.meta.object",
    "NotOursError": "flexinfer.errors",
    "Object": "flexinfer.meta.object",
    "ObjectReconciler": "flexinfer.objectreconciler",
    "Outcome": "flexinfer.apply",
    "PrintColumn": "flexinfer.crd.markers",
    "REGISTRY": "flexinfer.metrics",
    "Reconciler": "flexinfer.reconcile",
    "Request": "flexinfer.reconcile",
    "Resource": "flexinfer.meta.resource",
    "Result": "flexinfer.reconcile",
    "StatusWriter": "flexinfer.apply",
    "TerminalError": "flexinfer.errors",
    "Transport": "flexinfer.client.transport",
    "Verdict": "flexinfer.objectreconciler",
    "apply_children": "flexinfer.apply",
    "controller_for": "flexinfer.builder",
    "resource": "flexinfer.crd.markers",
    "rules_for": "flexinfer.objectreconciler",
    "run": "flexinfer.program",
    "running": "flexinfer.program",
}

__all__ = sorted(_HOME)  # noqa: PLE0605 - one list of names is enough; a test compares them


def __getattr__(name: str) -> object:
    """Import the module that *name* lives in."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
