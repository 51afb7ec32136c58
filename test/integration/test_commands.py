# SPDX-License-Identifier: Apache-2.0
"""The commands that a newcomer types do what the README says, on real control planes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from flexinfer.envtest.controlplane import ControlPlane
from flexinfer.envtest.eventually import eventually_sync
from hack.localcluster import local
from hack.localcluster.processes import http_get

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.meta.envelope import Tree

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
IMAGE = "registry.example/flexinfer:1.2.3"
PODS = f"/api/v1/namespaces/{local.NAMESPACE}/pods"
OK = 200


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane.start() as running:
        running.add_node("cpu")
        yield running


def make(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run make as a person would; every variable that steers it is the caller's."""
    steering = {"CLUSTER", "ONCE", "SAMPLES", "KUBECONFIG", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    inherited = {key: value for key, value in os.environ.items() if key not in steering}
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        env={**inherited, **env},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def succeed(plane: ControlPlane, *words: str, **env: str) -> str:
    result = make(*words, KUBECONFIG=str(plane.kubeconfig_path), **env)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def crds(plane: ControlPlane) -> list[str]:
    listing = plane.admin.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
    return [item["metadata"]["name"] for item in listing["items"]]


def test_install_and_uninstall_bring_and_take_the_kinds(plane: ControlPlane) -> None:
    succeed(plane, "install")
    succeed(plane, "install")
    assert "models.ai.flexinfer" in crds(plane)
    succeed(plane, "uninstall")
    eventually_sync(lambda: "models.ai.flexinfer" not in crds(plane))
    succeed(plane, "uninstall")


def test_the_pod_that_deploy_makes_is_a_manager_that_answers_its_probes(
    plane: ControlPlane, tmp_path: Path
) -> None:
    succeed(plane, "deploy", f"IMG={IMAGE}")
    try:
        pod = eventually_sync(lambda: plane.admin.get(PODS)["items"][0], within=30)
        container = pod["spec"]["containers"][0]
        assert container["image"] == IMAGE
        plane.write_service_account(
            tmp_path, pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
        )
        start(plane, pod, tmp_path)
        try:
            for probe in ("livenessProbe", "readinessProbe"):
                url = probe_url(container, probe)
                eventually_sync(lambda at=url: http_get(at)[0] == OK, within=30)  # type: ignore[misc] # bound early on purpose
        finally:
            plane.processes.stop("deployed-manager", grace=40.0)
    finally:
        succeed(plane, "undeploy", f"IMG={IMAGE}")
    eventually_sync(lambda: "models.ai.flexinfer" not in crds(plane))


def start(plane: ControlPlane, pod: Tree, folder: Path) -> None:
    """Start what the container would: its arguments and its environment, and where it is."""
    container = pod["spec"]["containers"][0]
    environment = [f"{entry['name']}={value_of(entry, pod)}" for entry in container["env"]]
    plane.processes.start(
        "deployed-manager",
        [
            "/usr/bin/env",
            *environment,
            str(BIN / "flexinfer"),
            *container["args"],
            f"--service-account-dir={folder}",
            f"--server={plane.url}",
        ],
    )


def value_of(entry: Tree, pod: Tree) -> str:
    if "valueFrom" not in entry:
        return str(entry["value"])
    assert entry["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"
    return str(pod["metadata"]["namespace"])


def probe_url(container: Tree, probe: str) -> str:
    target = container[probe]["httpGet"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    return f"http://127.0.0.1:{ports.get(target['port'], target['port'])}{target['path']}"


def test_the_installer_is_all_that_deploy_applies(plane: ControlPlane) -> None:
    succeed(plane, "build-installer", f"IMG={IMAGE}")
    text = (ROOT / "dist/install.yaml").read_text()
    documents = list(yaml.safe_load_all(text))
    kinds = [document["kind"] for document in documents]
    assert {"Namespace", "CustomResourceDefinition", "ClusterRole", "Deployment"} <= set(kinds)
    deployment = next(document for document in documents if document["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == IMAGE
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["DEFAULT_FETCH_IMAGE"] == IMAGE
    plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=without_rest(text))


def without_rest(text: str) -> str:
    """What needs neither the namespace nor the kinds to be there already."""
    whole = {"Namespace", "CustomResourceDefinition", "ClusterRole"}
    kept = [document for document in yaml.safe_load_all(text) if document["kind"] in whole]
    return yaml.safe_dump_all(kept)


def test_the_default_configuration_applied_twice_changes_nothing_and_goes_whole(
    plane: ControlPlane,
) -> None:
    default = str(ROOT / "config/default")
    plane.kubectl("apply", "--server-side", "-k", default)
    plane.wait_established("models.ai.flexinfer")
    before = versions(plane)
    plane.kubectl("apply", "--server-side", "-k", default)
    plane.kubectl("diff", "--server-side", "-k", default)  # fails when there is a difference
    assert versions(plane) == before
    plane.kubectl("delete", "--wait=true", "--timeout=90s", "-k", default)
    assert "models.ai.flexinfer" not in crds(plane)
    names = [item["metadata"]["name"] for item in plane.admin.get("/api/v1/namespaces")["items"]]
    assert local.NAMESPACE not in names


def versions(plane: ControlPlane) -> dict[str, str]:
    """The generation of what is specified, and the version of what has none."""
    listing = plane.kubectl("get", "-o", "json", "-k", str(ROOT / "config/default"))
    return {
        f"{item['kind']}/{item['metadata']['name']}": str(
            item["metadata"].get("generation", item["metadata"]["resourceVersion"])
        )
        for item in json.loads(listing)["items"]
    }


def test_the_whole_of_make_run_reaches_every_expected_state() -> None:
    result = make("run", ONCE="1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Every sample is as expected" in result.stdout


def test_the_manager_runs_from_here_against_the_current_context(
    plane: ControlPlane, tmp_path: Path
) -> None:
    # As kubectl reads it: several files, of which the first has no context.
    empty = tmp_path / "empty"
    empty.write_text("apiVersion: v1\nkind: Config\n")
    result = make("run", CLUSTER="current", ONCE="1", KUBECONFIG=f"{empty}:{plane.kubeconfig_path}")
    assert result.returncode == 0, result.stdout + result.stderr
    output = result.stdout
    assert "The manager is ready" in output
    assert "models.ai.flexinfer" in crds(plane)
    assert plane.admin.get("/apis/ai.flexinfer/v1alpha2/models")["items"] == []
    succeed(plane, "uninstall")


def test_without_a_context_the_run_says_how_to_get_one(tmp_path: Path) -> None:
    empty = tmp_path / "config"
    empty.write_text("apiVersion: v1\nkind: Config\n")
    result = make("run", CLUSTER="current", KUBECONFIG=str(empty))
    assert result.returncode != 0
    assert "kubectl config use-context" in result.stderr


def test_an_unknown_cluster_is_refused_with_the_choices() -> None:
    result = make("run", CLUSTER="mars")
    assert result.returncode != 0
    assert "use local, kind or current" in result.stderr


def test_a_switch_that_is_neither_on_nor_off_is_refused() -> None:
    result = make("run", ONCE="yes")
    assert result.returncode != 0
    assert "ONCE=yes is not known: use ONCE=1" in result.stderr


@pytest.mark.parametrize("target", ["kind-up", "docker-build"])
def test_without_a_container_engine_one_sentence_says_so(target: str, tmp_path: Path) -> None:
    # A client that has no engine behind it, as on this very machine.
    for client in ("docker", "podman", "nerdctl"):
        (tmp_path / client).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / client).chmod(0o755)
    result = make(target, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert result.returncode != 0
    assert "No container engine answers" in result.stderr
    assert len([line for line in result.stderr.splitlines() if "make" not in line]) == 1
