# SPDX-License-Identifier: Apache-2.0
"""The shell around the pure modules: read, decide, apply, observe, write the status once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import cache_claim, cache_state
from controllers.model.activity import use_of
from controllers.model.children import Children
from controllers.model.decision import Blocked, decide, read
from controllers.model.demand import demand
from controllers.model.grouplocks import GroupLocks
from controllers.model.lookup import Lookup, serving
from controllers.model.member import group_of
from controllers.model.placement import patience_ends
from controllers.model.report import Report
from controllers.model.rollout import REFUSALS, Rollout
from controllers.model.settled import settle
from controllers.model.verdict import Observed
from controllers.model.waking import Waking
from flexinfer import log
from flexinfer.errors import DecodeError
from flexinfer.reconcile import Request, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from api.flexinfer.v1alpha2.model_status import ModelStatus
    from controllers.model.activity import Use
    from controllers.model.decision import Plan
    from controllers.model.demand import Demand, Group
    from controllers.model.lookup import ModelClient
    from controllers.model.metrics import ModelMetrics
    from flexinfer.apply.reverted import RevertObserver
    from flexinfer.kinds.deployment import Deployment
    from flexinfer.kinds.pod import Pod
    from flexinfer.recorder import EventRecorder

_log = log.get_logger(__name__)

# Until a Model is looked at again whose status has changed how many replicas it wants.
_AT_ONCE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Be what there was of a Model when its reconcile began, at `now`.

    `labelled` are all pods that carry its label, `pods` those of its Deployment.
    """

    now: datetime
    deployment: Deployment | None
    labelled: Sequence[Pod]
    pods: Sequence[Pod]

    @property
    def replicas(self) -> int:
        """Return the replicas that the Deployment asks for."""
        return self.deployment.spec.replicas if self.deployment else 0


