# SPDX-License-Identifier: Apache-2.0
"""Backends by name: their ports, probes, times and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from internal.backends.config import Key, Kind
from internal.backends.registry import BACKENDS, find_backend, known_backends

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.meta.envelope import Tree

BACKEND = {found.name: found for found in BACKENDS}
HTTP_8000: Tree = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 5}
TCP: Tree = {"tcpSocket": {"port": "http"}}


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("llamacpp", "llamacpp"),
        ("llama.cpp", "llamacpp"),
        ("llama-cpp", "llamacpp"),
        ("LLAMA_CPP", "llamacpp"),
        (" LlamaCpp ", "llamacpp"),
        ("vllm-diffusion", "vllm-omni"),
        ("vllm_omni", "vllm-omni"),
        ("mlc", "mlc-llm"),
        ("mlc_llm", "mlc-llm"),
        ("mlc-llm-chat", "mlc-llm"),
        ("Diffusers", "diffusers"),
        ("comfy", "comfyui"),
        ("comfy-ui", "comfyui"),
        ("comfy_ui", "comfyui"),
    ],
)
def test_aliases_in_any_case_find_the_backend(alias: str, name: str) -> None:
    found = find_backend(alias)
    assert found is not None
    assert found.name == name


def test_an_unknown_name_finds_nothing() -> None:
    assert find_backend("tensorrt") is None
    assert known_backends() == "comfyui, diffusers, llamacpp, mlc-llm, ollama, vllm, vllm-omni"


def test_no_two_backends_share_a_name() -> None:
    names = [name for found in BACKENDS for name in (found.name, *found.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "port", "readiness", "startup"),
    [
        ("ollama", 11434, {"httpGet": {"path": "/", "port": "http"}, "timeoutSeconds": 5}, None),
        ("vllm", 8000, HTTP_8000, None),
        ("vllm-omni", 8000, HTTP_8000 | {"timeoutSeconds": 3}, None),
        ("llamacpp", 8080, HTTP_8000, None),
        (
            "mlc-llm",
            8000,
            {"httpGet": {"path": "/v1/models", "port": "http"}, "timeoutSeconds": 5},
            None,
        ),
        ("diffusers", 8000, TCP | {"timeoutSeconds": 3}, HTTP_8000),
        ("comfyui", 8188, TCP | {"timeoutSeconds": 5}, None),
    ],
)
def test_ports_and_probes(name: str, port: int, readiness: Tree, startup: Tree | None) -> None:
    found = BACKEND[name]
    assert found.port == port
    assert found.readiness.check("http") == readiness
    assert found.startup_probe.check("http") == (startup or readiness)
    assert found.readiness.failure_threshold == 3


def test_a_probe_says_what_has_to_answer() -> None:
    assert (str(BACKEND["vllm"].readiness), str(BACKEND["comfyui"].readiness)) == ("/health", "TCP")


@pytest.mark.parametrize(
    ("name", "period", "startup", "idle"),
    [
        ("ollama", 10, 60, 300),
        ("vllm", 10, 300, 300),
        ("vllm-omni", 5, 300, 600),
        ("mlc-llm", 10, 90, 300),
        ("llamacpp", 10, 60, 300),
        ("diffusers", 5, 900, 600),
        ("comfyui", 10, 180, 600),
    ],
)
def test_times(name: str, period: int, startup: int, idle: int) -> None:
    found = BACKEND[name]
    assert found.readiness.period_seconds == period
    assert (found.startup_seconds, found.idle_seconds) == (startup, idle)


def test_who_makes_images_and_who_keeps_models_by_itself() -> None:
    makers = {found.name for found in BACKENDS if found.makes_images}
    assert makers == {"vllm-omni", "diffusers", "comfyui"}
    assert [found.name for found in BACKENDS if not found.needs_volume] == ["ollama"]


@pytest.mark.parametrize(
    ("name", "config", "files"),
    [
        ("llamacpp", {"ggufFile": "a.gguf", "mmproj": "p.gguf"}, ("a.gguf", "p.gguf")),
        ("llamacpp", {"modelFile": "b.gguf"}, ("b.gguf",)),
        ("llamacpp", {}, ()),
        ("vllm", {"ggufFile": "a.gguf"}, ("a.gguf",)),
        ("vllm", {}, ()),
        ("diffusers", {"vaePath": "/vae"}, ()),
    ],
)
def test_files_that_config_names(
    name: str, config: Mapping[str, object], files: tuple[str, ...]
) -> None:
    assert BACKEND[name].source_files(config) == files


@pytest.mark.parametrize(
    ("config", "at_least", "seconds"),
    [
        ({}, 60.0, 300),
        ({}, 600.0, 600),
        ({"startupTimeoutSeconds": 30}, 600.0, 30),
        ({"startupTimeout": "20m"}, 60.0, 1200),
        ({"startupTimeout": "100ms"}, 60.0, 1),
    ],
)
def test_the_startup_budget(config: Mapping[str, object], at_least: float, seconds: int) -> None:
    assert BACKEND["vllm"].startup_budget(config, at_least=at_least) == seconds


def test_a_key_without_a_flag_adds_nothing() -> None:
    assert Key(name="x", kind=Kind.STRING).arguments("y") == ()
