# SPDX-License-Identifier: Apache-2.0
"""Where weights come from, as a URI."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internal.backends.source import Scheme, Source, SourceError, parse_source

segment = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HF://meta-llama/Llama-3.1-8B", Source(Scheme.HUGGING_FACE, "meta-llama/Llama-3.1-8B")),
        ("ollama://mistral:7b", Source(Scheme.OLLAMA, "mistral:7b")),
        ("ollama://library/mistral", Source(Scheme.OLLAMA, "library/mistral")),
        ("file:///opt/model", Source(Scheme.FILE, "/opt/model")),
        ("pvc://weights", Source(Scheme.PVC, "", "weights")),
        ("pvc://weights/a/b.gguf", Source(Scheme.PVC, "a/b.gguf", "weights")),
        ("pvc://weights//a/", Source(Scheme.PVC, "a", "weights")),
    ],
)
def test_extract_model_from_source(text: str, expected: Source) -> None:
    assert parse_source(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "meta-llama/Llama",
        "hf://a/b",
        "s3://bucket/key",
        "HF://only-org",
        "HF://a/b/c",
        "HF://a/b c",
        "ollama://",
        "file://relative",
        "file:///",
        "pvc://",
        "pvc:///path",
        "pvc://Upper/path",
        "pvc://claim/../other",
        "file:///a/../../etc",
    ],
)
def test_sources_that_cannot_be_read_name_the_forms(text: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_source(text)
    assert "HF://org/name, ollama://name:tag, file:///path or pvc://claim/path" in str(caught.value)


@given(st.text(max_size=40))
def test_reading_a_source_either_works_or_says_why(text: str) -> None:
    try:
        source = parse_source(text)
    except SourceError:
        return
    assert ".." not in source.reference.split("/")
    assert bool(source.claim) == (source.scheme is Scheme.PVC)
    assert parse_source(str(source)) == source


@given(segment, st.lists(segment, max_size=3))
def test_a_claim_and_its_path_survive(claim: str, path: list[str]) -> None:
    source = parse_source(f"pvc://{'/'.join([claim, *path])}")
    assert (source.claim, source.reference) == (claim, "/".join(path))
