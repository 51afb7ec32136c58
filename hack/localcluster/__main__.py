# SPDX-License-Identifier: Apache-2.0
"""`make run`: settings come from the environment, as make hands them on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from flexinfer.errors import FlexInferError
from hack.localcluster import attached, local


def main() -> int:
    """Run the cluster that CLUSTER names; 0 on success and Ctrl-C, 1 on failure, 2 on misuse."""
    cluster = os.environ.get("CLUSTER") or "local"
    once, samples = _switch("ONCE"), _switch("SAMPLES")
    # `kill` and a closed terminal end it as Ctrl-C does, which a script's shell would hide from us.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        if cluster == "local":
            return local.run(once=once)
        if cluster == "kind":
            subprocess.run(["make", "-s", "kind-up"], cwd=local.ROOT, check=True)
            return attached.run(context="kind-flexinfer", samples=samples, once=once)
        if cluster == "current":
            context = attached.current_context()
            return attached.run(context=context, samples=samples, once=once)
    except KeyboardInterrupt:
        print("\nStopped.")
        return 0
    except (FlexInferError, subprocess.CalledProcessError) as error:
        if not isinstance(error, subprocess.CalledProcessError):  # kind-up has said why
            print(error, file=sys.stderr)
        return 1
    print(f"CLUSTER={cluster} is not known: use local, kind or current", file=sys.stderr)
    return 2


def _switch(name: str) -> bool:
    """Read a variable that is 1 or nothing; anything else is misuse."""
    value = os.environ.get(name, "")
    if value not in {"", "0", "1"}:
        print(f"{name}={value} is not known: use {name}=1", file=sys.stderr)
        sys.exit(2)
    return value == "1"


sys.exit(main())
