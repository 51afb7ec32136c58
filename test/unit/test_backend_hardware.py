# SPDX-License-Identifier: Apache-2.0
"""Which backend runs on which hardware, how well, and what AMD's have to be told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internal.backends import hardware
from internal.backends.backend import Backend, Launch
from internal.backends.registry import BACKENDS, find_backend
from internal.backends.rocm import runtime_variables, torch_variables
from internal.backends.source import parse_source
from internal.backends.support import Support, support_of
from internal.gpu.accelerator import CPU, Accelerator, Offer, Vendor
from internal.gpu.caveat import CaveatReason

if TYPE_CHECKING:
    from collections.abc import Mapping

H100 = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_90")
MAXWELL = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_52")
RADEON = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx1100")
VEGA = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx906")
STRANGE = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx9999")
PINNED = "registry.local/comfyui:rocm-gfx906"
GENERIC = "registry.local/comfyui:rocm"


def mixed(*architectures: str) -> Accelerator:
    offers = tuple(Offer(architecture=architecture) for architecture in architectures)
    return Accelerator(vendor=Vendor.NVIDIA, count=1, offers=offers)


def backend(name: str) -> Backend:
    found = find_backend(name)
    assert found is not None
    return found


def launch(
    accelerator: Accelerator,
    source: str = "HF://org/model",
    config: Mapping[str, object] | None = None,
    *,
    fetched: str = "",
) -> Launch:
    return Launch(
        name="m",
        source=parse_source(source),
        accelerator=accelerator,
        config=config or {},
        fetched=fetched,
    )


def reasons(name: str, accelerator: Accelerator, image: str = GENERIC) -> list[CaveatReason]:
    found = hardware.caveats(backend(name), launch(accelerator), image)
    return [caveat.reason for caveat in found]


@pytest.mark.parametrize(
    ("name", "accelerator", "words"),
    [
        ("llamacpp", CPU, ""),
        ("vllm", CPU, "vllm does not run on CPUs and spec.gpu asks for no GPU"),
        ("ollama", CPU, "set spec.gpu.vendor to amd or nvidia, or use backend llamacpp"),
        ("comfyui", CPU, "does not run on CPUs"),
        ("vllm", H100, ""),
        ("vllm", RADEON, ""),
        ("vllm", STRANGE, ""),
        ("comfyui", VEGA, ""),
        ("llamacpp", MAXWELL, ""),
        ("vllm", MAXWELL, "vllm does not run on nvidia GPUs of architecture sm_52"),
        ("vllm", mixed("sm_50", "sm_52"), "nvidia GPUs of architecture sm_50, sm_52"),
        ("vllm", mixed("sm_50", "sm_90"), ""),
    ],
)
def test_validate_backend_gpu_compatibility(
    name: str, accelerator: Accelerator, words: str
) -> None:
    found = hardware.obstacle(backend(name), launch(accelerator))
    assert words in found
    assert bool(found) is bool(words)


def test_gpus_of_the_wrong_vendor_are_named() -> None:
    only = replace(backend("vllm"), vendors=frozenset({Vendor.NVIDIA}))
    found = hardware.obstacle(only, launch(RADEON))
    assert "vllm does not run on amd GPUs of architecture gfx1100; use other nodes" in found
    assert "(it runs on nvidia)" in found


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("vllm", False),
        ("vllm-omni", False),
        ("diffusers", False),
        ("comfyui", False),
        ("llamacpp", True),
        ("ollama", True),
        ("mlc-llm", True),
    ],
)
def test_validate_backend_gpu_compatibility_maxwell(name: str, *, runs: bool) -> None:
    for architecture in ("sm_50", "sm_52", "sm_53"):
        gpus = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture=architecture)
        found = hardware.obstacle(backend(name), launch(gpus, fetched="/models/m"))
        assert bool(found) is not runs


@pytest.mark.parametrize(
    ("name", "accelerator", "image", "expected"),
    [
        ("comfyui", VEGA, GENERIC, [CaveatReason.EXPERIMENTAL]),
        ("comfyui", VEGA, PINNED, []),
        ("mlc-llm", VEGA, GENERIC, [CaveatReason.EXPERIMENTAL]),
        ("diffusers", VEGA, GENERIC, [CaveatReason.EXPERIMENTAL]),
        ("vllm", VEGA, GENERIC, []),
        ("llamacpp", VEGA, GENERIC, []),
        ("comfyui", RADEON, GENERIC, []),
        ("vllm", STRANGE, GENERIC, []),
        ("vllm", mixed("sm_52", "sm_90"), GENERIC, [CaveatReason.PARTIAL]),
        ("llamacpp", CPU, GENERIC, []),
    ],
)
def test_what_works_but_should_be_known(
    name: str, accelerator: Accelerator, image: str, expected: list[CaveatReason]
) -> None:
    assert reasons(name, accelerator, image) == expected


def test_a_caveat_names_backend_architecture_and_cure() -> None:
    (caveat,) = hardware.caveats(backend("comfyui"), launch(VEGA), GENERIC)
    assert caveat.text == (
        "backend comfyui is experimental on gfx906: should it fail there, set spec.image to a "
        "build for that architecture"
    )
    (caveat,) = hardware.caveats(backend("vllm"), launch(mixed("sm_52", "sm_90")), GENERIC)
    assert caveat.text == (
        "some nodes that fit have GPUs of sm_52, on which backend vllm does not run: keep pods "
        "off them with spec.nodeSelector"
    )


@pytest.mark.parametrize(
    ("name", "accelerator", "source", "config", "fetched", "words"),
    [
        ("vllm", H100, "HF://org/model-fp16", {}, "", ""),
        ("llamacpp", RADEON, "HF://org/model-fp16", {}, "", ""),
        ("llamacpp", MAXWELL, "HF://org/model-FP16-GGUF", {}, "", "FP16"),
        ("llamacpp", MAXWELL, "HF://org/llama-3-8b-f16.gguf", {}, "", "llama-3-8b-f16.gguf"),
        ("llamacpp", MAXWELL, "HF://org/m", {"ggufFile": "m-F16.gguf"}, "", "'m-F16.gguf'"),
        ("llamacpp", MAXWELL, "HF://org/m", {"ggufFile": "m-q4_0.gguf"}, "", ""),
        ("mlc-llm", MAXWELL, "pvc://c/q4f16_1", {}, "", "cannot compute in FP16"),
        ("mlc-llm", MAXWELL, "HF://org/m", {"modelLibPath": "/libs/m.so"}, "", ""),
        ("mlc-llm", MAXWELL, "HF://org/m", {}, "", "set spec.config.modelLibPath"),
        ("mlc-llm", MAXWELL, "HF://org/m", {}, "/models/m", ""),
        ("mlc-llm", MAXWELL, "pvc://c/q4f32_1", {}, "", ""),
        ("mlc-llm", MAXWELL, "pvc://c", {}, "", ""),
        ("mlc-llm", MAXWELL, "file:///opt/m", {}, "", "weights under /models/"),
        ("mlc-llm", MAXWELL, "file:///models/m", {}, "", ""),
        ("mlc-llm", H100, "HF://org/m", {}, "", ""),
        ("mlc-llm", mixed("sm_52", "sm_90"), "HF://org/m", {}, "", ""),
        ("mlc-llm", mixed("sm_50", "sm_52"), "HF://org/m", {}, "", "spec.config.modelLibPath"),
        ("ollama", MAXWELL, "ollama://llama3:8b-q4_0", {}, "", ""),
        ("ollama", MAXWELL, "ollama://llama3:8b-fp16", {}, "", "newer GPUs"),
    ],
)
def test_validate_maxwell_specifics(  # noqa: PLR0917 - one column each
    name: str,
    accelerator: Accelerator,
    source: str,
    config: Mapping[str, object],
    fetched: str,
    words: str,
) -> None:
    start = launch(accelerator, source, config, fetched=fetched)
    found = hardware.obstacle(backend(name), start)
    assert words in found
    assert bool(found) is bool(words)


@pytest.mark.parametrize(
    ("name", "accelerator", "words"),
    [
        ("vllm", VEGA, "amd GPUs of architecture gfx906: set spec.image, or DEFAULT_VLLM_IMAGE_G"),
        ("diffusers", H100, "set spec.image, or DEFAULT_DIFFUSERS_IMAGE in the manager's"),
        (
            "comfyui",
            VEGA,
            "set spec.image, or DEFAULT_COMFYUI_IMAGE_GFX906 or DEFAULT_COMFYUI_IMAGE_AMD in the",
        ),
        ("mlc-llm", MAXWELL, "or DEFAULT_MLC_LLM_IMAGE_MAXWELL in the manager's environment"),
        ("vllm-omni", Accelerator(vendor=Vendor.AMD, count=1), "for amd GPUs: set spec.image"),
        ("llamacpp", CPU, "for CPUs: set spec.image"),
    ],
)
def test_a_missing_image_names_what_to_set(name: str, accelerator: Accelerator, words: str) -> None:
    assert words in hardware.missing_image(backend(name), accelerator)


HSA = "HSA_OVERRIDE_GFX_VERSION"
AOTRITON = "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"
RDNA3 = {
    HSA: "11.0.0",
    AOTRITON: "1",
    "PYTORCH_TUNABLEOP_ENABLED": "1",
    "PYTORCH_ROCM_ARCH": "gfx1100",
}
VEGA20 = {HSA: "9.0.6", "HSA_ENABLE_SDMA": "0", "HSA_USE_SVM": "0"}


@pytest.mark.parametrize(
    ("architecture", "variables"),
    [
        ("gfx1100", RDNA3),
        ("gfx1101", RDNA3),
        ("gfx906", VEGA20 | {"PYTORCH_ROCM_ARCH": "gfx906"}),
        ("gfx90a", {"PYTORCH_ROCM_ARCH": "gfx90a"}),
        ("gfx942", {"PYTORCH_ROCM_ARCH": "gfx942"}),
        ("gfx900", {"PYTORCH_ROCM_ARCH": "gfx900"}),
        ("", {}),
    ],
)
def test_rocm_env_vars(architecture: str, variables: Mapping[str, str]) -> None:
    assert torch_variables(architecture) == variables
    runtime = {name: value for name, value in variables.items() if name.startswith("HSA_")}
    assert runtime_variables(architecture) == runtime


@pytest.mark.parametrize("found", BACKENDS, ids=lambda found: found.name)
def test_every_backend_on_amd_gpus_is_told(found: Backend) -> None:
    told = found.environment(launch(RADEON))
    assert told[HSA] == "11.0.0"
    assert ("PYTORCH_ROCM_ARCH" in told) is (found.name not in {"ollama", "llamacpp"})
    for other in (H100, CPU):
        assert not any("ROCM" in name or "HSA" in name for name in found.environment(launch(other)))


offers = st.builds(
    Offer,
    architecture=st.sampled_from(["", "sm_50", "sm_52", "sm_90"]),
    memory_mb=st.none() | st.integers(1, 99),
)


@given(st.sampled_from(BACKENDS), st.lists(offers, min_size=1, max_size=3), st.integers(1, 2))
def test_pods_depend_on_vendor_count_and_architecture_alone(
    found: Backend, some: list[Offer], count: int
) -> None:
    architectures = {offer.architecture for offer in some}
    bare = Accelerator(
        vendor=Vendor.NVIDIA,
        count=count,
        architecture=architectures.pop() if len(architectures) == 1 else "",
    )
    full = replace(bare, offers=tuple(some), memory_mb=99)
    config = {"ggufFile": "m.gguf"}
    one, other = (launch(gpus, "pvc://c/d", config) for gpus in (bare, full))
    assert found.arguments(one) == found.arguments(other)
    assert found.environment(one) == found.environment(other)
    assert found.image(bare, {}) == found.image(full, {})


matrices = st.dictionaries(st.sampled_from(["sm_5", "sm_52", "gfx9"]), st.sampled_from(Support))


@given(matrices, st.sampled_from(["", "sm_52", "sm_53", "sm_90", "gfx906", "gfx1100"]))
def test_what_a_matrix_does_not_know_runs(matrix: dict[str, Support], architecture: str) -> None:
    fitting = [prefix for prefix in matrix if architecture.startswith(prefix)]
    expected = matrix[max(fitting, key=len)] if fitting else Support.FULL
    assert support_of(matrix, architecture) is expected
