# SPDX-License-Identifier: Apache-2.0
"""Whether what nodes decided once for a Model's pods is kept, or decided anew. Pure.

| what is seen | the pods' template |
|---|---|
| no Deployment, no replicas, or nothing recorded on it | by the nodes of now |
| the spec asks for other GPUs: how many, or of which vendor | by the nodes of now |
| it changes anyway: another spec, another default image | by the nodes of now |
| a pod has found no node for 30 s | by the nodes of now |
| anything else | as it was |

So a cordon, or a node that comes or goes, restarts no pod. What the nodes of now say stands in
the status all the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from controllers.model import desired
from controllers.model.decision import Blocked, plan_for, suits
from controllers.model.placement import Placement, is_same_template, patience_ends
from controllers.model.pods import living

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from api.flexinfer.v1alpha2.model_types import Model
    from controllers.model.decision import Plan, Reading
    from flexinfer.kinds.deployment import Deployment
    from flexinfer.kinds.pod import Pod


def settle(  # noqa: PLR0913 - what is decided, and what it is held against
    model: Model,
    reading: Reading,
    fresh: Plan | Blocked,
    *,
    live: Deployment | None,
    pods: Iterable[Pod],
    environment: Mapping[str, str],
    now: datetime,
) -> Plan | Blocked:
    """Return *fresh*, which the nodes of now decided, or what was recorded on *live* earlier."""
    recorded = Placement.of(live) if live is not None and live.spec.replicas else None
    ends = patience_ends(living(pods))
    if live is None or recorded is None or (ends is not None and ends <= now):
        return fresh
    # The template shows what was recorded, not what the spec asks for: that has to suit by itself.
    if not suits(model, recorded):
        return fresh
    kept = plan_for(model, reading, recorded, environment)
    if isinstance(kept, Blocked):
        return fresh
    intent = desired.deployment(model, kept, desired.selector(model, live), environment)
    if not is_same_template(live, intent):
        return fresh
    if isinstance(fresh, Blocked):
        return replace(kept, trouble=fresh)
    return replace(kept, notes=fresh.notes, warnings=fresh.warnings)
