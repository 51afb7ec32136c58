# SPDX-License-Identifier: Apache-2.0
"""A cluster that is already there: install CRDs and roles, and run the manager from here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.envtest.processes import Processes
from flexinfer.errors import FlexInferError
from hack.localcluster import show
from hack.localcluster.local import ROOT, SAMPLES_WITHIN, step
from hack.localcluster.processes import ManagerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flexinfer.meta.envelope import Tree

_KUBECTL = str(Path(sys.executable).with_name("kubectl"))
_ESTABLISHED_WITHIN = 30.0
_TIMEOUT = 120.0  # seconds: the longest kubectl command here waits 30 by itself


class AttachError(FlexInferError):
    """Report a cluster that cannot be used, with the cure."""


def kubectl(*args: str, context: str) -> str:
    """Run kubectl in *context* and return what it printed; raise AttachError when it fails."""
    done = _run_kubectl("--context", context, *args)
    if done.returncode != 0:
        raise AttachError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def _run_kubectl(*args: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [_KUBECTL, *args], capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise AttachError(f"kubectl {' '.join(args)}: no end within {_TIMEOUT:g} s") from error


def current_context() -> str:
    """Return the name of kubectl's current context; raise AttachError when there is none."""
    done = _run_kubectl("config", "current-context")
    if done.returncode != 0:
        raise AttachError(
            "There is no current kubectl context: set one with `kubectl config use-context`, "
            "or run without CLUSTER for a local control plane."
        )
    return done.stdout.strip()


def run(*, context: str, samples: bool, once: bool) -> int:
    """Run the manager against *context*; the samples only when *samples* is set."""
    step(f"Installing CRDs and roles into {context}")
    kubectl("apply", "--server-side", "-k", str(ROOT / "config/overlays/outside"), context=context)
    _wait_established(context)
    with (
        tempfile.TemporaryDirectory(prefix="flexinfer-run-") as logs,
        Processes(Path(logs)) as processes,
    ):
        step("Starting the manager")
        process = ManagerProcess.prepare(
            processes, [f"--kubeconfig={_kubeconfigs()}", f"--context={context}"]
        )
        process.start("--log-format=json")
        process.wait_ready()
        step(f"The manager is ready: http://127.0.0.1:{process.probe_port}/readyz?verbose")
        try:
            return _follow(process, context=context, samples=samples, once=once)
        finally:
            processes.stop("manager", grace=40.0)


def _wait_established(context: str) -> None:
    """Wait until Models are served; kubectl fails at once on a kind without conditions yet."""
    wait = ("wait", "--for=condition=Established", "crd/models.ai.flexinfer", "--timeout=30s")
    deadline = time.monotonic() + _ESTABLISHED_WITHIN
    while True:
        try:
            kubectl(*wait, context=context)
        except AttachError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _follow(process: ManagerProcess, *, context: str, samples: bool, once: bool) -> int:
    def models() -> Sequence[Tree]:
        answer = kubectl("get", "mdl", "--all-namespaces", "-o", "json", context=context)
        items: list[Tree] = json.loads(answer)["items"]
        return items

    lacking: list[str] = []
    if samples:
        kubectl("apply", "--server-side", "-k", str(ROOT / "config/samples"), context=context)
        check = process.processes.check
        lacking = show.follow_any(models, within=SAMPLES_WITHIN, check=check)
        if lacking:
            print(f"Not reached within {SAMPLES_WITHIN:g} s:", *lacking, sep="\n  ")
    if once:
        return 1 if lacking else 0
    print(f"The manager's log: {process.log}\nCtrl-C ends the manager; what it made stays.")
    show.watch(models, check=process.processes.check)
    return 0


def _kubeconfigs() -> str:
    """Return the files that kubectl reads, as `KUBECONFIG` lists them."""
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube/config")
