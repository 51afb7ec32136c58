# SPDX-License-Identifier: Apache-2.0
"""Configs that a backend cannot use: each is told with what to change."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from internal.backends.backend import Weights
from internal.backends.registry import BACKENDS
from internal.backends.source import parse_source

if TYPE_CHECKING:
    from collections.abc import Mapping

BACKEND = {found.name: found for found in BACKENDS}
DEEP: dict[str, object] = functools.reduce(lambda inner, _: {"a": [inner]}, range(16), {})


def problems(
    name: str, source: str, config: Mapping[str, object], *, fetched: str = ""
) -> tuple[str, ...]:
    weights = Weights(source=parse_source(source), config=config, fetched=fetched)
    return BACKEND[name].problems(weights)


@pytest.mark.parametrize(
    ("value", "kind", "given"),
    [
        ("8192", "an integer", "the string '8192'"),
        (8192.5, "an integer", "a number"),
        (True, "an integer", "a boolean"),
        (None, "an integer", "null"),
        ([1], "an integer", "a list"),
        ({}, "an integer", "an object"),
    ],
)
def test_a_wrong_type_names_key_expectation_and_value(value: object, kind: str, given: str) -> None:
    expected = (f"spec.config.maxModelLen must be {kind}, not {given}",)
    assert problems("vllm", "HF://o/m", {"maxModelLen": value}) == expected


@pytest.mark.parametrize(
    ("name", "source", "config", "words"),
    [
        ("vllm", "ollama://m", {}, "vllm cannot load ollama:// sources"),
        ("llamacpp", "ollama://m", {}, "set spec.source to one of HF://, file://, pvc://"),
        ("ollama", "file:///m", {}, "ollama cannot load file:// sources"),
        ("llamacpp", "HF://o/m", {}, "set spec.config.ggufFile"),
        ("llamacpp", "HF://o/m.gguf", {}, "set spec.config.ggufFile to one of its files"),
        ("llamacpp", "HF://o/m", {"ggufFile": "m.bin"}, "ends in .gguf"),
        ("llamacpp", "pvc://c/d", {}, "set spec.config.ggufFile"),
        ("llamacpp", "pvc://c/d", {"ggufFile": "../m.gguf"}, "must be a path inside the source"),
        ("llamacpp", "pvc://c/d", {"ggufFile": "/m.gguf"}, "must be a path inside the source"),
        ("vllm", "HF://o/m", {"ggufFile": "m.gguf"}, "vllm cannot pick one file"),
        ("vllm-omni", "HF://o/m", {"deployConfig": "a.yaml"}, "deployConfig names a file of a"),
        ("vllm-omni", "pvc://c", {"deployConfig": "../a.yaml"}, "must not contain '..'"),
        ("mlc-llm", "HF://o/m", {"modelLibPath": "a.so"}, "modelLibPath names a file of a"),
        ("mlc-llm", "pvc://c", {"modelLibPath": "/a/../b.so"}, "must not contain '..'"),
        ("mlc-llm", "HF://o/m", {"mode": "fast"}, "one of server, serve, local, interactive"),
        ("mlc-llm", "HF://o/m", {"jitPolicy": "on"}, "must be one of ON, OFF, REDO, READONLY"),
        ("mlc-llm", "ollama://m", {}, "mlc-llm cannot load ollama:// sources"),
        ("diffusers", "HF://o/m", {"skipWarmup": "no"}, "must be true or false, or a string"),
        ("diffusers", "HF://o/m", {"numInferenceSteps": "7.5"}, "must be a whole number, or"),
        ("diffusers", "HF://o/m", {"warmupWidth": True}, "must be a whole number, or"),
        ("comfyui", "HF://o/m", {}, "comfyui does not fetch an HF:// source by itself"),
        ("comfyui", "pvc://c", {"modelsPath": "../p.yaml"}, "must not contain '..'"),
        ("vllm", "HF://o/m", {"gpuMemoryUtilization": "most"}, "a number, or a string"),
        ("vllm", "HF://o/m", {"enforceEager": "yes"}, "must be true or false"),
        ("vllm", "HF://o/m", {"startupTimeout": "soon"}, "a duration string such as 90s"),
        ("vllm", "HF://o/m", {"startupTimeoutSeconds": 0}, "must be at least 1, not 0"),
        ("vllm", "HF://o/m", {"startupTimeoutSeconds": 10**12}, "must be at most 2147483647"),
        ("vllm", "HF://o/m", {"maxModelLen": 10**20}, "maxModelLen is out of range"),
        ("vllm", "HF://o/m", {"gpuMemoryUtilization": -1e300}, "is out of range"),
        ("vllm", "HF://o/m", {"speculativeConfig": DEEP}, "an object of at most 32 levels"),
    ],
)
def test_problems_say_what_to_change(
    name: str, source: str, config: Mapping[str, object], words: str
) -> None:
    (problem,) = problems(name, source, config)
    assert words in problem


def test_keys_that_nobody_reads_are_named() -> None:
    config = {"maxModelLenght": 1, "dtype": "auto", "startupTimeout": "1m", "zeta": 1}
    assert BACKEND["vllm"].unread_keys(config) == ("maxModelLenght", "zeta")
