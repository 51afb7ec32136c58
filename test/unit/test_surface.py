# SPDX-License-Identifier: Apache-2.0
"""The public surface: listed on the guide's page, documented, and typed to the last parameter."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

import flexinfer
from hack import docpages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/framework.md").read_text(encoding="utf-8")
PUBLIC = [
    name
    for row in docpages.table(PAGE, "The public surface")
    for name in docpages.code(row["module"])
]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_module_says_what_is_public(name: str) -> None:
    module = import_module(name)
    names = module.__all__
    assert len(names) == len(set(names))
    assert module.__doc__
    assert all(getattr(module, public, None) is not None for public in names)


def test_the_home_of_every_name_of_the_facade_is_public() -> None:
    assert set(flexinfer._HOME.values()) <= set(PUBLIC)
    for name, home in flexinfer._HOME.items():
        assert name in import_module(home).__all__, f"{home} does not list {name}"


def test_what_the_guide_imports_is_public() -> None:
    blocks = [b.text for b in docpages.blocks(PAGE) if b.words[:1] == ("python",)]
    found = re.findall(r"^from (flexinfer[\w.]*) import (.+)$", "\n".join(blocks), re.MULTILINE)
    assert found
    for module, names in found:
        assert module in PUBLIC
        assert set(names.split(", ")) <= set(import_module(module).__all__), module


def defined() -> Iterator[tuple[str, object]]:
    """Yield every class and function that a public module lists, once, with its full name."""
    seen = set()
    for name in PUBLIC:
        module = import_module(name)
        for public in module.__all__:
            thing = getattr(module, public)
            home = str(getattr(thing, "__module__", ""))
            is_ours = home.startswith("flexinfer") and (inspect.isclass(thing) or callable(thing))
            if is_ours and id(thing) not in seen:
                seen.add(id(thing))
                yield f"{home}.{getattr(thing, '__qualname__', public)}", thing


def functions() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield every public function, and the public methods and properties of every public class."""
    for name, thing in defined():
        if not inspect.isclass(thing):
            if inspect.isfunction(thing):
                yield name, thing
            continue
        for attribute, value in vars(thing).items():
            if attribute.startswith("_") and attribute != "__init__":
                continue
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if inspect.isfunction(function) and _is_written(function, thing):
                yield f"{name}.{attribute}", function


def _is_written(function: Callable[..., object], owner: type) -> bool:
    """Tell a method of the source from what dataclass, pydantic or NamedTuple made."""
    return inspect.getsourcefile(function) == inspect.getsourcefile(owner)


def test_every_public_name_has_a_docstring() -> None:
    bare = [
        name
        for name, thing in defined()
        if inspect.isclass(thing) or inspect.isfunction(thing)
        if not _own_docstring(thing)
    ]
    bare += [name for name, f in functions() if not f.__doc__ and not name.endswith(".__init__")]
    assert bare == []


def _own_docstring(thing: object) -> str:
    """Return the text of its own: a dataclass without one has its signature instead."""
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    name = str(getattr(thing, "__name__", ""))
    return "" if text is None or text.startswith(f"{name}(") else text


def test_every_public_function_is_annotated_in_full() -> None:
    assert len(list(functions())) > len(PUBLIC), "functions() finds none"
    missing = [
        f"{name}({parameter.name})"
        for name, function in functions()
        for index, parameter in enumerate(inspect.signature(function).parameters.values())
        if parameter.annotation is parameter.empty
        if not (index == 0 and parameter.name in {"self", "cls"})
    ]
    missing += [
        name
        for name, function in functions()
        if inspect.signature(function).return_annotation is inspect.Signature.empty
    ]
    assert missing == []


def test_no_public_function_takes_or_returns_anything() -> None:
    loose = {
        name
        for name, function in functions()
        for annotation in cast("dict[str, object]", function.__annotations__).values()
        if re.search(r"\bAny\b", str(annotation))
    }
    assert loose == set()
