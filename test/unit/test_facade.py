# SPDX-License-Identifier: Apache-2.0
"""What an import loads: an API package no client library, a manager no HTTP framework."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import flexinfer


def loaded_by(statement: str, *, module: str) -> bool:
    code = f"import sys\n{statement}\nsys.exit({module!r} in sys.modules)"
    return bool(subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode)


@pytest.mark.parametrize(
    "statement", ["import flexinfer", "import api.flexinfer.v1alpha2", "import flexinfer.cmd"]
)
@pytest.mark.parametrize("module", ["kubernetes_asyncio", "aiohttp"])
def test_the_import_loads_no_client_library(statement: str, module: str) -> None:
    assert not loaded_by(statement, module=module)


@pytest.mark.parametrize("module", ["aiohttp", "yarl", "multidict", "idna"])
def test_a_manager_loads_no_http_framework(module: str) -> None:
    """aiohttp, with what it brings, is 11 MiB and 150 ms of the start: see ADR 11."""
    assert not loaded_by(
        "import flexinfer.manager, flexinfer.builder, flexinfer.leaderelection, controllers.model",
        module=module,
    )


@pytest.mark.parametrize("module", ["rich", "attr"])
def test_a_manager_loads_nothing_that_draws_tracebacks(module: str) -> None:
    """structlog would take rich, and rich attrs: 4 MiB and 60 ms."""
    assert not loaded_by("import flexinfer.manager, flexinfer.builder", module=module)


def test_the_program_loads_no_http_framework_either() -> None:
    statement = "import flexinfer.program, flexinfer.client.kubeconfig, flexinfer.manager"
    assert not loaded_by(statement, module="aiohttp")
    assert not loaded_by(statement, module="yarl")


def test_every_public_name_resolves_and_is_listed_once() -> None:
    assert list(flexinfer.__all__) == sorted(set(flexinfer.__all__))
    for name in flexinfer.__all__:
        assert getattr(flexinfer, name) is getattr(import_module(flexinfer._HOME[name]), name)


def test_the_type_checkers_block_lists_the_same_names() -> None:
    tree = ast.parse(Path(flexinfer.__file__).read_text())
    listed = {
        alias.asname or alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    assert listed == flexinfer._HOME


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        getattr(flexinfer, "Nothing")  # noqa: B009 - the dynamic path is what is tested
