# SPDX-License-Identifier: Apache-2.0
"""The commands and manifests of the pages do what the pages say, on a local cluster.

Each section is followed from its first block to its last in a namespace of its own.
`hack.docpages` says which blocks are run, and how output is compared.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from flexinfer.envtest.eventually import eventually_sync
from flexinfer.envtest.ports import LOOPBACK
from hack import docpages
from hack.localcluster import local

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flexinfer.envtest.controlplane import ControlPlane
    from hack.docpages import Block, Section

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("user/operations.md", "CONFIGURATION.md", "dev/release.md")
# Longer than any --timeout of the pages.
TIMEOUT = 150.0
OUTPUT_WITHIN = 60.0


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


SECTIONS = [
    pytest.param(page, section, id=f"{page}: {section.title}")
    for page in PAGES
    for section in docpages.sections(text_of(page))
    if any(block.is_run for block in section.blocks)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Somebody who follows a page: with kubectl set to a namespace, and the manager's addresses."""

    plane: ControlPlane
    environment: dict[str, str]

    def follow(self, page: str, blocks: Sequence[Block]) -> None:
        for block, after in zip(blocks, (*blocks[1:], None), strict=True):
            where = f"docs/{page}:{block.line}"
            if block.words[:1] == ("yaml",) and block.is_run:
                dry = ["--dry-run=server"] if "check" in block.words else []
                self.run(where, f"kubectl apply --server-side {' '.join(dry)} -f -", block.text)
            elif block.is_run:
                expected = after.text if after is not None and after.is_output else ""
                self.expect(where, block.text, expected)

    def expect(self, where: str, script: str, expected: str) -> None:
        """Run *script* once, or if it shows something until it shows *expected*."""
        if not expected:
            self.run(where, script)
            return

        def shows() -> None:
            output = self.run(where, script)
            assert docpages.missing(expected, output) == [], f"{where} prints:\n{output}"

        eventually_sync(shows, within=OUTPUT_WITHIN, every=0.5)

    def run(self, where: str, script: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=ROOT,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, f"{where} fails:\n{script}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """FlexInfer as `make deploy` leaves it; the manager that works is a process of this machine."""
    with local.cluster() as plane, local.manager(plane) as process:
        plane.kubectl("apply", "--server-side", "-k", str(ROOT / "config/default"))
        for node in plane.admin.get("/api/v1/nodes")["items"]:
            for _ in range(4):  # for the claims of caches
                plane.add_volume(node["metadata"]["name"], size="5Gi")
        kubeconfig = tmp_path_factory.mktemp("docs") / "kubeconfig"
        kubeconfig.write_text(plane.kubeconfig_path.read_text())
        steering = {"CLUSTER", "ONCE", "SAMPLES", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
        inherited = {key: value for key, value in os.environ.items() if key not in steering}
        yield Reader(
            plane=plane,
            environment={
                **inherited,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "KUBECONFIG": str(kubeconfig),
                "METRICS": f"http://{LOOPBACK}:{process.metrics_port}",
                "PROBES": f"http://{LOOPBACK}:{process.probe_port}",
            },
        )


@pytest.fixture
def at_namespace(reader: Reader) -> Iterator[Reader]:
    """The reader in a fresh namespace; afterwards the cluster is as before."""
    name = f"docs-{secrets.token_hex(4)}"
    admin = reader.plane.admin
    head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    admin.create("/api/v1/namespaces", head)
    reader.plane.wait_service_account(name)
    reader.run("before", f"kubectl config set-context --current --namespace={name}")
    yield reader
    reader.run(
        "after", "kubectl uncordon --selector=kubernetes.io/hostname && kubectl delete mdl --all"
    )
    admin.delete(f"/api/v1/namespaces/{name}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("page", "section"), SECTIONS)
def test_a_section_can_be_followed(at_namespace: Reader, page: str, section: Section) -> None:
    at_namespace.follow(page, section.blocks)


def test_the_metrics_of_the_operator_are_all_listed_and_all_there(reader: Reader) -> None:
    output = reader.run("metrics", 'curl -s "$METRICS/metrics"')
    there = set(re.findall(r"^# TYPE (flexinfer_\w+)", output, re.MULTILINE))
    rows = docpages.table(text_of("user/operations.md"), "Metrics of the operator")
    listed = {docpages.code(row["metric"])[0] for row in rows}
    assert listed == there


def test_every_manifest_of_the_pages_can_be_read() -> None:
    for page in PAGES:
        for block in docpages.blocks(text_of(page)):
            if block.words[:1] == ("yaml",):
                documents = list(yaml.safe_load_all(block.text))
                assert all(document["kind"] for document in documents), f"{page}:{block.line}"
