# SPDX-License-Identifier: Apache-2.0
"""Brings one pod nearer to its end: starts, restarts, reports, ends and removes.

Whatever happened, a run looks at the pod and at what the runner remembers of it, and does what is
missing. The end of a process queues its pod again.
"""

from __future__ import annotations

import shutil
import signal
import time
from datetime import datetime
from typing import TYPE_CHECKING

from flexinfer import log
from flexinfer.apply.status import StatusWriter
from flexinfer.errors import ConflictError, NotFoundError
from flexinfer.meta.envelope import encode
from flexinfer.reconcile import Result
from hack.podrunner import status
from hack.podrunner.pod import Pod
from hack.podrunner.record import PodRecord, now

if TYPE_CHECKING:
    from collections.abc import Callable

    from flexinfer.client.protocol import Client
    from flexinfer.client.transport import Transport
    from flexinfer.reconcile import Request
    from hack.podrunner.starter import Starter
    from hack.podrunner.volumes import Folders

FIELD_MANAGER = "pod-runner"
_log = log.get_logger(__name__)


class PodReconciler:
    """Run the pods of local images; *client* reads them from the cache."""

    def __init__(
        self,
        *,
        client: Client,
        transport: Transport,
        starter: Starter,
        folders: Folders,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._transport = transport
        self._starter = starter
        self._folders = folders
        self._clock = clock
        self._statuses = StatusWriter(client, field_manager=FIELD_MANAGER)
        self._records: dict[Request, PodRecord] = {}

    async def reconcile(self, request: Request) -> Result:
        """Do what is missing for one pod."""
        pod = await self._client.get(Pod, request)
        record = self._records.get(request)
        if record is not None and (pod is None or pod.metadata.uid != record.uid):
            for name in record.alive:
                await self._starter.signal(name, signal.SIGKILL)
            if record.alive:
                return Result()  # their ends come back here
            self._forget(request, record)
            record = None
        if pod is None or not pod.is_ours:
            return Result()
        if record is None:
            record = self._records[request] = PodRecord.of(pod)
        if pod.metadata.deletion_timestamp is not None:
            return await self._delete(pod, record)
        if pod.is_finished:
            # Somebody else may have said so, such as the garbage collector of a lost node.
            wait = await self._end(pod, record, grace=pod.spec.termination_grace_period_seconds)
        else:
            wait = await self._advance(pod, record)
        await self._report(pod, record)
        return Result(wait)

    def _forget(self, request: Request, record: PodRecord) -> None:
        del self._records[request]
        self._statuses.forget(Pod.resource, request)
        shutil.rmtree(self._folders.of_uid(record.uid), ignore_errors=True)

    async def _advance(self, pod: Pod, record: PodRecord) -> float | None:
        """Start what should run; return in how many seconds there is more to do."""
        waits = [
            await self._starter.step(pod, container, record.containers[container.name])
            for container in pod.spec.containers
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    async def _delete(self, pod: Pod, record: PodRecord) -> Result:
        """End what runs within the grace period, then remove the object."""
        deadline = _time_of(pod.metadata.deletion_timestamp)
        # The API server adds the grace period to the time, in whole seconds.
        left = await self._end(pod, record, grace=(deadline - now()).total_seconds() + 1)
        if record.alive:
            return Result(left)
        await self._report(pod, record)
        if not record.is_removed:
            await self._remove(pod)
            record.is_removed = True
        return Result()

    async def _end(self, pod: Pod, record: PodRecord, *, grace: float) -> float | None:
        """Ask what runs to end, and kill it after *grace* seconds; return how many are left."""
        if not record.alive:
            return None
        kill_at = self._clock() + grace
        if record.kill_at is None:
            _log.info("ending a pod", pod=str(pod.key), grace=grace)
            for name in record.alive:
                await self._starter.signal(name, signal.SIGTERM)
        record.kill_at = kill_at if record.kill_at is None else min(record.kill_at, kill_at)
        left = record.kill_at - self._clock()
        if left > 0:
            return left
        for name in record.alive:
            await self._starter.signal(name, signal.SIGKILL)
        return None

    async def _report(self, pod: Pod, record: PodRecord) -> None:
        intent = status.intent(pod, record, at=now())
        await self._statuses.write(Pod.resource, pod.metadata, intent)

    async def _remove(self, pod: Pod) -> None:
        """Take the object away; while it has finalizers it stays until they are gone."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": pod.metadata.uid},
        }
        try:
            await self._transport.request(
                "DELETE", Pod.resource.object_path(pod.key), body=encode(options)
            )
        except (NotFoundError, ConflictError):
            _log.info("the pod is gone already", pod=str(pod.key))


def _time_of(text: str | None) -> datetime:
    return now() if text is None else datetime.fromisoformat(text)
