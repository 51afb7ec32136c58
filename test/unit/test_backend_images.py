# SPDX-License-Identifier: Apache-2.0
"""Which image a backend runs on which hardware, and how a digest pins it."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internal.backends.image import pin
from internal.backends.registry import BACKENDS
from internal.gpu.accelerator import CPU, Accelerator, Vendor

if TYPE_CHECKING:
    from internal.backends.backend import Backend

BACKEND = {found.name: found for found in BACKENDS}
DIGEST = "a" * 64
H100 = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_90")
MAXWELL = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_52")
MI300 = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx942")
RADEON = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx1100")
NAVI32 = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx1101")
VEGA = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx906")
segment = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("image", "pinned"),
    [
        ("vllm/vllm-openai:latest", "vllm/vllm-openai"),
        ("registry.local:5000/team/vllm", "registry.local:5000/team/vllm"),
        ("registry.local:5000/team/vllm:v1", "registry.local:5000/team/vllm"),
        ("vllm:v1@sha256:" + "b" * 64, "vllm"),
        ("vllm@sha256:" + "b" * 64, "vllm"),
        ("vllm", "vllm"),
    ],
)
def test_a_digest_replaces_tag_and_digest(image: str, pinned: str) -> None:
    assert pin(image, DIGEST) == f"{pinned}@sha256:{DIGEST}"
    assert pin(image, f"sha256:{DIGEST}") == f"{pinned}@sha256:{DIGEST}"


registry = st.builds("{}:{}/".format, segment, st.integers(1, 65535)) | st.just("")
tags = st.builds(":{}".format, segment) | st.just("")


@given(
    host=registry,
    path=st.lists(segment, min_size=1, max_size=3),
    tag=tags,
    digested=st.booleans(),
)
def test_pinning_keeps_registry_and_repository(
    host: str, path: list[str], tag: str, *, digested: bool
) -> None:
    repository = host + "/".join(path)
    image = repository + tag + (f"@sha256:{'b' * 64}" if digested else "")
    once = pin(image, DIGEST)
    assert once == f"{repository}@sha256:{DIGEST}"
    assert pin(once, DIGEST) == once


@pytest.mark.parametrize(
    ("name", "accelerator", "image"),
    [
        ("vllm", H100, "vllm/vllm-openai:latest"),
        ("vllm", MI300, "rocm/vllm:latest"),
        ("vllm", RADEON, "rocm/vllm:latest"),
        ("ollama", H100, "ollama/ollama:latest"),
        ("ollama", MI300, "ollama/ollama:rocm"),
        ("llamacpp", CPU, "ghcr.io/ggml-org/llama.cpp:server"),
        ("llamacpp", H100, "ghcr.io/ggml-org/llama.cpp:server-cuda"),
        ("llamacpp", MI300, "ghcr.io/ggml-org/llama.cpp:server-rocm"),
        ("vllm-omni", H100, "vllm/vllm-omni:latest"),
        ("mlc-llm", H100, "ghcr.io/mlc-ai/mlc-llm:cuda"),
        ("mlc-llm", MI300, "ghcr.io/mlc-ai/mlc-llm:rocm"),
        ("mlc-llm", VEGA, "ghcr.io/mlc-ai/mlc-llm:rocm"),
        ("comfyui", H100, "comfyanonymous/comfyui:latest"),
        ("vllm", VEGA, ""),
        ("vllm-omni", MI300, ""),
        ("mlc-llm", MAXWELL, ""),
        ("diffusers", H100, ""),
        ("diffusers", RADEON, ""),
        ("comfyui", MI300, ""),
        ("comfyui", VEGA, ""),
    ],
)
def test_default_images(name: str, accelerator: Accelerator, image: str) -> None:
    assert BACKEND[name].image(accelerator, {}) == image


@pytest.mark.parametrize(
    ("name", "accelerator", "variable"),
    [
        ("vllm", RADEON, "DEFAULT_VLLM_IMAGE_GFX1100"),
        ("vllm", MI300, "DEFAULT_VLLM_IMAGE_AMD"),
        ("vllm", H100, "DEFAULT_VLLM_IMAGE"),
        ("ollama", H100, "DEFAULT_BACKEND_IMAGE_NVIDIA"),
        ("ollama", MAXWELL, "DEFAULT_BACKEND_IMAGE_MAXWELL"),
        ("ollama", MI300, "DEFAULT_BACKEND_IMAGE_AMD"),
        ("llamacpp", CPU, "DEFAULT_LLAMA_CPP_IMAGE_CPU"),
        ("llamacpp", MAXWELL, "DEFAULT_LLAMA_CPP_IMAGE_MAXWELL"),
        ("llamacpp", H100, "DEFAULT_LLAMA_CPP_IMAGE"),
        ("vllm", VEGA, "DEFAULT_VLLM_IMAGE_GFX906"),
        ("vllm", NAVI32, "DEFAULT_VLLM_IMAGE_GFX1100"),
        ("vllm-omni", RADEON, "DEFAULT_VLLM_OMNI_IMAGE_GFX1100"),
        ("vllm-omni", RADEON, "DEFAULT_VLLM_OMNI_IMAGE_AMD"),
        ("vllm-omni", H100, "DEFAULT_VLLM_OMNI_IMAGE"),
        ("mlc-llm", RADEON, "DEFAULT_MLC_LLM_IMAGE_GFX1100"),
        ("mlc-llm", VEGA, "DEFAULT_MLC_LLM_IMAGE_GFX906"),
        ("mlc-llm", MI300, "DEFAULT_MLC_LLM_IMAGE_AMD"),
        ("mlc-llm", MAXWELL, "DEFAULT_MLC_LLM_IMAGE_MAXWELL"),
        ("mlc-llm", H100, "DEFAULT_MLC_LLM_IMAGE"),
        ("diffusers", RADEON, "DEFAULT_DIFFUSERS_IMAGE_GFX1100"),
        ("diffusers", VEGA, "DEFAULT_DIFFUSERS_IMAGE_GFX906"),
        ("diffusers", MI300, "DEFAULT_DIFFUSERS_IMAGE_AMD"),
        ("diffusers", H100, "DEFAULT_DIFFUSERS_IMAGE"),
        ("comfyui", RADEON, "DEFAULT_COMFYUI_IMAGE_GFX1100"),
        ("comfyui", VEGA, "DEFAULT_COMFYUI_IMAGE_GFX906"),
        ("comfyui", VEGA, "DEFAULT_COMFYUI_IMAGE_AMD"),
        ("comfyui", H100, "DEFAULT_COMFYUI_IMAGE"),
    ],
)
def test_a_variable_of_the_manager_replaces_the_default(
    name: str, accelerator: Accelerator, variable: str
) -> None:
    found = BACKEND[name]
    assert found.image(accelerator, {variable: "mine:1"}) == "mine:1"
    assert found.image(accelerator, {variable: " "}) == found.image(accelerator, {})
    assert variable in found.image_variables(accelerator)


@pytest.mark.parametrize("name", ["vllm-omni", "diffusers", "comfyui"])
def test_an_image_for_nvidia_is_none_for_amd(name: str) -> None:
    (variable,) = BACKEND[name].image_variables(H100)
    assert BACKEND[name].image(MI300, {variable: "mine:cuda"}) == ""


@pytest.mark.parametrize("found", BACKENDS, ids=lambda found: found.name)
def test_hardware_without_a_default_image_has_a_variable_for_one(found: Backend) -> None:
    for vendor in found.vendors:
        for architecture in ("", "sm_52", "sm_90", "gfx906", "gfx1100", "gfx942"):
            hardware = Accelerator(vendor=vendor, count=1, architecture=architecture)
            assert found.image_variables(hardware)


def test_no_default_image_is_private() -> None:
    hosts = {"vllm", "rocm", "ollama", "ghcr.io", "comfyanonymous"}
    images = {rule.image for found in BACKENDS for rule in found.images if rule.image}
    assert {image.partition("/")[0] for image in images} <= hosts
