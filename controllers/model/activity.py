# SPDX-License-Identifier: Apache-2.0
"""How many replicas a Model wants now, by when it was asked for last. Pure.

Whoever wakes a Model writes `status.lastActiveTime`. From then on the Model is awake:

| until | why |
|---|---|
| the idle timeout after it was asked for | requests keep it awake |
| the idle timeout after it turned Ready | a start that took long is worth something |
| the startup budget after its newest pod was made | what is loading is not stopped half-way |
| the same after its last step, if that began in time | each step may take the budget |

The last of these counts. What pods do prolongs that by no more than two startup budgets and one
idle timeout, so that a backend that crashes again and again does not keep a GPU for ever.

An idle timeout of 0 means none, as for timeouts elsewhere: woken once, the Model stays awake.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_spec import ServerlessSpec
from api.flexinfer.v1alpha2.reasons import ConditionType, Phase
from controllers.model import names
from controllers.model.pods import living, moment
from flexinfer import conditions
from flexinfer.meta.condition import ConditionStatus
from flexinfer.meta.duration import Duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from api.flexinfer.v1alpha2.model_status import ModelStatus
    from flexinfer.kinds.pod import Pod
    from flexinfer.meta.resource import NamespacedName

_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_AT_REST = {Phase.IDLE, Phase.PREEMPTED}
# A timeout may be given as 292 years; with what is added to it, dates have to stay below 10000.
_LONGEST = timedelta(days=36525)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Be what is known of how a Model is used; a time is None for what did not happen.

    `ready_since` is None unless it is Ready, `loading_since` unless it is not and has a pod.
    `progress_at` is when the pod last came a step further.
    """

    last_active: datetime | None = None
    ready_since: datetime | None = None
    loading_since: datetime | None = None
    progress_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Say how many replicas are wanted.

    `because` is for the Ready message of a Model that wants none, and empty for one that wants
    some. `until` is when the answer may change by itself, later than now, None for never.
    """

    replicas: int
    because: str = ""
    until: datetime | None = None


def use_of(status: ModelStatus, pods: Iterable[Pod]) -> Use:
    """Read from the status of the last reconcile, and the pods of now, how a Model is used.

    Pods of a Model that is at rest are about to go, and load nothing.
    """
    if status.phase in _AT_REST:
        return Use(last_active=status.last_active_time)
    ready = conditions.find(status.conditions, ConditionType.READY)
    newest = next(iter(living(pods)), None)
    if ready is not None and ready.status is ConditionStatus.TRUE:
        return Use(last_active=status.last_active_time, ready_since=ready.last_transition_time)
    return Use(
        last_active=status.last_active_time,
        loading_since=moment(newest.metadata.creation_timestamp) if newest else None,
        progress_at=status.loading_progress_at,
    )


def idle_timeout(serverless: ServerlessSpec | None, backend_seconds: float) -> float:
    """Return the seconds without a request that make a Model idle; 0 for never."""
    if serverless is None or serverless.idle_timeout is None:
        return backend_seconds
    return serverless.idle_timeout.seconds


def activity(
    key: NamespacedName,
    serverless: ServerlessSpec | None,
    use: Use,
    *,
    idle_seconds: float,
    startup_seconds: float,
    now: datetime,
) -> Activity:
    """Decide how many replicas the Model *key* wants *now*, which needs a time zone.

    *idle_seconds* is the backend's own idle timeout, *startup_seconds* how long a start may take.
    Without a serverless block the Model scales to zero. A time without a zone is taken for UTC,
    one in the future for now.
    """
    serverless = serverless or ServerlessSpec()
    least, awake = serverless.min_replicas, max(1, serverless.min_replicas)
    if not serverless.enabled or least > 0:
        return Activity(replicas=awake)
    asked = _at(use.last_active, now)
    if asked is None:
        return Activity(replicas=0, because=_because("it was not asked for yet", key))
    seconds = idle_timeout(serverless, idle_seconds)
    if not seconds:
        return Activity(replicas=awake)
    startup = _span(max(startup_seconds, serverless.cold_start_timeout.seconds))
    until = _awake_until(asked, use, _span(seconds), startup, now)
    if until > now:
        return Activity(replicas=awake, until=until)
    limit = Duration.from_seconds(seconds)
    why = f"it was asked for last at {asked:%Y-%m-%dT%H:%M:%SZ}, and its idle timeout is {limit}"
    return Activity(replicas=0, because=_because(why, key))


def wake_hint(key: NamespacedName) -> str:
    """Say how a person asks for the Model *key*."""
    where = f"{key.name} -n {key.namespace}"
    return (
        f"wake it with `flexinfer wake {where}` or "
        f"`kubectl annotate mdl/{where} {names.ACTIVATE_ANNOTATION}=now --overwrite`"
    )


def _awake_until(
    asked: datetime, use: Use, idle: timedelta, startup: timedelta, now: datetime
) -> datetime:
    # When a start that this very request led to has ended, even if it took all the time it may.
    latest = asked + idle + 2 * startup
    ends = [asked + idle]
    if (ready := _at(use.ready_since, now)) is not None:
        ends.append(min(ready, latest) + idle)
    if (loading := _at(use.loading_since, now)) is not None:
        step = max(loading, _at(use.progress_at, now) or loading)
        ends.append(min(min(step, loading + startup) + startup, latest))
    return max(ends)


def _at(time: datetime | None, now: datetime) -> datetime | None:
    """Return *time* in UTC between 1970 and *now*, whatever somebody's clock wrote."""
    if time is None:
        return None
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return max(_EARLIEST, min(aware, now)).astimezone(UTC)


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, _LONGEST.total_seconds()))


def _because(why: str, key: NamespacedName) -> str:
    return f"No replica is wanted: {why}; {wake_hint(key)}"
