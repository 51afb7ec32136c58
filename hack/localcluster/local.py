# SPDX-License-Identifier: Apache-2.0
"""The control plane of this machine, simulated GPU nodes, and FlexInfer under its own rights."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.envtest.behaviour import LOCAL_IMAGES
from flexinfer.envtest.controlplane import ControlPlane
from flexinfer.envtest.ports import LOOPBACK, free_ports
from flexinfer.errors import FlexInferError
from hack.localcluster import expectations, show
from hack.localcluster.processes import ManagerProcess
from hack.podrunner import process as podrunner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flexinfer.meta.envelope import Tree

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "flexinfer-system"
SERVICE_ACCOUNT = "flexinfer-controller-manager"
EXPECTATIONS = Path(__file__).with_name("expectations.yaml")
NODES = (
    ("nvidia-h100", "zone-a"),
    ("nvidia-h100", "zone-b"),
    ("amd-mi300", "zone-a"),
    ("cpu", "zone-a"),
)
VOLUMES_PER_NODE = 4
# Half of the hour that a token is valid for, as a kubelet does it; sooner after a failure.
RENEW_SECONDS = 1800.0
_RENEW_AGAIN_SECONDS = 30.0
SAMPLES_WITHIN = 120.0
# The manager's image by which the pod runner runs this checkout's `flexinfer`.
LOCAL_IMAGE = f"{LOCAL_IMAGES}flexinfer:dev"


def step(text: str) -> None:
    """Tell the person who waits what is being done."""
    print(f"==> {text}", flush=True)


@contextmanager
def cluster() -> Iterator[ControlPlane]:
    """Run a control plane with nodes, a pod runner, CRDs and roles, but no FlexInfer yet."""
    step("Starting a control plane")
    with ControlPlane.start() as plane:
        for profile, zone in NODES:
            node = plane.add_node(profile, zone=zone)
            for _ in range(VOLUMES_PER_NODE):
                plane.add_volume(node)
        step("Installing CRDs and roles")
        install(plane)
        _start_hub(plane)
        with podrunner.running(plane):
            yield plane


def _start_hub(plane: ControlPlane) -> None:
    """Serve the stand-in of the model hub, from which the Jobs of caches fetch."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "hack.hub", f"--port={port}"]
    plane.processes.start("hub", command, env={"PYTHONPATH": str(ROOT)})
    _hub_file(plane).write_text(f"http://{LOOPBACK}:{port}")


def _hub_file(plane: ControlPlane) -> Path:
    return plane.layout.folder / "hub-url"


def install(plane: ControlPlane) -> None:
    """Install CRDs and roles, for managers that run outside the cluster."""
    plane.kubectl("apply", "--server-side", "-k", str(ROOT / "config/overlays/outside"))
    plane.wait_established("models.ai.flexinfer")


@contextmanager
def service_account(plane: ControlPlane) -> Iterator[Path]:
    """Write the manager's service account to a folder, and keep its token fresh."""
    folder = plane.layout.folder / "serviceaccount"
    plane.write_service_account(folder, NAMESPACE, SERVICE_ACCOUNT)
    ended = threading.Event()

    def renew() -> None:
        wait = RENEW_SECONDS
        while not ended.wait(wait):
            try:
                plane.write_service_account(folder, NAMESPACE, SERVICE_ACCOUNT)
                wait = RENEW_SECONDS
            except FlexInferError as error:
                step(f"The manager's token was not renewed and is tried again: {error}")
                wait = _RENEW_AGAIN_SECONDS

    renewer = threading.Thread(target=renew, name="token-renewer", daemon=True)
    renewer.start()
    try:
        yield folder
    finally:
        ended.set()
        renewer.join()


def prepare(plane: ControlPlane, folder: Path, *, name: str = "manager") -> ManagerProcess:
    """Return the manager, not started yet, as the service account in *folder*."""
    credentials = (f"--service-account-dir={folder}", f"--server={plane.url}")
    environment = {"DEFAULT_FETCH_IMAGE": LOCAL_IMAGE}
    if _hub_file(plane).exists():
        environment["HF_ENDPOINT"] = _hub_file(plane).read_text()
    return ManagerProcess.prepare(plane.processes, credentials, name=name, environment=environment)


@contextmanager
def manager(plane: ControlPlane) -> Iterator[ManagerProcess]:
    """Run the manager with exactly the rights of `config/rbac`."""
    with service_account(plane) as folder:
        process = prepare(plane, folder)
        process.start("--log-format=json")
        process.wait_ready()
        try:
            yield process
        finally:
            plane.processes.stop("manager", grace=40.0)


def models(plane: ControlPlane) -> Sequence[Tree]:
    """Return the models of the default namespace by name."""
    answer = plane.admin.get("/apis/ai.flexinfer/v1alpha2/namespaces/default/models")
    items: list[Tree] = answer["items"]
    return sorted(items, key=lambda item: str(item["metadata"]["name"]))


def run(*, once: bool) -> int:
    """Show the samples reach their states; return 1 when one did not.

    With *once* that is all; else stay until Ctrl-C.
    """
    lacking: list[str] = []
    with ExitStack() as stack:
        plane = stack.enter_context(cluster())
        began = time.monotonic()
        step("Starting the manager")
        process = stack.enter_context(manager(plane))
        step("Applying the samples")
        plane.kubectl("apply", "--server-side", "-k", str(ROOT / "config/samples"))
        for stage in expectations.load(EXPECTATIONS):
            _wake(plane, stage.wake)
            lacking = show.follow(
                lambda: models(plane),
                stage.states,
                within=SAMPLES_WITHIN,
                check=plane.processes.check,
            )
            if lacking:
                break
        if lacking:
            print(f"Not reached within {SAMPLES_WITHIN:g} s:", *lacking, sep="\n  ")
            print(f"The manager's log ends with:\n{_tail(process.log)}")
            if once:
                return 1
        else:
            step(f"Every sample is as expected after {time.monotonic() - began:.0f} s")
        if not once:
            _explain(plane, process)
            show.watch(lambda: models(plane), check=plane.processes.check)
        return 0


def _wake(plane: ControlPlane, names: Sequence[str]) -> None:
    if not names:
        return
    step(f"Waking {' and '.join(names)}")
    command = [str(Path(sys.executable).with_name("flexinfer")), "wake", *names]
    flags = ["--namespace=default", f"--kubeconfig={plane.kubeconfig_path}"]
    subprocess.run([*command, *flags], check=True, timeout=60, stdout=subprocess.DEVNULL)


def _tail(log: Path, *, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _explain(plane: ControlPlane, process: ManagerProcess) -> None:
    print(f"""
Use it from another terminal:
  export KUBECONFIG={plane.kubeconfig_path} PATH={ROOT}/.venv/bin:$PATH
  export PROBES=http://127.0.0.1:{process.probe_port} METRICS=http://127.0.0.1:{process.metrics_port}
  kubectl get mdl                      # what you see below
  kubectl get mdl -o wide; kubectl get pods -o wide
  kubectl edit mdl llama-chat          # change it and watch
  flexinfer wake gemma-idle --wait
  curl -s "$PROBES/readyz?verbose"; curl -s "$METRICS/metrics"
  tail -f {process.log}
  tail -f {plane.layout.folder}/pod-runner/*.log   # what containers of {LOCAL_IMAGES} say
Ctrl-C ends all of it.
""")
