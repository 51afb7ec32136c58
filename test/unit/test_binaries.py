# SPDX-License-Identifier: Apache-2.0
"""Where the control plane's binaries come from, shown with small scripts in their place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from flexinfer.envtest import binaries, build
from flexinfer.envtest.components import COMPONENTS, GO_MODULES

if TYPE_CHECKING:
    from pathlib import Path

FAKE_GO = """#!{python}
import os, pathlib, sys, time
log = pathlib.Path({log!r})
args = sys.argv[1:]
if args[0] == "version":
    print("go version go{version} linux/amd64")
    sys.exit()
with log.open("a") as file:
    file.write(" ".join(args) + "\\n")
time.sleep(float(os.environ.get("FAKE_GO_SLEEPS", "0")))
if os.environ.get("FAKE_GO_FAILS"):
    print("package is not in std", file=sys.stderr)
    sys.exit(1)
assert pathlib.Path("go.sum").exists() and os.environ["GOFLAGS"] == "-mod=readonly"
out = args[args.index("-o") + 1]
packages = [arg for arg in args if "/" in arg and not arg.startswith("-") and arg != out]
for package in packages[-3:]:
    path = pathlib.Path(out, package.split("/")[-1]) if out.endswith("/") else pathlib.Path(out)
    path.write_text("#!/bin/sh\\necho Kubernetes v1.37.2\\nexit ${{FAKE_GO_BREAKS:-0}}\\n")
    path.chmod(0o755)
"""


@dataclass
class Machine:
    """A user's machine: folders, an environment, and what was printed."""

    root: Path
    said: list[str] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": f"{self.root / 'bin'}",
            "FLEXINFER_CACHE": str(self.root / "cache"),
            "HOME": str(self.root),
        }

    def find(self, **environ: str) -> binaries.Binaries:
        return binaries.find({**self.environ, **environ}, report=self.said.append)

    def script(self, folder: str, name: str, text: str) -> None:
        path = self.root / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def provide(
        self, folder: str, *, without: str = "", odd: str = "", version: str = "1.37.2"
    ) -> Path:
        for name in COMPONENTS:
            if name != without:
                said = "1.36.0" if name == odd else version
                self.script(folder, name, f"#!/bin/sh\necho Kubernetes v{said}\n")
        return self.root / folder

    def install_go(self, version: str = "1.26.0") -> None:
        text = FAKE_GO.format(python=sys.executable, log=str(self.root / "go.log"), version=version)
        self.script("bin", "go", text)

    @property
    def builds(self) -> list[str]:
        log = self.root / "go.log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def cache(self) -> Path:
        return build.cache_folder(self.environ)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "bin").mkdir()
    return Machine(tmp_path)


def test_kubebuilder_assets_come_before_path(machine: Machine) -> None:
    assets = machine.provide("assets")
    machine.provide("bin")
    found = machine.find(KUBEBUILDER_ASSETS=str(assets))
    assert {path.parent for path in found.paths.values()} == {assets}


def test_path_is_used_whole(machine: Machine) -> None:
    folder = machine.provide("bin")
    assert machine.find().folder == folder
    assert machine.said == []


def test_a_place_that_lacks_one_binary_is_passed_over_whole(machine: Machine) -> None:
    assets = machine.provide("assets", without="kwok")
    folder = machine.provide("bin")
    found = machine.find(KUBEBUILDER_ASSETS=str(assets))
    assert {path.parent for path in found.paths.values()} == {folder}


@pytest.mark.parametrize("odd", ["kube-apiserver", "kube-scheduler"])
def test_a_place_of_several_versions_is_passed_over(machine: Machine, odd: str) -> None:
    assets = machine.provide("assets", odd=odd)
    folder = machine.provide("bin")
    assert machine.find(KUBEBUILDER_ASSETS=str(assets)).folder == folder
    assert f"{odd} 1.36.0" in machine.said[0]


def test_a_version_that_is_too_old_is_passed_over(machine: Machine) -> None:
    assets = machine.provide("assets", version="1.31.9")
    folder = machine.provide("bin")
    assert machine.find(KUBEBUILDER_ASSETS=str(assets)).folder == folder


def test_a_binary_that_does_not_run_is_no_version(machine: Machine) -> None:
    assets = machine.provide("assets")
    machine.script("assets", "kube-scheduler", "#!/bin/sh\nexit 1\n")
    folder = machine.provide("bin")
    assert machine.find(KUBEBUILDER_ASSETS=str(assets)).folder == folder
    assert "kube-scheduler does not run" in machine.said[0]


def test_without_binaries_they_are_built_once_into_the_cache(machine: Machine) -> None:
    machine.install_go()
    found = machine.find()
    assert found.folder == machine.cache
    assert len(machine.builds) == len(GO_MODULES)
    assert any("kube-apiserver" in line and "done in" in line for line in machine.said)
    assert machine.find().folder == machine.cache
    assert len(machine.builds) == len(GO_MODULES)


def test_a_build_is_stamped_with_its_version_and_leaves_nothing_beside_it(machine: Machine) -> None:
    machine.install_go()
    machine.find()
    assert any("gitVersion=v1.37.2" in line and "gitMinor=37" in line for line in machine.builds)
    left = {path.name for path in machine.cache.parent.iterdir()}
    assert left == {machine.cache.name, f"{machine.cache.name}.lock"}


