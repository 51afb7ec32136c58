# SPDX-License-Identifier: Apache-2.0
"""`python -m flexinfer.envtest`: a control plane to try things on, until Ctrl-C."""

from __future__ import annotations

import signal
import sys

from flexinfer.envtest.build import BinariesError
from flexinfer.envtest.controlplane import ControlPlane
from flexinfer.envtest.processes import ProcessError


def main() -> int:
    """Run a control plane until a signal and leave nothing behind; 1 when it does not start."""
    # `kill` and a closed terminal end it as Ctrl-C does, which a script's shell would hide from us.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with ControlPlane.start() as plane:
            print(f"export KUBECONFIG={plane.kubeconfig_path}", flush=True)  # noqa: T201 - a shell's
            print("# until Ctrl-C; nothing is left of it then", file=sys.stderr)  # noqa: T201
            while True:
                signal.pause()
    except KeyboardInterrupt:
        return 0
    except (BinariesError, ProcessError, AssertionError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - one sentence for a person
        return 1


if __name__ == "__main__":
    sys.exit(main())
