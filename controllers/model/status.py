# SPDX-License-Identifier: Apache-2.0
"""From what was decided and observed to the whole status of a Model. Pure.

The status depends on nothing but its inputs, and what did not change stays as it was, so that a
reconcile of an unchanged Model has nothing to write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_status import ModelStatus
from api.flexinfer.v1alpha2.reasons import ConditionType, Phase, Reason
from controllers.model.decision import Blocked
from controllers.model.placement import patience_ends
from controllers.model.pods import living, substage
from controllers.model.verdict import judge
from flexinfer import conditions
from flexinfer.conditions import shorten
from flexinfer.meta.condition import ConditionStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from api.flexinfer.v1alpha2.model_status import SharedGroupStatus
    from controllers.model.decision import Plan
    from controllers.model.verdict import Observed, Verdict
    from flexinfer.meta.condition import Condition
    from flexinfer.meta.envelope import ObjectMeta

_SHORT = 160  # characters

_Statement = tuple[ConditionType, bool, Reason, str]


def compute(
    meta: ObjectMeta, previous: ModelStatus, observed: Observed, *, now: datetime
) -> ModelStatus:
    """Return the status that *observed* amounts to.

    *meta* is the Model's, as read at the start of the reconcile; *previous* its status then.
    """
    verdict = judge(meta, observed)
    stage = substage(living(observed.pods)) if verdict.phase is Phase.LOADING else None
    moved = stage is not previous.loading_substage
    plan = None if isinstance(observed.decision, Blocked) else observed.decision
    return ModelStatus(
        phase=verdict.phase,
        observed_generation=meta.generation,
        conditions=tuple(_conditions(meta, previous, observed, verdict, now)),
        endpoint=endpoint(meta, plan) if plan else previous.endpoint,
        gpu=observed.gpu or previous.gpu if _is_on_gpus(plan) else None,
        shared_group=_shared_group(observed, verdict, now),
        cache=observed.cache.status if observed.cache else previous.cache,
        loading_substage=stage,
        loading_progress_at=(now if moved else previous.loading_progress_at) if stage else None,
        message=shorten(" ".join(verdict.message.split()), _SHORT) or None,
    )


def _is_on_gpus(plan: Plan | None) -> bool:
    """Tell whether it runs on GPUs, or did: a Model on CPUs may be on a node that has some."""
    return plan is None or plan.launch.accelerator.count > 0


def endpoint(meta: ObjectMeta, plan: Plan) -> str:
    """Return the Model's URL inside the cluster."""
    return f"http://{meta.name}.{meta.namespace}.svc:{plan.backend.port}"


def _conditions(
    meta: ObjectMeta, previous: ModelStatus, observed: Observed, verdict: Verdict, now: datetime
) -> list[Condition]:
    """Return this controller's conditions; ImmutableFieldDrift is there only while it is true."""
    statements = list(_statements(observed, verdict))
    said = {type_ for type_, *_ in statements} | _not_looked_at(observed)
    found = [c for c in previous.conditions if c.type in said]
    for type_, holds, reason, message in statements:
        found = conditions.set_condition(
            found,
            type_,
            ConditionStatus.TRUE if holds else ConditionStatus.FALSE,
            reason=reason,
            message=message,
            observed_generation=meta.generation,
            now=now,
        )
    return found


def _not_looked_at(observed: Observed) -> set[ConditionType]:
    """Return the conditions of which nothing was learned this time: they stay as they were."""
    kept = set[ConditionType]()
    if observed.cache is None:
        kept.add(ConditionType.CACHED)
    if observed.problem is not None:
        kept.add(ConditionType.IMMUTABLE_FIELD_DRIFT)
    return kept


def _statements(observed: Observed, verdict: Verdict) -> Iterator[_Statement]:
    yield ConditionType.READY, verdict.is_ready, verdict.reason, verdict.message
    decision = observed.decision
    if isinstance(decision, Blocked):
        yield ConditionType.SCHEDULABLE, False, decision.reason, decision.message
        return
    if decision.trouble is not None:
        yield ConditionType.SCHEDULABLE, False, decision.trouble.reason, decision.trouble.message
    else:
        yield ConditionType.SCHEDULABLE, True, Reason.SCHEDULABLE, _placement(decision)
    if (cache := observed.cache) is not None:
        yield ConditionType.CACHED, cache.is_cached, cache.reason, cache.message
    if observed.drift:
        text = f"These fields cannot be changed: {', '.join(observed.drift)}"
        yield ConditionType.IMMUTABLE_FIELD_DRIFT, True, Reason.FIELD_IMMUTABLE, text


def _placement(plan: Plan) -> str:
    accelerator = plan.launch.accelerator
    if not accelerator.count:
        return "The Model runs on CPUs"
    architecture = f" of architecture {accelerator.architecture}" * bool(accelerator.architecture)
    return f"Nodes offer {accelerator.count} {accelerator.vendor.resource}{architecture} per pod"


def _shared_group(observed: Observed, verdict: Verdict, now: datetime) -> SharedGroupStatus | None:
    standing = observed.demand and observed.demand.standing
    if not standing:
        return None
    shared = standing.with_phase(verdict.phase)
    ends = patience_ends(living(observed.pods))
    is_unplaced = verdict.reason is Reason.UNSCHEDULABLE and ends is not None and ends <= now
    is_failing = verdict.phase is Phase.FAILED or is_unplaced
    return standing.with_failure(shared, now) if is_failing else shared
