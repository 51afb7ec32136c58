# SPDX-License-Identifier: Apache-2.0
"""The guide to the framework, followed as its reader would: outside the checkout, with the wheel.

The blocks of `docs/framework.md` are taken in their order. There are files, named behind their
language (a second block of a name goes on with it), and `sh start`, which goes on in the background
until the end of the page.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import zipfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from flexinfer.envtest.eventually import eventually_sync
from flexinfer.envtest.ports import LOOPBACK, free_ports
from hack import docpages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.envtest.controlplane import ControlPlane
    from hack.docpages import Block

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/framework.md").read_text(encoding="utf-8")
CODE, TESTS = "configmapcopy.py", "test_configmapcopy.py"
# Longer than any block takes: the slowest runs a control plane.
TIMEOUT = 200.0
OUTPUT_WITHIN = 60.0


FILES = docpages.files(PAGE)


@dataclass(slots=True)
class Author:
    """Somebody who follows the page in a folder of her own."""

    folder: Path
    environment: dict[str, str]
    written: set[str] = field(default_factory=set)

    def follow(self, page: str, programs: ExitStack) -> None:
        blocks = docpages.blocks(page)
        for block, after in zip(blocks, (*blocks[1:], None), strict=True):
            if block.file:
                self.write(block)
            elif block.words == ("sh", "start"):
                programs.enter_context(self.program(block.text))
            elif block.words == ("sh", "run"):
                expected = after.text if after is not None and after.is_output else ""
                self.expect(block, expected)
            elif block.words == ("sh",):
                assert block.text.startswith(docpages.NOT_RUN), f"line {block.line} says no reason"
            else:
                assert block.is_output, f"docs/framework.md:{block.line} is of no known kind"
            self.lend_packages()

    def write(self, block: Block) -> None:
        path = self.folder / block.file
        before = path.read_text(encoding="utf-8") + "\n\n" if block.file in self.written else ""
        path.write_text(f"{before}{block.text}\n", encoding="utf-8")
        self.written.add(block.file)

    def lend_packages(self) -> None:
        """Let a fresh virtual environment find our packages but FlexInfer, without a download."""
        for site in self.folder.glob(".venv/lib/python*/site-packages"):
            lent = self.folder / "lent"
            if lent.exists():
                return
            lent.mkdir()
            for package in Path(sysconfig.get_path("purelib")).iterdir():
                if not re.match(r"_*(editable|flexinfer|pip\b)|.*\.pth$", package.name):
                    (lent / package.name).symlink_to(package)
            (site / "lent.pth").write_text(f"{lent}\n")

    def expect(self, block: Block, expected: str) -> None:
        """Run *block* once, or if it shows something until it shows *expected*."""
        if not expected:
            self.run(block.line, block.text)
            return

        def shows() -> None:
            output = self.run(block.line, block.text)
            assert docpages.missing(expected, output) == [], f"line {block.line}:\n{output}"

        eventually_sync(shows, within=OUTPUT_WITHIN, every=0.5)

    def run(self, line: int, script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        where = f"docs/framework.md:{line}"
        assert done.returncode == 0, f"{where} fails:\n{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def program(self, command: str) -> Iterator[None]:
        """Run a program in the background; it has to end well on SIGTERM."""
        with (self.folder / "program.log").open("w+") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                yield
                process.send_signal(signal.SIGTERM)
                code = process.wait(timeout=60)
                log.seek(0)
                assert code == 0, log.read()
            finally:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(
        [*command, "--directory", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture
def author(tmp_path: Path, wheel: Path, control_plane: ControlPlane) -> Iterator[Author]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(control_plane.kubeconfig_path.read_text())
    metrics, probes = free_ports(2)
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    yield Author(
        tmp_path / "project",
        inherited
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "WHEEL": str(wheel),
            "KUBECONFIG": str(kubeconfig),
            "METRICS": f"{LOOPBACK}:{metrics}",
            "PROBES": f"{LOOPBACK}:{probes}",
        },
    )
    admin = control_plane.admin
    admin.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/configmapcopy")
    admin.delete("/apis/rbac.authorization.k8s.io/v1/clusterroles/configmapcopy")
    admin.delete("/api/v1/namespaces/default/serviceaccounts/configmapcopy")


@pytest.mark.timeout(600)
def test_the_guide_can_be_followed_word_for_word(author: Author) -> None:
    author.folder.mkdir()
    with ExitStack() as programs:
        author.follow(PAGE, programs)
    assert author.written == set(FILES)
    where = author.run(0, ".venv/bin/python -c 'import flexinfer; print(flexinfer.__file__)'")
    assert Path(where).is_relative_to(author.folder / ".venv")
    author.run(0, ".venv/bin/flexinfer manifests --module configmapcopy --output config --check")


def test_the_wheel_says_that_it_is_typed(wheel: Path) -> None:
    assert "flexinfer/py.typed" in zipfile.ZipFile(wheel).namelist()


def lines_of_code(name: str) -> int:
    return sum(1 for line in FILES[name].splitlines() if line.strip())


def test_the_controller_of_the_guide_is_short() -> None:
    assert lines_of_code(CODE) <= 60
    assert lines_of_code(TESTS) <= 20


def test_the_election_has_the_rights_that_the_managers_has() -> None:
    guides, *_ = yaml.safe_load_all(FILES["deployment.yaml"])
    ours = yaml.safe_load((ROOT / "config/rbac/leader_election_role.yaml").read_text())
    for rule in ours["rules"]:
        if "resourceNames" in rule:
            rule["resourceNames"] = [CODE.removesuffix(".py")]
    assert guides["rules"] == ours["rules"]


def test_the_files_of_the_guide_are_formatted_and_typed(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    tools = Path(sys.executable).parent
    cache = f"{ROOT}/.mypy_cache/guide"
    for command in (
        ["ruff", "format", "--check", "--line-length=100", "--isolated", "."],
        ["ruff", "check", "--line-length=100", "--isolated", "--select=B,E,F,I,W", "."],
        ["mypy", "--strict", "--cache-dir", cache, CODE, "test_promises.py"],
    ):
        done = subprocess.run(
            [tools / command[0], *command[1:]],
            cwd=tmp_path,
            env={**os.environ, "MYPYPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
