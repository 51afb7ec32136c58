# SPDX-License-Identifier: Apache-2.0
"""The subjects, and what it takes to have those that are not ours: a Go build, a kopf environment.

Both are made once into the cache folder that the control plane is built into, and anew when their
sources change.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.envtest.build import cache_folder
from flexinfer.errors import FlexInferError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
OURS, GO, KOPF = "flexinfer", "controller-runtime", "kopf"
_PACKAGES = ("flexinfer", "api", "controllers", "internal", "hack")
_PEER = Path(__file__).with_name("peer")
_REQUIREMENTS = ROOT / "requirements" / "bench.txt"
_WITHIN = 900.0
_SAY_EVERY = 30.0


class PeerError(FlexInferError):
    """Say what could not be made, and how its output ends."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject's name, and the command that WORK FOLDER SERVER COUNT are added to."""

    name: str
    command: tuple[str, ...]

    def argv(self, work: str, folder: Path, server: str, count: int) -> list[str]:
        """Return the command line of one work."""
        return [*self.command, work, str(folder), server, str(count)]


def ours() -> Subject:
    """Return our subject, run by this Python on bytecode, as an installed wheel is."""
    for package in _PACKAGES:
        if not compileall.compile_dir(ROOT / package, quiet=1):
            raise PeerError(f"{ROOT / package} was not compiled: the reason is above")
    return Subject(OURS, (sys.executable, "-m", "hack.bench.subject"))


def controller_runtime() -> Subject:
    """Return the Go peer, built now unless it is there already; PeerError when it does not build.

    No flag makes the binary smaller or slower than `go build` does by default.
    """
    sources = sorted([*_PEER.glob("*.go"), _PEER / "go.mod", _PEER / "go.sum"])
    return Subject(GO, (str(_made("peer", sources, _build)),))


def kopf() -> Subject:
    """Return the kopf peer, its environment made now unless it is there already."""
    python = _made("kopf", [_REQUIREMENTS], _install) / "bin" / "python"
    script = Path(__file__).with_name("kopf_peer.py")
    return Subject(KOPF, (str(python), "-P", str(script)))


def _made(name: str, sources: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """Return the file or folder that *make* makes of these sources, older ones being removed."""
    digest = hashlib.sha256(sys.version.encode())
    for source in sources:
        digest.update(source.read_bytes())
    cache = cache_folder(os.environ).parents[1] / "bench"
    made = cache / f"{name}-{digest.hexdigest()[:16]}"
    whole = made.with_name(f"{made.name}.whole")
    if not whole.exists():
        cache.mkdir(parents=True, exist_ok=True)
        for old in cache.glob(f"{name}-*"):
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink()
        make(made)
        whole.touch()
    return made


def _build(target: Path) -> None:
    # As for the control plane: no C compiler, no other toolchain, go.sum is the law.
    settings = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    _run(["go", "build", "-o", str(target), "."], "Building the Go peer", settings, cwd=_PEER)


def _install(target: Path) -> None:
    what = "Making the environment of the kopf peer"
    _run([sys.executable, "-m", "venv", str(target)], what)
    pip = [str(target / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", "--require-hashes", "-r", str(_REQUIREMENTS)], what)


def _run(
    argv: Sequence[str], what: str, settings: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> None:
    print(f"==> {what}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                argv, cwd=cwd, env={**os.environ, **(settings or {})}, stdout=output, stderr=output
            )
        except OSError as error:
            raise PeerError(f"{what}: {argv[0]} does not run; install it: {error}") from error
        try:
            while not _ends(process):
                print(f"==> {what}: {time.monotonic() - began:.0f} s", flush=True)
                if time.monotonic() - began > _WITHIN:
                    raise PeerError(f"{what} took longer than {_WITHIN:g} s")
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        if process.returncode:
            tail = output.read().decode(errors="replace")[-2000:]
            raise PeerError(f"{what} failed; {argv[0]} said:\n{tail}")


def _ends(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_SAY_EVERY)
    except subprocess.TimeoutExpired:
        return False
    return True
