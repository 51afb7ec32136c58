# SPDX-License-Identifier: Apache-2.0
"""`python -m hack.hub`: serve the stand-in until a signal; its URL is the first line."""

from __future__ import annotations

import argparse
import signal

import anyio

from hack.hub.server import HubServer

_SCENARIOS = ("faults", "calm")


async def serve(port: int, scenario: str) -> None:
    """Serve on *port*, 0 for a free one, until SIGTERM or SIGINT."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with HubServer.start(port=port, calm=scenario == "calm") as server:
            print(server.url, flush=True)
            async for _ in signals:
                return


def main() -> None:
    """Read the arguments and serve; misuse ends with 2."""
    parser = argparse.ArgumentParser(prog="python -m hack.hub", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="a free one unless given")
    parser.add_argument(
        "--scenario",
        choices=_SCENARIOS,
        default=_SCENARIOS[0],
        help="faults: as the catalog says; calm: every repository is in order",
    )
    arguments = parser.parse_args()
    anyio.run(serve, arguments.port, arguments.scenario)


main()
