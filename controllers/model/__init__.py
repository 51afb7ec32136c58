# SPDX-License-Identifier: Apache-2.0
"""The Model controller: from a Model to its children, and back to its status.

May import `internal`, `api` and the framework. What decides is pure; what awaits is `reconciler`
with `lookup` (what is read), `children`, `waking` and `report` (what is written) and `grouplocks`.

| question | modules |
|---|---|
| what does the spec come to on these nodes? | `decision`, `placement`, `settled`, `nodewatch` |
| where are the weights, and what brings them there? | `cache` and all `cache_*` |
| how many replicas now? | `demand`, from `activity` and the group |
| who has the GPUs of a group? | `member`, `group`, `standing`, `outlook`, `turns`, `siblings` |
| which objects? | `desired`, `metadata`, `names`, `ports`, `rights` |
| how is it doing? | `pods`, `rollout`, `verdict`, `status`, `notices`, `metrics`, `report` |

`wiring` says what the controller hears of.

Invariants: nothing is deleted but Jobs whose work is not wanted any more; the selector of a
Deployment never changes, and its Service selects by the same labels; nodes restart no pod that
runs; two Models of a group never have pods at once; Ready always says the reason; the status is
written once a reconcile, and only what this controller owns of it.
"""

from controllers.model.rights import RULES
from controllers.model.wiring import set_up

__all__ = ["RULES", "set_up"]
