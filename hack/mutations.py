# SPDX-License-Identifier: Apache-2.0
"""Bring faults back, one at a time, and expect the tests that guard against them to fail.

Each `test/mutations/*.patch` changes a line or so of our code. Its first line names the test that
has to fail with it: `Test: <pytest node>`. The patch is applied to a copy of what git knows of
this checkout; nothing here changes. Names of patches as arguments run these alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "test/mutations"
TIMEOUT = 300.0
_TESTS_FAILED = 1  # pytest's exit code; others say that it could not run them


def main(names: list[str]) -> int:
    """Try the mutations of these names, or all; return 1 when one went unnoticed."""
    patches = [PATCHES / f"{name.removesuffix('.patch')}.patch" for name in names]
    verdicts = [attempt(patch) for patch in patches or sorted(PATCHES.glob("*.patch"))]
    unnoticed = verdicts.count(False)
    print(f"{len(verdicts)} mutations, {unnoticed} unnoticed")
    return 1 if unnoticed or not verdicts else 0


def attempt(patch: Path) -> bool:
    """Tell whether the named test fails with the patch; print the verdict."""
    test = patch.read_text().partition("\n")[0].removeprefix("Test: ").strip()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flexinfer-mutation-") as folder:
        copy_checkout(Path(folder))
        run = subprocess.run(
            ["git", "apply", str(patch)], cwd=folder, capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            return tell(patch, "DOES NOT APPLY: make it anew", run.stderr)
        code, output = run_test(Path(folder), test)
    seconds = f"{time.monotonic() - began:.0f} s"
    if code == _TESTS_FAILED:
        print(f"noticed   {patch.stem} by {test} in {seconds}", flush=True)
        return True
    verdict = "UNNOTICED" if code == 0 else f"PYTEST ENDED WITH {code}"
    return tell(patch, f"{verdict} by {test} in {seconds}", output[-3000:])


def tell(patch: Path, verdict: str, output: str) -> bool:
    """Print what is wrong with a mutation."""
    print(f"{verdict}: {patch.stem}\n{output}", flush=True)
    return False


def copy_checkout(folder: Path) -> None:
    """Copy what git knows, as it is on disk."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        source = ROOT / name
        if source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def run_test(folder: Path, test: str) -> tuple[int, str]:
    """Run one test on the code in *folder*; return pytest's exit code and what it said."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return run.returncode, run.stdout + run.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
