# SPDX-License-Identifier: Apache-2.0
"""What the image holds, built in a clean environment: locked requirements and the wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "requirements", "hack/image.sh")
PACKAGES = ("flexinfer", "api", "controllers", "internal")
# The fifth byte of bytecode is 1 when it is valid whatever its source's time is (PEP 552).
UNCOMPILED = """
import sys
from pathlib import Path
import controllers.model, flexinfer.cmd.manager, internal.fetch.hub
for name, module in sorted(sys.modules.items()):
    cached = getattr(module, "__cached__", None)
    if cached and not (Path(cached).exists() and Path(cached).read_bytes()[4] == 1):
        print(name, cached)
print(controllers.__file__)
"""


def test_the_image_script_installs_a_working_flexinfer(tmp_path: Path) -> None:
    """Runs the Dockerfile's only build step on exactly the files that the Dockerfile copies."""
    source = tmp_path / "src"
    for name in (*BUILT_FROM, *PACKAGES):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)
    # Of the environment only what finds python3 and the package index.
    kept = ("PATH", "HOME", "LANG", "PIP_", "SSL_", "REQUESTS_")
    clean = {key: value for key, value in os.environ.items() if key.startswith(kept)}
    built = subprocess.run(
        [str(source / "hack/image.sh"), str(tmp_path / "image")],
        env=clean,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    program = tmp_path / "image/bin/flexinfer"
    for words, expected in (
        (["--help"], "manager"),
        (["manager", "--help"], "--health-probe-bind-address"),
        (["--version"], "0."),
    ):
        answer = subprocess.run(
            [str(program), *words], env={}, capture_output=True, text=True, timeout=60, check=False
        )
        assert answer.returncode == 0, answer.stderr
        assert expected in answer.stdout
    *uncompiled, found = modules_of(tmp_path / "image")
    assert uncompiled == []
    assert found.startswith(str(tmp_path / "image"))


def modules_of(image: Path) -> list[str]:
    """Return the modules of a manager that each start would compile anew, and where ours are.

    In the image nobody may write, and the standard library has no bytecode beside it.
    """
    answer = subprocess.run(
        [str(image / "bin/python"), "-P", "-c", UNCOMPILED],
        env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(image / "pycache")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return answer.stdout.splitlines()


def test_the_dockerfile_has_no_other_build_step_and_copies_what_the_script_needs() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^RUN (.+)$", text, re.MULTILINE) == ["hack/image.sh /opt/flexinfer"]
    copied = " ".join(re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)).split()
    assert set(BUILT_FROM) | set(PACKAGES) <= set(copied)


def test_the_image_looks_for_bytecode_where_the_script_puts_it() -> None:
    script = (ROOT / "hack/image.sh").read_text()
    assert "PYTHONPYCACHEPREFIX=$target/pycache" in script
    assert "PYTHONPYCACHEPREFIX=/opt/flexinfer/pycache" in (ROOT / "Dockerfile").read_text()
