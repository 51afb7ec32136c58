# SPDX-License-Identifier: Apache-2.0
"""Read the pages in `docs/`: what their tables list, and which of their blocks tests run. Pure.

The first line of a block says what becomes of it:

| block | what a test does |
|---|---|
| `sh run` | runs it, in the checkout, with `.venv/bin` on PATH; every command has to succeed |
| `text` after `sh run` | repeats that block until each of these lines is in its output |
| `yaml apply` | applies it by `kubectl apply --server-side` |
| `yaml check` | the same with `--dry-run=server` |
| `sh` | nothing; its first line begins with `# Not run in tests: ` and says why |
| `sh start` | starts it, and ends it by SIGTERM behind the last block; only in `framework.md` |
| `<language> <file>` | writes it to that file, behind what is there; only in `framework.md` |
| any other | nothing |

A line of output is expected word by word; `…` stands for any text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NOT_RUN = "# Not run in tests: "

_HEADING = re.compile(r"(#+) +(.*?) *")
_FENCE = "```"
_ANYTHING = "…"
_ACTIONS = {"run", "start", "apply", "check"}


@dataclass(frozen=True, slots=True)
class Block:
    """Be a fenced block: the words behind its fence, its text, and the line it begins at."""

    words: tuple[str, ...]
    text: str
    line: int

    @property
    def is_run(self) -> bool:
        """Tell whether a test runs or applies it."""
        return self.words in {("sh", "run"), ("yaml", "apply"), ("yaml", "check")}

    @property
    def file(self) -> str:
        """Return the file that it is written to, empty for none."""
        named = len(self.words) == 2 and self.words[1] not in _ACTIONS  # noqa: PLR2004 - two words
        return self.words[1] if named else ""

    @property
    def is_output(self) -> bool:
        """Tell whether it shows what the block before it prints."""
        return self.words == ("text",)


@dataclass(frozen=True, slots=True)
class Section:
    """Be what stands under a heading of the second level, deeper headings included."""

    title: str
    text: str
    blocks: tuple[Block, ...]


def sections(page: str) -> tuple[Section, ...]:
    """Cut *page* at its headings of the second level; what is above the first is left out."""
    found: list[tuple[str, list[str], int]] = []
    for number, line, is_fenced in _lines(page):
        heading = None if is_fenced else _HEADING.fullmatch(line)
        if heading and heading[1] == "##":
            found.append((heading[2], [], number))
        elif found:
            found[-1][1].append(line)
    return tuple(
        Section(title, "\n".join(lines), tuple(_blocks(lines, first + 1)))
        for title, lines, first in found
    )


def blocks(page: str) -> tuple[Block, ...]:
    """Return every fenced block of *page*."""
    return tuple(_blocks(page.splitlines(), 1))


def files(page: str) -> dict[str, str]:
    """Return the files that the blocks of *page* write, each with its text."""
    found: dict[str, str] = {}
    for block in blocks(page):
        if name := block.file:
            before = f"{found[name]}\n\n" if name in found else ""
            found[name] = f"{before}{block.text}\n"
    return found


def table(page: str, heading: str) -> list[Mapping[str, str]]:
    """Return the rows of the first table below *heading*, by the names of its columns.

    Raises:
        LookupError: There is no such heading, or no table below it
    """
    lines = iter(page.splitlines())
    if not any(found and found[2] == heading for found in map(_HEADING.fullmatch, lines)):
        raise LookupError(f"no heading {heading!r}")
    names: Sequence[str] = ()
    rows: list[Mapping[str, str]] = []
    for line in lines:
        if _HEADING.fullmatch(line) or (names and not line.startswith("|")):
            break
        if not line.startswith("|"):
            continue
        cells = _cells(line)
        if not names:
            names = cells
        elif set(line) - set("|-: "):
            rows.append(dict(zip(names, cells, strict=True)))
    if not rows:
        raise LookupError(f"no table below {heading!r}")
    return rows


def code(cell: str) -> tuple[str, ...]:
    """Return what a cell shows as code, in its order."""
    return tuple(re.findall(r"`([^`]+)`", cell))


def links(page: str) -> tuple[tuple[str, str], ...]:
    """Return the page's links to files and headings: the file, empty for the page, and anchor."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    parts = (target.partition("#") for target in targets if "://" not in target)
    return tuple((file, anchor) for file, _, anchor in parts)


def anchors(page: str) -> frozenset[str]:
    """Return what links may lead to in *page*: its headings, spelled as GitHub does."""
    headings = (
        found[2]
        for _, line, is_fenced in _lines(page)
        if not is_fenced and (found := _HEADING.fullmatch(line))
    )
    return frozenset(re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings)


def missing(expected: str, output: str) -> list[str]:
    """Return the lines of *expected* that no line of *output* holds, word by word."""
    return [
        line
        for line in expected.splitlines()
        if line.strip() and not re.search(_pattern(line), output, re.MULTILINE)
    ]


def _pattern(line: str) -> str:
    words = (".*".join(map(re.escape, word.split(_ANYTHING))) for word in line.split())
    return r"[^\S\n]+".join(words)


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", inner)]


def _lines(page: str) -> Iterator[tuple[int, str, bool]]:
    """Yield number, text, and whether the line is part of a fenced block."""
    is_open = False
    for number, line in enumerate(page.splitlines(), 1):
        is_fence = line.startswith(_FENCE)
        yield number, line, is_open or is_fence
        is_open ^= is_fence


def _blocks(lines: Sequence[str], first: int) -> Iterator[Block]:
    words: tuple[str, ...] | None = None
    begin, body = 0, list[str]()
    for number, line in enumerate(lines, first):
        if not line.startswith(_FENCE):
            body.append(line)
        elif words is None:
            words, begin, body = tuple(line.removeprefix(_FENCE).split()), number, []
        else:
            yield Block(words, "\n".join(body), begin)
            words = None
