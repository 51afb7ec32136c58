# SPDX-License-Identifier: Apache-2.0
"""The pages list what the code has: every reason, flag, variable and key, and tests that exist."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from api.flexinfer.v1alpha2.reasons import MEANINGS
from flexinfer.cmd.manager import Flags
from flexinfer.cmd.wake import Flags as WakeFlags
from flexinfer.cmd.wake import wake
from hack import docpages
from internal.backends.backend import COMMON_KEYS
from internal.backends.registry import BACKENDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if "reference" not in path.parts  # generated
)
# Read by the process itself, not by what it starts.
READERS = (
    "flexinfer/cmd",
    "flexinfer/client",
    "flexinfer/program.py",
    "controllers",
    "internal/backends",
)
DEFAULTS = re.compile(r"DEFAULT_[A-Z0-9_]+")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def names() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in PAGES]


def test_every_reason_of_every_condition_has_a_meaning_and_a_cure() -> None:
    text = page("user/operations.md")
    for condition, meanings in MEANINGS.items():
        rows = docpages.table(text, f"Reasons of {condition}")
        assert [docpages.code(row["reason"]) for row in rows] == [(r,) for r in meanings]
        assert all(row["meaning"] and row["what to do"] for row in rows)


def test_every_flag_of_the_manager_is_listed_with_its_default() -> None:
    rows = docpages.table(page("CONFIGURATION.md"), "Flags of the manager")
    assert {docpages.code(r["flag"])[0]: docpages.code(r["default"]) for r in rows} == {
        f"--{field.name.replace('_', '-')}": _shown(field.default)
        for field in dataclasses.fields(Flags)
    }


def test_every_flag_of_wake_is_listed() -> None:
    rows = docpages.table(page("CONFIGURATION.md"), "Flags of flexinfer wake")
    fields = {f"--{field.name}" for field in dataclasses.fields(WakeFlags)}
    options = inspect.signature(wake).parameters.values()
    own = {f"--{o.name}" for o in options if o.kind is o.KEYWORD_ONLY and o.name != "flags"}
    assert {docpages.code(row["flag"])[0] for row in rows} == fields | own


def _shown(default: object) -> tuple[str, ...]:
    """Return a default as a cell shows it: nothing for none, an off switch as no."""
    if default is None:
        return ()
    if isinstance(default, bool):
        return ("yes" if default else "no",)
    return (f"{default:g}" if isinstance(default, float) else str(default),)


def test_every_image_variable_is_listed_with_its_default() -> None:
    rows = docpages.table(page("CONFIGURATION.md"), "Default images")
    listed = {docpages.code(row["variable"])[0]: docpages.code(row["image"]) for row in rows}
    rules = [rule for backend in BACKENDS for rule in backend.images]
    assert listed == {rule.variable: (rule.image,) if rule.image else () for rule in rules}
    for row in rows:
        (variable,) = docpages.code(row["variable"])
        users = [b.name for b in BACKENDS if any(r.variable == variable for r in b.images)]
        assert list(docpages.code(row["backend"])) == users


def test_every_other_variable_of_the_manager_is_listed() -> None:
    rows = docpages.table(page("CONFIGURATION.md"), "Environment of the manager")
    listed = {name for row in rows for name in docpages.code(row["variable"])}
    words = constants(*READERS)
    images = {rule.variable for backend in BACKENDS for rule in backend.images}
    own = {key_variable for b in BACKENDS for key_variable in _container_variables(b.keys)}
    read = {word for word in words if DEFAULTS.fullmatch(word)} - images - own
    assert {name for name in listed if DEFAULTS.fullmatch(name)} == read
    assert listed <= words, "listed, and in no source file"


def _container_variables(keys: object) -> set[str]:
    """Return variables of a server that begin like those of the manager."""
    assert isinstance(keys, tuple)
    return {variable for key in keys if (variable := getattr(key, "variable", ""))}


def constants(*places: str) -> set[str]:
    """Return every string constant in the sources that *places* are, or that lie below them."""
    return {
        node.value
        for place in places
        for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_backend_is_listed() -> None:
    rows = docpages.table(page("CONFIGURATION.md"), "Backends")
    listed = {docpages.code(row["backend"])[0]: row for row in rows}
    assert set(listed) == {backend.name for backend in BACKENDS}
    for backend in BACKENDS:
        row = listed[backend.name]
        assert docpages.code(row["also called"]) == backend.aliases
        assert int(row["port"]) == backend.port
        assert set(row["runs on"].split(", ")) == {vendor.value for vendor in backend.vendors}


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_every_key_of_a_backend_is_listed_with_what_it_becomes(backend: object) -> None:
    keys = getattr(backend, "keys", ())
    name = getattr(backend, "name", "")
    if not keys:
        assert f"Keys of {name}" not in page("CONFIGURATION.md")
        return
    assert_keys(f"Keys of {name}", keys)


def test_the_keys_of_all_backends_are_listed() -> None:
    assert_keys("Keys of every backend", COMMON_KEYS)


def assert_keys(heading: str, keys: tuple[object, ...]) -> None:
    rows = docpages.table(page("CONFIGURATION.md"), heading)
    listed = {docpages.code(row["key"])[0]: row for row in rows}
    assert list(listed) == [getattr(key, "name", "") for key in keys]
    for key in keys:
        row = listed[getattr(key, "name", "")]
        assert row["value"] == getattr(key, "kind", None).value  # type: ignore[union-attr] # a Key
        passed = (getattr(key, "flag", ""), getattr(key, "variable", ""))
        assert {word for word in passed if word} <= set(docpages.code(row["becomes"]))
        assert row["becomes"]


def test_every_work_item_of_phase_1_names_tests_that_exist() -> None:
    rows = docpages.table(page("dev/phase-1.md"), "Work items")
    assert [row["item"].partition(".")[0] for row in rows] == [str(n) for n in range(1, 7)]
    for row in rows:
        assert docpages.code(row["proved by"]), row["item"]
    for name in docpages.code(page("dev/phase-1.md")):
        if "::" in name:
            file, _, test = name.partition("::")
            assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), (
                f"{name} does not exist"
            )


@pytest.mark.parametrize("name", names())
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    for file, anchor in docpages.links(path.read_text(encoding="utf-8")):
        target = path.parent / file if file else path
        assert target.exists(), f"{name} links to {file}"
        if anchor:
            found = docpages.anchors(target.read_text(encoding="utf-8"))
            assert anchor in found, f"{name} links to {file}#{anchor}"


@pytest.mark.parametrize("name", ["user/operations.md", "CONFIGURATION.md", "dev/release.md"])
def test_what_is_not_run_says_why(name: str) -> None:
    before: docpages.Block | None = None
    for block in docpages.blocks(page(name)):
        where = f"{name}:{block.line}"
        if block.is_output:
            assert before is not None, where
            assert before.words == ("sh", "run"), f"{where} follows no block that is run"
        elif not block.is_run:
            assert block.words == ("sh",), f"{where} is of no known kind"
            assert block.text.startswith(docpages.NOT_RUN), f"{where} does not say why"
        before = block


def test_pages_call_the_kind_by_a_name_that_is_no_other() -> None:
    for path in PAGES:
        for block in docpages.blocks(path.read_text(encoding="utf-8")):
            bare = re.search(r"kubectl [^|\n]*\b(get|wait|edit|delete) models?\b(?!\.)", block.text)
            assert bare is None, f"{path.name}:{block.line} says model, not mdl"


def test_tables_and_blocks_are_read() -> None:
    text = """# T
