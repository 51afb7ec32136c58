# SPDX-License-Identifier: Apache-2.0
"""`flexinfer manager`: all controllers in one process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
from cyclopts import Parameter

if TYPE_CHECKING:
    from flexinfer.client.auth import Credentials
    from flexinfer.manager import ManagerOptions

_MISUSE = 2


def manager(
    *,
    metrics_bind_address: str = ":8080",
    health_probe_bind_address: str = ":8081",
    max_concurrent_reconciles: int = 4,
    graceful_shutdown_timeout: float = 30.0,
    cache_sync_timeout: float = 120.0,
    kubeconfig: Annotated[Path | None, Parameter(env_var="KUBECONFIG")] = None,
    context: str | None = None,
    service_account_dir: Path | None = None,
    server: str | None = None,
    log_level: Literal["debug", "info", "warning", "error"] = "info",
    log_format: Literal["auto", "json", "console"] = "auto",
) -> int:
    """Run the controllers until SIGTERM or SIGINT; a second signal ends it at once.

    In a pod no option is needed. Elsewhere name a kubeconfig, or a service-account folder and the
    API server. Default images of the backends come from variables such as DEFAULT_VLLM_IMAGE.

    Parameters
    ----------
    metrics_bind_address
        Where /metrics is served: host:port, :port, or 0 for off
    health_probe_bind_address
        Where /healthz and /readyz are served: host:port, :port, or 0 for off
    max_concurrent_reconciles
        How many objects of one kind are worked on at once
    graceful_shutdown_timeout
        Seconds that running reconciles have at the stop
    cache_sync_timeout
        Seconds until the start fails when a kind cannot be listed
    kubeconfig
        A kubeconfig file, for a manager outside the cluster
    context
        A context of the kubeconfig; the current one unless given
    service_account_dir
        A folder with token, ca.crt and namespace, as pods have it
    server
        The API server's URL; goes with --service-account-dir
    log_level
        The least severe level that is written
    log_format
        json, console, or auto: console on a terminal
    """
    from flexinfer import log
    from flexinfer.controller import ControllerOptions
    from flexinfer.errors import FlexInferError
    from flexinfer.manager import ManagerOptions

    try:
        log.set_up(level=log_level, log_format=log_format)
        options = ManagerOptions(
            metrics_address=metrics_bind_address,
            probe_address=health_probe_bind_address,
            grace=graceful_shutdown_timeout,
            cache_sync_timeout=cache_sync_timeout,
            controller=ControllerOptions(workers=max_concurrent_reconciles),
        )
        anyio.run(_run, options, kubeconfig, context, service_account_dir, server)
    except FlexInferError as error:
        from flexinfer.errors import ConfigurationError

        print(f"flexinfer manager: {error}", file=sys.stderr)
        return _MISUSE if isinstance(error, ConfigurationError) else 1
    return 0


async def _credentials(
    kubeconfig: Path | None, context: str | None, directory: Path | None, server: str | None
) -> Credentials:
    """Choose who we are; raise ConfigurationError for flags that contradict each other."""
    from flexinfer.client import auth
    from flexinfer.errors import ConfigurationError

    if directory is not None:
        if server is None:
            raise ConfigurationError("--service-account-dir needs --server, the API server's URL")
        return auth.ServiceAccountCredentials(directory, server)
    if server is not None:
        raise ConfigurationError("--server goes with --service-account-dir: give both or neither")
    if kubeconfig is not None or context is not None:
        from flexinfer.client.kubeconfig import kubeconfig as load

        return await load(None if kubeconfig is None else str(kubeconfig), context=context)
    return auth.in_cluster()


async def _run(
    options: ManagerOptions,
    kubeconfig: Path | None,
    context: str | None,
    directory: Path | None,
    server: str | None,
) -> None:
    from controllers.model import set_up
    from flexinfer.client.transport import Transport
    from flexinfer.manager import Manager
    from flexinfer.metrics import RestClientMetrics

    credentials = await _credentials(kubeconfig, context, directory, server)
    metrics = RestClientMetrics(credentials.server.partition("://")[2])
    async with Transport(credentials, observe=metrics.answered) as transport:
        process = Manager(transport, options=options)
        set_up(process)
        await process.run()
