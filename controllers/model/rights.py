# SPDX-License-Identifier: Apache-2.0
"""What the Model controller may do, no more: each right is used, and missed when it is gone.

Children that are there already are read live before their first apply, so they need get;
server-side apply of an object that is not there needs create beside patch. Deleted are Jobs, and
what an earlier Model of the same name left behind, once a `get` says which Model has the name now:
the garbage collector does the rest. `patch` on models removes the annotation that wakes one. On
clusters with the admission plug-in OwnerReferencesPermissionEnforcement, which is off by default,
`update` on `models/finalizers` has to be granted on top.
"""

from __future__ import annotations

from api.flexinfer.v1alpha2.groupversion_info import GROUP
from flexinfer import recorder
from flexinfer.crd.rbac import Rule

_WATCH = ("list", "watch")
_OWN = ("get", "list", "watch", "create", "patch", "delete")

RULES = (
    Rule(groups=(GROUP,), resources=("models",), verbs=("get", *_WATCH, "patch")),
    Rule(groups=(GROUP,), resources=("models/status",), verbs=("patch",)),
    Rule(groups=("apps",), resources=("deployments",), verbs=_OWN),
    Rule(groups=("batch",), resources=("jobs",), verbs=_OWN),
    Rule(groups=("",), resources=("services", "persistentvolumeclaims"), verbs=_OWN),
    Rule(groups=("",), resources=("pods", "nodes"), verbs=_WATCH),
    *recorder.RULES,
)
