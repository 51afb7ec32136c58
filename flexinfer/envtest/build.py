# SPDX-License-Identifier: Apache-2.0
"""Build the control plane's binaries from their Go modules, into a cache folder that heals.

Guarantees: a cache folder counts only with a manifest whose sizes are the files' sizes, and the
manifest is written last; the folder appears by one rename, so nobody sees half of it; two builds
at once take turns by a file lock, and the second finds the work done. The module folders are
package data and are never written to.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.envtest.components import COMPONENTS, GO_MODULES, GoModule
from flexinfer.errors import FlexInferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["MINIMUM_GO", "BinariesError", "BuildCache", "cache_folder", "is_whole"]

MINIMUM_GO = (1, 26)
_MANIFEST = "manifest.json"
_TAIL = 2000
_REPORT_EVERY = 30.0
_VERSION_TIMEOUT = 30.0


class BinariesError(FlexInferError):
    """Report that the control plane's binaries are nowhere and cannot be built."""


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of this machine's kind and these modules: `FLEXINFER_CACHE` or XDG's.

    Its name holds a hash of the go.sum files, so other versions get another folder.
    """
    root = environ.get("FLEXINFER_CACHE")
    if not root:
        home = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")) / ".cache")
        root = str(Path(home).expanduser() / "flexinfer")
    sums = hashlib.sha256()
    for module in GO_MODULES:
        sums.update((module.source / "go.sum").read_bytes())
    machine = platform.machine().lower()
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    name = f"{platform.system().lower()}-{arch}-{sums.hexdigest()[:16]}"
    return Path(root).absolute() / "controlplane" / name


def is_whole(folder: Path) -> bool:
    """Tell whether *folder* holds every binary as its manifest says; a cheap look at sizes."""
    try:
        sizes = {
            name: entry["size"]
            for name, entry in json.loads((folder / _MANIFEST).read_bytes())["binaries"].items()
        }
        return all(
            os.access(folder / name, os.X_OK) and (folder / name).stat().st_size == sizes[name]
            for name in COMPONENTS
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@dataclass(frozen=True, slots=True)
class BuildCache:
    """The cache folder, and how to fill it."""

    folder: Path
    environ: Mapping[str, str]
    report: Callable[[str], None]

    def ensure(self) -> Path:
        """Return the folder with every binary in it, built now unless it is there already.

        Raises:
            BinariesError: Go is missing or too old, or a build failed; one sentence and its cure.
        """
        self.check()
        if is_whole(self.folder):
            return self.folder
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self._lock():
            if not is_whole(self.folder):
                self._fill()
        return self.folder

    def check(self) -> None:
        """Raise BinariesError, as `ensure` does, when they are not there and cannot be built."""
        if is_whole(self.folder):
            return
        wanted = ".".join(map(str, MINIMUM_GO))
        cure = (
            f"install Go {wanted} or newer, or name a folder with {', '.join(COMPONENTS)}"
            " in KUBEBUILDER_ASSETS"
        )
        try:
            answer = self._run(["go", "version"], timeout=_VERSION_TIMEOUT)
        except (OSError, subprocess.SubprocessError) as error:
            raise BinariesError(
                f"The control plane's binaries were not found and Go does not run: {cure}."
            ) from error
        found = re.search(r"go(\d+)\.(\d+)", answer)
        if found is None or (int(found[1]), int(found[2])) < MINIMUM_GO:
            raise BinariesError(
                f"The control plane's binaries were not found and {answer.strip()!r} is too old"
                f" to build them: {cure}."
            )

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with self.folder.with_name(f"{self.folder.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.report("waiting for another build of the control plane")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _fill(self) -> None:
        """Build everything beside the folder, then put it in place. Called under the lock."""
        for leftover in self.folder.parent.glob(f".{self.folder.name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{self.folder.name}.", dir=self.folder.parent))
        try:
            self.report(
                f"building the control plane, the first time only: {len(GO_MODULES)} steps, 6 to 10"
                " minutes on two cores"
            )
            for number, module in enumerate(GO_MODULES, start=1):
                self._build(module, fresh, step=f"step {number} of {len(GO_MODULES)}")
            _write_manifest(fresh)
            fresh.chmod(0o755)
            if self.folder.exists():
                self.folder.rename(fresh.with_name(f"{fresh.name}.old"))
            fresh.rename(self.folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.rmtree(fresh.with_name(f"{fresh.name}.old"), ignore_errors=True)

    def _build(self, module: GoModule, target: Path, *, step: str) -> None:
        with tempfile.TemporaryDirectory(prefix="flexinfer-build-") as scratch:
            source = Path(scratch, "module")
            shutil.copytree(module.source, source, copy_function=shutil.copyfile)
            source.chmod(0o755)
            # One package of several versions would be named after its version: name it ourselves.
            names = list(module.packages)
            output = target / names[0] if len(names) == 1 else f"{target}/"
            options = ["-trimpath", "-ldflags", module.ldflags, "-o", str(output)]
            self._follow(
                ["go", "build", *options, *module.packages.values()],
                what=f"{step}: {', '.join(names)}",
                cwd=source,
            )
        for name in names:
            self._prove(target / name)

    def _follow(self, command: list[str], *, what: str, cwd: Path) -> None:
        """Run *command*, saying every half a minute that it is still at work."""
        started = time.monotonic()
        self.report(what)
        with (cwd.parent / "output").open("w+") as output:
            # With Go's own scratch files beside ours, an interrupted build leaves nothing.
            environment = self._build_environment() | {"GOTMPDIR": str(cwd.parent)}
            process = subprocess.Popen(
                command, cwd=cwd, env=environment, stdout=output, stderr=output
            )
            try:
                while not _ends(process, within=_REPORT_EVERY):
                    self.report(f"{what}: {time.monotonic() - started:.0f} s")
            except BaseException:
                process.terminate()
                process.wait()
                raise
            output.seek(0)
            said = output.read()[-_TAIL:]
        if process.returncode != 0:
            raise BinariesError(f"The build failed at {what}; `go build` said:\n{said}")
        self.report(f"{what}: done in {time.monotonic() - started:.0f} s")

    def _build_environment(self) -> dict[str, str]:
        # No C compiler is needed without cgo; no other toolchain is fetched; go.sum is the law.
        return {
            **self.environ,
            "CGO_ENABLED": "0",
            "GOFLAGS": "-mod=readonly",
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
        }

    def _prove(self, binary: Path) -> None:
        try:
            self._run([str(binary), "--version"], timeout=_VERSION_TIMEOUT)
        except (OSError, subprocess.SubprocessError) as error:
            raise BinariesError(
                f"The freshly built {binary.name} does not run: remove {self.folder.parent}"
                " and build again."
            ) from error

    def _run(self, command: list[str], *, timeout: float) -> str:
        done = subprocess.run(
            command,
            env=self._build_environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=True,
        )
        return done.stdout


def _ends(process: subprocess.Popen[bytes], *, within: float) -> bool:
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def _write_manifest(folder: Path) -> None:
    binaries = {}
    for name in COMPONENTS:
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        binaries[name] = {"size": (folder / name).stat().st_size, "sha256": digest}
    partial = folder / f"{_MANIFEST}.partial"
    partial.write_text(json.dumps({"binaries": binaries}, indent=2) + "\n")
    partial.rename(folder / _MANIFEST)
