# SPDX-License-Identifier: Apache-2.0
"""A program of controllers: flags, credentials, logs, metrics and a manager around `set_up`.

```python
def set_up(manager: Manager) -> None:
    controller_for(manager, Widget).complete(WidgetReconciler(manager.client))

if __name__ == "__main__":
    run(set_up)
```

`run` is a process of its own; `running` is a manager in the background of a block, for tests.
What a process does not need is not imported, so that `--help` stays fast.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio
from cyclopts import App, Parameter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import NoReturn

    from flexinfer.client.auth import Credentials
    from flexinfer.client.transport import Transport
    from flexinfer.leaderelection import LeaderElectionOptions
    from flexinfer.manager import Manager, ManagerOptions

    SetUp = Callable[[Manager], object]

__all__ = ["Flags", "execute", "run", "running"]

_MISUSE = 2
# What the framework calls a setting, and the flag that sets it.
_FLAGS = {
    "cache_sync_timeout": "--cache-sync-timeout",
    "grace": "--graceful-shutdown-timeout",
    "lease_duration": "--leader-elect-lease-duration",
    "metrics_address": "--metrics-bind-address",
    "probe_address": "--health-probe-bind-address",
    "renew_deadline": "--leader-elect-renew-deadline",
    "retry_period": "--leader-elect-retry-period",
    "workers": "--max-concurrent-reconciles",
}
_SETTING = re.compile(rf"\b({'|'.join(_FLAGS)})\b")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """The settings of a program of controllers, named as controller-runtime's are."""

    metrics_bind_address: str = ":8080"
    """Where /metrics is served: host:port, :port, or 0 for off"""
    health_probe_bind_address: str = ":8081"
    """Where /healthz and /readyz are served: host:port, :port, or 0 for off"""
    max_concurrent_reconciles: int = 1
    """How many objects of one kind are worked on at once"""
    graceful_shutdown_timeout: float = 30.0
    """Seconds that running reconciles have at the stop"""
    cache_sync_timeout: float = 120.0
    """Seconds until the start fails when a kind cannot be listed"""
    leader_elect: bool = False
    """Work only while this process leads; others of the same election stand by"""
    leader_election_id: str = ""
    """The name of the Lease by which a leader is elected; the program's name unless given"""
    leader_election_namespace: str | None = None
    """The namespace of the Lease; that of POD_NAMESPACE or of the service account unless given"""
    leader_elect_lease_duration: float = 15.0
    """Seconds after which a leader that died is followed"""
    leader_elect_renew_deadline: float = 10.0
    """Seconds after which a leader that cannot renew gives up"""
    leader_elect_retry_period: float = 2.0
    """Seconds between two renewals"""
    kubeconfig: str | None = None
    """A kubeconfig file, for a manager outside the cluster; KUBECONFIG alone is not read"""
    context: str | None = None
    """A context of the kubeconfig; the current one unless given"""
    service_account_dir: Path | None = None
    """A folder with token, ca.crt and namespace, as pods have it; goes with --server"""
    server: str | None = None
    """The API server's URL; goes with --service-account-dir"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is written"""
    log_format: Literal["auto", "json", "console"] = "auto"
    """How a line looks; auto is console on a terminal and JSON elsewhere"""


def run(
    set_up: SetUp,
    *,
    name: str = "",
    version: str = "",
    argv: Sequence[str] | None = None,
) -> NoReturn:
    """Be the whole of a program: read its flags, run until a signal, and exit.

    *set_up* adds controllers to the manager it is given. *name* is the script's unless given, and
    *argv* what follows it on the command line. The exit code is 0 after SIGTERM and SIGINT, 1 for
    a failure, 2 for misuse; each is one sentence on standard error. `--help` lists the flags, and
    `--version` says *version*; without one it says FlexInfer's, and that it is FlexInfer's.
    """
    name = name or Path(sys.argv[0]).stem

    def start(flags: Flags | None = None) -> int:
        return execute(name, set_up, flags or Flags())

    start.__annotations__ = {"flags": Flags | None, "return": int}
    app = App(
        name=name,
        help="Run the controllers until SIGTERM or SIGINT.",
        version=version or _framework_version,
    )
    app.default(start)
    sys.exit(app(argv))


def execute(name: str, set_up: SetUp, flags: Flags) -> int:
    """Do what `run` does once the flags are read; return the exit code."""
    from flexinfer import log, loop
    from flexinfer.errors import ConfigurationError, FlexInferError

    try:
        log.configure(level=flags.log_level, form=log.LogFormat(flags.log_format))
        loop.run(_run, name, set_up, flags)
    except ConfigurationError as error:
        print(f"{name}: {_with_flags(str(error))}", file=sys.stderr)
        return _MISUSE
    except FlexInferError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except ExceptionGroup as group:
        ours, others = group.split(FlexInferError)
        if ours is None or others is not None:
            raise
        for failure in ours.exceptions:
            print(f"{name}: {failure}", file=sys.stderr)
        return 1
    return 0


