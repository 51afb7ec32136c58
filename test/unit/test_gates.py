# SPDX-License-Identifier: Apache-2.0
"""Each gate of `make lint` fails when what it guards is broken: in a copy, one break at a time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the gates read."""
    for name in ("flexinfer", "api", "controllers", "internal", "config", "docs"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "modules")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=checkout,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(checkout), "HOME": str(checkout)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def append(path: Path, line: str) -> None:
    path.write_text(f"{path.read_text()}\n{line}\n")


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("flexinfer/meta/resource.py", "import controllers.model.desired", "knows nothing"),
        ("api/flexinfer/v1alpha2/model_types.py", "import internal.backends", "wiring >"),
        ("flexinfer/workqueue/core.py", "import flexinfer.manager", "inside the framework"),
        ("controllers/model/desired.py", "import kubernetes_asyncio", "client library"),
        ("api/flexinfer/v1alpha2/model_types.py", "import aiohttp", "models only"),
        ("flexinfer/envtest/admin.py", "import flexinfer.client.transport", "what is tested"),
        ("controllers/model/desired.py", "import msgspec", "JSON library"),
        ("internal/fetch/download.py", "import huggingface_hub", "hub's client"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(
    checkout: Path, module: str, line: str, contract: str
) -> None:
    append(checkout / module, line)
    result = run(checkout, "lint-imports", "--no-cache")
    assert result.returncode != 0
    broken = [text for text in result.stdout.splitlines() if "BROKEN" in text]
    assert any(contract in text for text in broken), result.stdout


def test_a_module_without_a_place_in_the_layers_is_refused(checkout: Path) -> None:
    (checkout / "flexinfer" / "misplaced.py").write_text("")
    result = run(checkout, "lint-imports", "--no-cache")
    assert result.returncode != 0
    assert "misplaced" in result.stdout


def test_a_wrong_type_is_refused(checkout: Path) -> None:
    append(checkout / "flexinfer" / "errors.py", 'broken: int = "a string"')
    result = run(checkout, "mypy", "flexinfer/errors.py")
    assert result.returncode != 0
    assert "broken" in result.stdout or "Incompatible types" in result.stdout


@pytest.mark.parametrize(
    "generated",
    [
        "config/crd/bases/ai.flexinfer_models.yaml",
        "config/rbac/role.yaml",
        "docs/reference/model.md",
    ],
)
def test_a_generated_file_that_was_edited_is_drift(checkout: Path, generated: str) -> None:
    clean = run(checkout, "flexinfer", "manifests", "--check")
    assert clean.returncode == 0, clean.stdout + clean.stderr
    append(checkout / generated, "# edited by hand")
    result = run(checkout, "flexinfer", "manifests", "--check")
    assert result.returncode == 1
    assert generated in result.stdout + result.stderr
    assert "make manifests" in result.stdout + result.stderr
