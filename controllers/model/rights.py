# SPDX-License-Identifier: Apache-2.0
"""What the Model controller may do, no more: each right is used, and missed when it is gone.

Children are read once live before their first apply, so they need get; server-side apply of an
object that is not there needs create beside patch. Nothing is deleted: the garbage collector
does that. On clusters with the admission plug-in OwnerReferencesPermissionEnforcement, which is
off by default, `update` on `models/finalizers` has to be granted on top.
"""

from __future__ import annotations

from api.flexinfer.v1alpha2.groupversion_info import GROUP
from flexinfer import recorder
from flexinfer.crd.rbac import Rule

_WATCH = ("list", "watch")
_OWN = ("get", "list", "watch", "create", "patch")

RULES = (
    Rule(groups=(GROUP,), resources=("models",), verbs=_WATCH),
    Rule(groups=(GROUP,), resources=("models/status",), verbs=("patch",)),
    Rule(groups=("apps",), resources=("deployments",), verbs=_OWN),
    Rule(groups=("",), resources=("services",), verbs=_OWN),
    Rule(groups=("",), resources=("pods", "nodes", "persistentvolumeclaims"), verbs=_WATCH),
    *recorder.RULES,
)
