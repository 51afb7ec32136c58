# SPDX-License-Identifier: Apache-2.0
"""What became of a Model: its status, written once, and what metrics and events make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_status import read_status
from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Reason
from controllers.model import names, status
from controllers.model.decision import Blocked
from controllers.model.metrics import Start
from controllers.model.notices import notices
from controllers.model.verdict import Observed
from flexinfer.apply import Outcome, StatusWriter

if TYPE_CHECKING:
    from datetime import datetime

    from api.flexinfer.v1alpha2.model_status import ModelStatus
    from controllers.model.activity import Use
    from controllers.model.lookup import ModelClient
    from controllers.model.metrics import ModelMetrics
    from flexinfer.errors import DecodeError
    from flexinfer.meta.envelope import StoredObject
    from flexinfer.meta.resource import NamespacedName
    from flexinfer.recorder import EventRecorder


class Report:
    """Write statuses, and tell whoever listens how they changed."""

    def __init__(
        self, client: ModelClient, *, metrics: ModelMetrics, recorder: EventRecorder
    ) -> None:
        self._metrics = metrics
        self._recorder = recorder
        self._status = StatusWriter(
            client, field_manager=names.FIELD_MANAGER, foreign=("lastActiveTime",)
        )

    def forget(self, key: NamespacedName) -> None:
        """Drop what is remembered of a Model that is gone, and its series."""
        self._status.forget(Model.resource, key)
        self._metrics.forget(key)

    async def write(
        self, model: Model, observed: Observed, use: Use, *, now: datetime
    ) -> ModelStatus:
        """Write and return the status that *observed* amounts to; tell what that changes."""
        new = status.compute(model.metadata, model.status, observed, now=now)
        outcome = await self._status.write(Model.resource, model.metadata, new.wire())
        previous = new if outcome is Outcome.UNCHANGED else model.status
        backend = "" if isinstance(observed.decision, Blocked) else observed.decision.backend.name
        swapped = observed.demand.swapped if observed.demand else None
        start = Start(backend=backend, pod_made=use.loading_since, swapped=swapped)
        self._metrics.observe(model.key, previous, new, start)
        for notice in notices(previous, new, observed):
            self._recorder.emit(
                model,
                type=notice.type,
                reason=notice.reason,
                action=notice.action,
                note=notice.note,
            )
        return new

    async def misfit(self, stored: StoredObject, error: DecodeError, *, now: datetime) -> None:
        """Write into the status of *stored* that it does not fit its type."""
        observed = Observed(decision=Blocked(reason=Reason.INVALID_SPEC, message=str(error)))
        previous = read_status(stored.tree(Model.resource).get("status"))
        new = status.compute(stored.meta, previous, observed, now=now)
        outcome = await self._status.write(Model.resource, stored.meta, new.wire())
        before = new if outcome is Outcome.UNCHANGED else previous
        self._metrics.observe(stored.meta.key, before, new, Start(backend=""))