class ModelReconciler:
    """Turn a Model into its children, and say in its status how it is doing.

    *environment* holds the default images. Children go with their Model by their owner reference;
    Jobs that prepare what is not wanted any more are deleted, nothing else is. Models of one shared
    GPU group are reconciled one at a time.
    """

    def __init__(
        self,
        client: ModelClient,
        *,
        environment: Mapping[str, str],
        metrics: ModelMetrics,
        recorder: EventRecorder,
        on_reverted: RevertObserver | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._environment = environment
        self._now = now
        self._lookup = Lookup(client)
        self._children = Children(client, environment=environment, on_reverted=on_reverted)
        self._report = Report(client, metrics=metrics, recorder=recorder)
        self._waking = Waking(client, now=now)
        self._groups = GroupLocks()

    async def reconcile(self, request: Request) -> Result:
        """Bring one Model nearer to what its spec asks for."""
        group = await self._group(request)
        async with self._groups.hold(group):
            if await self._group(request) != group:  # it has just changed: hold the other one
                return Result(requeue_after=_AT_ONCE.total_seconds())
            try:
                model = await self._client.get(Model, request)
            except DecodeError as error:
                return await self._report_misfit(request, error)
            if model is None:
                self._forget(request)
                return Result()
            if model.metadata.deletion_timestamp is not None:
                await self._let_go(model)
                return Result()
            return await self._reconcile(model)

    async def _group(self, request: Request) -> str:
        """Return the shared GPU group of a Model, as far as it can be read."""
        try:
            model = await self._client.get(Model, request)
        except DecodeError:
            return ""
        name = group_of(model) if model else ""
        return str(Request(request.namespace, name)) if name else ""

    def _forget(self, request: Request) -> None:
        self._children.forget(request)
        self._waking.forget(request)
        self._report.forget(request)

    async def _reconcile(self, model: Model) -> Result:
        woken = await self._waking.heed(model.metadata)
        if woken is not None:
            model = _with_signal(model, woken)
        found = await self._look(model)
        now = found.now
        decision = await self._decide(model, found)
        use = use_of(model.status, found.pods)
        wanted, group = await self._demand(model, decision, use, found)
        rollout = Rollout()
        if not isinstance(decision, Blocked):
            decision = replace(decision, replicas=wanted.replicas)
            rollout = await self._roll_out(model, decision, wanted, found)
        if isinstance(decision, Blocked) or rollout.error is not None:
            rollout = await self._park(model, wanted, found, rollout)
        observed = Observed(
            decision=decision,
            cache=rollout.cache,
            demand=wanted,
            deployment=await self._lookup.deployment(model),
            pods=tuple(found.pods),
            gpu=await self._lookup.gpu(found.pods) if model.gpu_count else None,
            problem=rollout.problem,
            drift=rollout.drift,
            notes=rollout.notes,
        )
        new = await self._report.write(model, observed, use, now=now)
        await self._waking.settle(model.metadata)
        # By the status of now: how long a Model stays awake counts from when it turned Ready.
        written = _with_status(model, new)
        later = demand(written, decision, use_of(written.status, found.pods), group, now=now)
        at_once = now + _AT_ONCE if later.replicas != wanted.replicas else None
        return rollout.look_again(now, at_once, later.until, patience_ends(found.pods))

    async def _demand(
        self, model: Model, decision: Plan | Blocked, use: Use, found: _Found
    ) -> tuple[Demand, Group | None]:
        group = await self._lookup.group(model)
        wanted = demand(model, decision, use, group, now=found.now)
        is_cached = model.status.cache is not None and model.status.cache.ready
        if group is None or not wanted.replicas or found.replicas or not is_cached:
            return wanted, group
        group = await self._lookup.group(model, is_live=True)
        return demand(model, decision, use, group, now=found.now), group

    async def _park(self, model: Model, wanted: Demand, found: _Found, rollout: Rollout) -> Rollout:
        """End the pods of a Model that lost its GPUs and cannot be rolled out."""
        standing = wanted.standing
        if standing is None or standing.is_active or not found.replicas:
            return rollout
        try:
            await self._children.park(model)
        except REFUSALS as error:
            return replace(rollout, error=rollout.error or error)
        return rollout

    async def _let_go(self, model: Model) -> None:
        """End the pods of a Model of a group whose deletion somebody's finalizer holds up."""
        live = await self._lookup.deployment(model) if group_of(model) else None
        if live is not None and live.spec.replicas and live.metadata.deletion_timestamp is None:
            await self._children.park(model)

    async def _look(self, model: Model) -> _Found:
        labelled = await self._lookup.pods(model)
        return _Found(
            now=self._now(),
            deployment=await self._lookup.deployment(model),
            labelled=labelled,
            pods=serving(model, labelled),
        )

    async def _decide(self, model: Model, found: _Found) -> Plan | Blocked:
        reading = read(model)
        if isinstance(reading, Blocked):
            return reading
        cache = reading.cache
        claim = await self._lookup.claim(model, cache.claim)
        modes = claim.spec.access_modes if claim else None
        if claim is None and cache.is_made:
            modes = cache_claim.ACCESS_MODES
        nodes = await self._lookup.nodes(model)
        return settle(
            model,
            reading,
            decide(model, reading, nodes, self._environment, modes=modes),
            live=found.deployment,
            pods=found.pods,
            environment=self._environment,
            now=found.now,
        )

    async def _roll_out(self, model: Model, plan: Plan, wanted: Demand, found: _Found) -> Rollout:
        """Apply the children; pods are started only once they would find their weights."""
        rollout = Rollout()
        live = found.deployment
        try:
            drift = list(await self._children.service(model, plan, live, wanted))
            if plan.cache.is_made:
                kept, refused = await self._children.claim(model, plan.claim)
                drift += kept
                rollout = replace(rollout, notes=(refused,) if refused else ())
            rollout = replace(rollout, drift=tuple(drift))
            rollout = await self._prepare(model, plan, rollout, found)
            may_start = rollout.cache is not None and rollout.cache.may_start
            if may_start or (live is not None and wanted.replicas == 0):
                drift += await self._children.deployment(model, plan, live)
        except REFUSALS as error:
            return replace(rollout, error=error)
        return replace(rollout, drift=tuple(drift))

    async def _prepare(self, model: Model, plan: Plan, rollout: Rollout, found: _Found) -> Rollout:
        """Run the Job that the cache needs, and end those that it does not."""
        seen = await self._lookup.cache(model, plan.cache, found.labelled)
        cache = cache_state.observe(model, plan.cache, seen, self._environment, now=found.now)
        if plan.cache.is_made and seen.claim is not None:
            shrink = cache_claim.shrink_note(model, seen.claim)
            growth = "" if rollout.notes else cache_claim.growth_note(model, seen.claim)
            notes = tuple(filter(None, (*rollout.notes, shrink, growth)))
            rollout = replace(rollout, notes=notes)
        await self._children.end_jobs(cache.obsolete)
        if cache.job is not None:
            await self._children.job(model, cache.job)
        return replace(rollout, cache=cache)

    async def _report_misfit(self, request: Request, error: DecodeError) -> Result:
        """Write into the status that the Model does not fit its type, and wait for a change."""
        stored = await self._client.read(Model.resource, request)
        if stored is not None and stored.meta.deletion_timestamp is None:
            _log.warning("the model does not fit its type", field=error.field)
            await self._report.misfit(stored, error, now=self._now())
        return Result()


def _with_signal(model: Model, woken: datetime) -> Model:
    """Return the Model as it is once the signal that was just written has come back."""
    return _with_status(model, model.status.model_copy(update={"last_active_time": woken}))


def _with_status(model: Model, new: ModelStatus) -> Model:
    signal = model.status.last_active_time
    kept = new if new.last_active_time else new.model_copy(update={"last_active_time": signal})
    return model.model_copy(update={"status": kept})