def test_the_cache_is_named_after_the_modules_and_the_machine(machine: Machine) -> None:
    assert machine.cache.parent == machine.root / "cache" / "controlplane"
    assert machine.cache.name.startswith(f"{sys.platform}-")
    home = {"HOME": str(machine.root)}
    assert build.cache_folder(home).is_relative_to(machine.root / ".cache" / "flexinfer")
    xdg = {**home, "XDG_CACHE_HOME": str(machine.root / "xdg")}
    assert build.cache_folder(xdg).is_relative_to(machine.root / "xdg" / "flexinfer")


def _cut(folder: Path) -> None:
    (folder / "etcd").write_text("#!/bin/sh\n")


def _lose(folder: Path) -> None:
    (folder / "kwok").unlink()


def _forget(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _garble(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"binaries": {"etcd"')


def _disable(folder: Path) -> None:
    (folder / "kube-apiserver").chmod(0o644)


def _misread(folder: Path) -> None:
    (folder / "manifest.json").write_text(json.dumps({"binaries": []}))


@pytest.mark.parametrize("harm", [_cut, _lose, _forget, _garble, _disable, _misread])
def test_a_broken_cache_is_noticed_and_rebuilt(machine: Machine, harm: object) -> None:
    machine.install_go()
    folder = machine.find().folder
    assert callable(harm)
    harm(folder)
    assert not build.is_whole(folder)
    assert machine.find().folder == folder
    assert build.is_whole(folder)
    assert len(machine.builds) == 2 * len(GO_MODULES)


def test_the_leftovers_of_a_build_that_was_killed_are_removed(machine: Machine) -> None:
    machine.install_go()
    machine.cache.parent.mkdir(parents=True)
    leftover = machine.cache.parent / f".{machine.cache.name}.dead"
    leftover.mkdir()
    (leftover / "etcd").write_text("half")
    machine.find()
    assert not leftover.exists()


def test_two_builds_at_once_do_the_work_once(machine: Machine) -> None:
    machine.install_go()
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(machine.find().folder)) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [machine.cache, machine.cache]
    assert len(machine.builds) == len(GO_MODULES)
    assert build.is_whole(machine.cache)


def test_without_go_one_sentence_says_what_to_do(machine: Machine) -> None:
    with pytest.raises(build.BinariesError) as caught:
        machine.find()
    assert "install Go 1.26 or newer" in str(caught.value)
    assert "KUBEBUILDER_ASSETS" in str(caught.value)
    assert not (machine.root / "cache").exists()


def test_an_old_go_is_named(machine: Machine) -> None:
    machine.install_go("1.25.7")
    with pytest.raises(build.BinariesError, match=r"go1\.25\.7.*too old.*install Go 1\.26"):
        machine.find()


def test_a_failed_build_says_what_go_said_and_leaves_no_cache(machine: Machine) -> None:
    machine.install_go()
    with pytest.raises(build.BinariesError, match="package is not in std"):
        machine.find(FAKE_GO_FAILS="1")
    assert not machine.cache.exists()
    assert not list(machine.cache.parent.glob(".*"))


def test_main_prints_the_folder_or_the_sentence(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**machine.environ, "KUBEBUILDER_ASSETS": ""}.items():
        monkeypatch.setenv(name, value)
    assert binaries.main() == 1
    assert "install Go" in capsys.readouterr().err
    folder = machine.provide("bin")
    assert binaries.main() == 0
    assert capsys.readouterr().out == f"{folder}\n"


def test_a_build_that_does_not_run_is_refused(machine: Machine) -> None:
    machine.install_go()
    with pytest.raises(build.BinariesError, match="freshly built etcd does not run"):
        machine.find(FAKE_GO_BREAKS="1")
    assert not machine.cache.exists()


def test_a_build_says_that_it_is_still_at_work_and_ends_with_its_owner(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install_go()
    monkeypatch.setattr(build, "_REPORT_EVERY", 0.05)

    def stop(line: str) -> None:
        machine.said.append(line)
        if line.endswith(" s"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        binaries.find({**machine.environ, "FAKE_GO_SLEEPS": "600"}, report=stop)
    assert machine.said[-1].startswith("step 1 of 3: etcd: 0 s")
    assert not list(machine.cache.parent.glob(".*"))


def test_a_folder_that_was_named_and_lacks_a_binary_is_not_passed_over_in_silence(
    machine: Machine, tmp_path: Path
) -> None:
    machine.install_go()
    machine.find(KUBEBUILDER_ASSETS=str(tmp_path))
    assert machine.said[0].startswith(f"passed over KUBEBUILDER_ASSETS={tmp_path}")


def test_the_command_prints_the_folder_alone(machine: Machine) -> None:
    folder = machine.provide("bin")
    done = _command(machine)
    assert done.stdout == f"{folder}\n"


def test_the_command_fails_with_the_sentence_alone(machine: Machine) -> None:
    done = _command(machine)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "install Go" in done.stderr


def test_a_check_builds_nothing(machine: Machine) -> None:
    done = _command(machine, "--check")
    assert (done.returncode, done.stdout) == (1, "")
    assert "install Go" in done.stderr
    machine.install_go()
    assert _command(machine, "--check").returncode == 0
    assert not machine.cache.exists()
    machine.provide("bin")
    assert _command(machine, "--check").returncode == 0


def _command(machine: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flexinfer.envtest.binaries", *words],
        env={**os.environ, "KUBEBUILDER_ASSETS": "", **machine.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