@asynccontextmanager
async def running(
    set_up: SetUp, cluster: Credentials | Path, *, options: ManagerOptions | None = None
) -> AsyncIterator[Manager]:
    """Run a manager in the background of the block, and stop it in order at its end.

    *cluster* is a kubeconfig file, or credentials. The block begins before the caches have
    synced. Neither metrics nor probes are served and no signal is heeded, unless *options* say
    so; metrics are counted in those of the process. What makes the manager fail cancels the block
    and is raised in an ExceptionGroup; ConfigurationError for a kubeconfig that cannot be used.
    """
    from flexinfer.client.kubeconfig import kubeconfig
    from flexinfer.client.transport import Transport
    from flexinfer.manager import Manager, ManagerOptions

    options = options or ManagerOptions(metrics_address="0", probe_address="0", signals=())
    credentials = await kubeconfig(str(cluster)) if isinstance(cluster, Path) else cluster
    async with Transport(credentials) as transport:
        manager = Manager(transport, options=options)
        set_up(manager)
        async with anyio.create_task_group() as group:
            await group.start(manager.run)
            yield manager
            manager.stop()


def _framework_version() -> str:
    from importlib.metadata import version

    return f"flexinfer {version('flexinfer')}"


def _with_flags(text: str) -> str:
    """Say the flags where the framework says its settings."""
    return _SETTING.sub(lambda found: _FLAGS[found[0]], text)


async def _credentials(flags: Flags) -> Credentials:
    """Choose who we are; raise ConfigurationError for flags that contradict each other."""
    from flexinfer.client import auth
    from flexinfer.errors import ConfigurationError

    if (flags.service_account_dir is None) != (flags.server is None):
        raise ConfigurationError("--service-account-dir and --server go together: give both")
    if flags.server is not None and (flags.kubeconfig is not None or flags.context is not None):
        raise ConfigurationError(
            "--kubeconfig and --context cannot go with --service-account-dir and --server: "
            "give one pair"
        )
    if flags.service_account_dir is not None and flags.server is not None:
        return auth.ServiceAccountCredentials(flags.service_account_dir, flags.server)
    if flags.kubeconfig is not None or flags.context is not None:
        from flexinfer.client.kubeconfig import kubeconfig

        return await kubeconfig(flags.kubeconfig, context=flags.context)
    return auth.in_cluster()


def election(name: str, flags: Flags, credentials: Credentials) -> LeaderElectionOptions | None:
    """Return the settings of the election, None without one."""
    from flexinfer.client.auth import ServiceAccountCredentials
    from flexinfer.errors import ConfigurationError
    from flexinfer.leaderelection import LeaderElectionOptions

    if not flags.leader_elect:
        return None
    namespace = flags.leader_election_namespace or os.environ.get("POD_NAMESPACE")
    if not namespace and isinstance(credentials, ServiceAccountCredentials):
        namespace = credentials.namespace
    if not namespace:
        raise ConfigurationError(
            "no namespace for the Lease: give --leader-election-namespace, or set POD_NAMESPACE"
        )
    return LeaderElectionOptions(
        name=flags.leader_election_id or name,
        namespace=namespace,
        lease_duration=flags.leader_elect_lease_duration,
        renew_deadline=flags.leader_elect_renew_deadline,
        retry_period=flags.leader_elect_retry_period,
    )


async def _run(name: str, set_up: SetUp, flags: Flags) -> None:
    from flexinfer.client.transport import Transport
    from flexinfer.controller import ControllerOptions
    from flexinfer.leaderelection import Leadership
    from flexinfer.manager import Manager, ManagerOptions
    from flexinfer.metrics import RestClientMetrics

    options = ManagerOptions(
        metrics_address=flags.metrics_bind_address,
        probe_address=flags.health_probe_bind_address,
        grace=flags.graceful_shutdown_timeout,
        cache_sync_timeout=flags.cache_sync_timeout,
        controller=ControllerOptions(workers=flags.max_concurrent_reconciles),
    )
    credentials = await _credentials(flags)
    metrics = RestClientMetrics(credentials.server.partition("://")[2])
    chosen = election(name, flags, credentials)
    leadership = None if chosen is None else Leadership(chosen, partial(_own, flags, chosen))
    async with Transport(
        credentials,
        user_agent=_user_agent(chosen),
        observe=metrics.answered,
        observe_wait=metrics.waited,
    ) as transport:
        process = Manager(transport, options=options, leadership=leadership)
        set_up(process)
        await process.run()


@asynccontextmanager
async def _own(flags: Flags, election: LeaderElectionOptions) -> AsyncIterator[Transport]:
    """Give the election a transport, with credentials that no other thread uses."""
    from flexinfer.client.transport import Transport

    user_agent = f"{_user_agent(election)} leader-election"
    async with Transport(await _credentials(flags), user_agent=user_agent) as transport:
        yield transport


def _user_agent(election: LeaderElectionOptions | None) -> str:
    """Return what the API server's audit log tells the candidates apart by."""
    from flexinfer.client.transport import default_user_agent

    return default_user_agent() + ("" if election is None else f" ({election.identity})")
