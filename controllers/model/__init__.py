# SPDX-License-Identifier: Apache-2.0
"""The Model controller: from a Model to a Service and a Deployment, and back to its status.

May import `internal`, `api` and the framework. Pure are all modules but `reconciler` and
`wiring`; only `reconciler` awaits anything.

- `decision`: Model and nodes to a plan, or to why there is none.
- `names`, `metadata`: labels and annotations.
- `desired`: a plan to the intents of Service and Deployment; `ports`: what apply cannot undo.
- `cache`: where weights are kept; `cache_claim`, `cache_jobs`: the intents that bring them there;
  `cache_run`, `cache_words`: how far the Job is; `cache_state`: are they there, and what is next.
- `pods`: what pods say.
- `verdict`: does the Model serve, and if not, what is in the way.
- `rollout`: what applying came to, and when to look again.
- `status`: the whole status.
- `rights`: what the API server has to allow.
- `reconciler`: the shell. `wiring`: what it hears of.

Invariants: nothing is deleted; the selector of a Deployment never changes, and its Service
selects by the same labels; Ready always says the reason; the status is written once a reconcile,
and only what this controller owns of it.
"""

from controllers.model.rights import RULES
from controllers.model.wiring import set_up

__all__ = ["RULES", "set_up"]
