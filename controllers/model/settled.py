# SPDX-License-Identifier: Apache-2.0
"""Whether what nodes decided once for a Model's pods is kept, or decided anew. Pure.

| what is seen | the pods' template |
|---|---|
| no Deployment, or no replicas | by the nodes of now |
| it says nothing of its template, and the spec is the one that it was taken over with | as it was |
| the spec asks for other GPUs: how many, or of which vendor | by the nodes of now |
| it changes anyway: another spec, another default image | by the nodes of now |
| a pod has found no node for 30 s | by the nodes of now |
| anything else | as it was |

So a cordon, or a node that comes or goes, restarts no pod, and neither does taking over a
Deployment that says nothing of its template, as those of older operators. What the nodes of now
say stands in the status all the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from controllers.model import desired, names
from controllers.model.decision import Blocked, plan_for, suits
from controllers.model.placement import Placement, Spread, is_same_template, patience_ends
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
    ends = patience_ends(living(pods))
    if live is None or not live.spec.replicas or (ends is not None and ends <= now):
        return fresh
    if _is_inherited(model, live):
        return fresh if isinstance(fresh, Blocked) else replace(fresh, keeps_template=True)
    kept = _kept(model, reading, live, environment)
    if kept is None:
        return fresh
    if isinstance(fresh, Blocked):
        return replace(kept, trouble=fresh)
    note = _spread_note(kept, fresh)
    return replace(kept, notes=fresh.notes, warnings=fresh.warnings, spread_note=note)


def _spread_note(kept: Plan, fresh: Plan) -> str:
    """Say how replicas keep apart by the template that they have."""
    if kept.spread is Spread.REQUIRED or kept.most <= 1:
        return ""
    later = "replicas may share a node until their template changes; then they keep apart"
    return fresh.spread_note or later


def _kept(
    model: Model, reading: Reading, live: Deployment, environment: Mapping[str, str]
) -> Plan | None:
    """Return the plan by what is recorded on *live*, if that comes to the pods that it has."""
    recorded = Placement.of(live)
    # The template shows what was recorded, not what the spec asks for: that has to suit by itself.
    if recorded is None or not suits(model, recorded):
        return None
    kept = plan_for(model, reading, recorded, environment)
    if isinstance(kept, Blocked):
        return None
    intent = desired.deployment(model, kept, desired.selector(model, live), environment)
    return kept if is_same_template(live, intent) else None


def _is_inherited(model: Model, live: Deployment) -> bool:
    """Tell whether the template was made by another version, for the spec of now.

    Which spec it was made for is not known of versions that did not say; it is taken for this one.
    """
    annotations = live.metadata.annotations
    made_for = annotations.get(names.GENERATION_ANNOTATION)
    is_same_spec = made_for == str(model.metadata.generation)
    match annotations.get(names.TEMPLATE_ANNOTATION):
        case None:
            return made_for is None or is_same_spec
        case names.INHERITED:
            return is_same_spec
        case _:
            return False
