# SPDX-License-Identifier: Apache-2.0
"""The runner as a whole: a manager with one controller, and the processes it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from flexinfer.client.direct import DirectClient
from flexinfer.controller import Controller, ControllerOptions
from flexinfer.handler import enqueue_mapped
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.source import Source
from flexinfer.workqueue import WorkQueue
from hack.podrunner.pod import Pod, may_be_ours
from hack.podrunner.reconciler import PodReconciler
from hack.podrunner.runtime import open_runtime
from hack.podrunner.starter import RunnerOptions, Starter
from hack.podrunner.volumes import Folders

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable
    from pathlib import Path

    from flexinfer.client.transport import Transport
    from flexinfer.meta.envelope import StoredObject
    from flexinfer.reconcile import Request

_NAME = "pod-runner"
_GRACE = 10.0  # seconds for running reconciles at the stop; a request may be under way
_WORKERS = 4


async def run(
    transport: Transport,
    folder: Path,
    *,
    namespace: str = "",
    options: RunnerOptions | None = None,
    signals: tuple[signal.Signals, ...] = (),
) -> None:
    """Run pods until one of *signals*, or until cancelled; every process has ended then.

    Everything lies under *folder*, which one runner at a time may keep. With a *namespace* only
    the pods of that one are run. Raises as `Manager.run` does, and ConfigurationError for a
    folder in use.
    """
    options = options or RunnerOptions()
    registry = CollectorRegistry()
    manager = Manager(
        transport,
        options=ManagerOptions(
            metrics_address="0", probe_address="0", grace=_GRACE, signals=signals
        ),
        registry=registry,
    )
    queue = WorkQueue["Request"](_NAME, registry=registry)
    folders = Folders(folder)
    starter = Starter(
        client=DirectClient(transport), folders=folders, options=options, enqueue=queue.add
    )
    reconciler = PodReconciler(
        client=manager.client, transport=transport, starter=starter, folders=folders
    )
    pods = manager.informers.informer(Pod.resource, namespace=namespace)
    manager.add(
        Controller(
            _NAME,
            reconciler,
            queue=queue,
            sources=[Source(pods, enqueue_mapped(_key))],
            options=ControllerOptions(workers=_WORKERS),
            registry=registry,
        )
    )
    async with open_runtime(
        folder, limit=options.processes, on_exit=starter.exited
    ) as starter.runtime:
        await manager.run()


def _key(stored: StoredObject) -> Iterable[Request]:
    return (stored.meta.key,) if may_be_ours(stored) else ()
