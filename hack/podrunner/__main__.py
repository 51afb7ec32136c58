# SPDX-License-Identifier: Apache-2.0
"""`python -m hack.podrunner`: run the pods of local images until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from flexinfer import log
from flexinfer.client.auth import ServiceAccountCredentials
from flexinfer.client.kubeconfig import kubeconfig
from flexinfer.client.transport import Transport
from flexinfer.controller import innermost
from flexinfer.errors import FlexInferError
from hack.podrunner.backoff import Backoff
from hack.podrunner.runner import run
from hack.podrunner.starter import RunnerOptions

if TYPE_CHECKING:
    from flexinfer.client.auth import Credentials


def main() -> int:
    """Run until a signal; 0 then, 1 on failure."""
    arguments = _arguments()
    log.configure(form=log.LogFormat.JSON)
    try:
        anyio.run(_run, arguments)
    except (FlexInferError, ExceptionGroup) as error:
        cause = innermost(error)
        if not isinstance(cause, FlexInferError):
            raise
        print(f"podrunner: {cause}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="podrunner", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where everything lies")
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--kubeconfig", help="a kubeconfig with the rights of a kubelet")
    who.add_argument("--service-account-dir", type=Path, help="a folder as pods have it mounted")
    parser.add_argument("--server", help="the API server's URL; goes with --service-account-dir")
    parser.add_argument("--namespace", default="", help="run the pods of this one alone")
    parser.add_argument("--processes", type=int, default=16, help="how many containers at once")
    parser.add_argument("--retry", type=float, default=1.0, help="seconds between two tries")
    parser.add_argument("--backoff", type=float, default=10.0, help="seconds of the first back-off")
    arguments = parser.parse_args()
    if (arguments.service_account_dir is None) != (arguments.server is None):
        parser.error("--service-account-dir and --server go together: give both")
    return arguments


async def _run(arguments: argparse.Namespace) -> None:
    options = RunnerOptions(
        processes=arguments.processes,
        retry=arguments.retry,
        backoff=Backoff(first=arguments.backoff, most=30 * arguments.backoff),
    )
    async with Transport(await _credentials(arguments)) as transport:
        await run(
            transport,
            arguments.folder.absolute(),
            namespace=arguments.namespace,
            options=options,
            signals=(signal.SIGTERM, signal.SIGINT),
        )


async def _credentials(arguments: argparse.Namespace) -> Credentials:
    if arguments.kubeconfig is not None:
        return await kubeconfig(arguments.kubeconfig)
    return ServiceAccountCredentials(arguments.service_account_dir, arguments.server)


sys.exit(main())
