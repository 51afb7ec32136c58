# SPDX-License-Identifier: Apache-2.0
"""Lines come out whole, whatever pieces they came in."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.client.lines import LineSplitter, OversizedLine
from flexinfer.errors import ConfigurationError

MANY = st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b), max_size=20)


def split(data: bytes, cuts: list[int], max_line: int) -> tuple[list[bytes | OversizedLine], int]:
    splitter = LineSplitter(max_line)
    lines: list[bytes | OversizedLine] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        lines += splitter.feed(data[start:end])
    return lines, splitter.pending


@given(lines=MANY, rest=st.binary(max_size=30), cuts=st.lists(st.integers(0, 1000), max_size=30))
def test_any_cutting_gives_the_same_lines(lines: list[bytes], rest: bytes, cuts: list[int]) -> None:
    rest = rest.replace(b"\n", b"")
    data = b"".join(line + b"\n" for line in lines) + rest
    assert split(data, cuts, 100) == ([line for line in lines if line], len(rest))


@given(lines=MANY, cuts=st.lists(st.integers(0, 1000), max_size=30), cap=st.integers(1, 30))
def test_exactly_the_lines_above_the_cap_are_replaced(
    lines: list[bytes], cuts: list[int], cap: int
) -> None:
    data = b"".join(line + b"\n" for line in lines)
    got, pending = split(data, cuts, cap)
    expected = [line for line in lines if line]
    assert pending == 0
    assert len(got) == len(expected)
    for line, original in zip(got, expected, strict=True):
        if len(original) <= cap:
            assert line == original
        else:
            assert isinstance(line, OversizedLine)
            assert line.size == len(original)
            assert original.startswith(line.head)
            assert len(line.head) > cap


def test_complete_lines_leave_nothing_behind() -> None:
    splitter = LineSplitter()
    for _ in range(10):
        assert splitter.feed(b"a\n") == [b"a"]
    assert splitter._parts == []


def test_a_line_above_the_cap_is_not_kept_while_it_comes_in() -> None:
    splitter = LineSplitter(1_000_000)
    for _ in range(100):
        assert splitter.feed(b"x" * 100_000) == []
    assert splitter.pending == 10_000_000
    assert sum(map(len, splitter._parts)) == 64 * 1024
    assert splitter.feed(b"\nnext\n") == [
        OversizedLine(10_000_000, b"x" * 64 * 1024),
        b"next",
    ]


def test_a_cap_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_line"):
        LineSplitter(0)
