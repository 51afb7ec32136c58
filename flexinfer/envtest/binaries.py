# SPDX-License-Identifier: Apache-2.0
"""Find the control plane's binaries, or build them: all from one place and of one version.

The places, in order: the folder `KUBEBUILDER_ASSETS`, `PATH`, the cache folder, and a build from
the Go modules beside this file into the cache folder. A place that lacks one binary, or whose
Kubernetes binaries are not of one version that is new enough, is passed over whole.
`python -m flexinfer.envtest.binaries` prints the folder of kube-apiserver; with `--check` it only
says whether they are there or can be built.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.envtest.build import BinariesError, BuildCache, cache_folder
from flexinfer.envtest.components import COMPONENTS, KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["MINIMUM_KUBERNETES", "Binaries", "check", "find", "main", "report_to_stderr"]

MINIMUM_KUBERNETES = (1, 32)
_VERSION_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where each binary of the control plane is."""

    paths: Mapping[str, Path]

    @property
    def folder(self) -> Path:
        """Return the folder of kube-apiserver; every binary's, unless they came from `PATH`."""
        return self.paths["kube-apiserver"].parent

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]


def report_to_stderr(line: str) -> None:
    """Print a line of progress where it does not mix with output."""
    print(f"envtest: {line}", file=sys.stderr, flush=True)  # noqa: T201 - progress for a person


def find(
    environ: Mapping[str, str] = os.environ,
    *,
    report: Callable[[str], None] = report_to_stderr,
) -> Binaries:
    """Return all binaries from the first place that has them all, building them if none has.

    *report* gets lines of progress. A first build takes 6 to 10 minutes on two cores.

    Raises:
        BinariesError: They are nowhere and cannot be built; one sentence that names the cure.
    """
    there = _installed(environ, report)
    if there is not None:
        return there
    folder = BuildCache(cache_folder(environ), environ, report).ensure()
    return Binaries({name: folder / name for name in COMPONENTS})


def check(environ: Mapping[str, str] = os.environ) -> None:
    """Raise BinariesError, as `find` does, when they are nowhere and cannot be built."""
    if _installed(environ, report_to_stderr) is None:
        BuildCache(cache_folder(environ), environ, report_to_stderr).check()


def _installed(environ: Mapping[str, str], report: Callable[[str], None]) -> Binaries | None:
    """Return those that somebody has put on this machine."""
    for variable in ("KUBEBUILDER_ASSETS", "PATH"):
        search_path = environ.get(variable, "")
        found = _look_in(search_path)
        if found is not None and _of_one_version(found, report):
            return found
        if found is None and search_path and variable == "KUBEBUILDER_ASSETS":
            report(f"passed over KUBEBUILDER_ASSETS={search_path}: it lacks a binary of ours")
    return None


def _look_in(search_path: str) -> Binaries | None:
    paths: dict[str, Path] = {}
    for name in COMPONENTS:
        # An empty search path would mean the built-in default of the operating system.
        path = shutil.which(name, path=search_path) if search_path else None
        if path is None:
            return None
        paths[name] = Path(path).absolute()
    return Binaries(paths)


def _of_one_version(binaries: Binaries, report: Callable[[str], None]) -> bool:
    versions = {name: _version(binaries[name]) for name in KUBERNETES}
    if len(set(versions.values())) == 1 and min(versions.values()) >= MINIMUM_KUBERNETES:
        return True
    listed = ", ".join(
        f"{name} {'.'.join(map(str, version)) or 'does not run'}"
        for name, version in versions.items()
    )
    report(f"passed over {binaries.folder}: not of one version that is new enough ({listed})")
    return False


def _version(binary: Path) -> tuple[int, ...]:
    """Return what `--version` says as numbers; empty when the binary does not say."""
    try:
        answer = subprocess.run(
            [binary, "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)", answer)
    return tuple(map(int, found.groups())) if found else ()


def main() -> int:
    """Print the folder of the binaries, building them first when they are nowhere."""
    # `make test` starts this beside the unit tests, where a shell has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if sys.argv[1:] == ["--check"]:
            check()
        else:
            print(find().folder)  # noqa: T201 - the Makefile reads it
    except BinariesError as error:
        print(error, file=sys.stderr)  # noqa: T201 - one sentence for a person
        return 1
    except KeyboardInterrupt:
        report_to_stderr("stopped; what was built so far is kept by Go's cache")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