## A
| a | b |
|---|---|
| `x` | y \\| z |

```sh run
echo 1
## no heading
```
```text
1
```
## B
"""
    first, second = docpages.sections(text)
    assert (first.title, second.title, second.blocks) == ("A", "B", ())
    assert docpages.table(text, "A") == [{"a": "`x`", "b": "y | z"}]
    assert [(b.words, b.text, b.line) for b in first.blocks] == [
        (("sh", "run"), "echo 1\n## no heading", 7),
        (("text",), "1", 11),
    ]
    assert docpages.blocks(text) == first.blocks
    assert docpages.anchors(text) == {"t", "a", "b"}
    for heading in ("B", "C"):
        with pytest.raises(LookupError):
            docpages.table(text, heading)


def test_expected_output_is_compared_word_by_word() -> None:
    output = "NAME   READY  AGE\nchat   True   3s\n"
    assert docpages.missing("NAME READY\n\nchat True …", output) == []
    assert docpages.missing("chat   False …\nch… True", output) == ["chat   False …"]
    assert docpages.missing("AGE chat", output) == ["AGE chat"]


def test_blocks_of_one_file_are_put_together() -> None:
    text = (
        "```python a.py\nA = 1\n```\nthen\n```yaml b.yaml\nb: 1\n```\n```python a.py\nC = 1\n```\n"
        "```sh run\ntrue\n```\n```yaml apply\nc: 1\n```\n```text\nshown\n```\n"
    )
    assert docpages.files(text) == {"a.py": "A = 1\n\n\nC = 1\n", "b.yaml": "b: 1\n"}
